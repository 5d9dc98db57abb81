"""DA-Transformer, Table 3, left: the topic of a news text. AG's News, 4 classes.

Before:   python -m experiments search ag --data.vectors GLOVE
Command:  python -m experiments train ag --data.vectors GLOVE --search runs/ag_search
Device:   a GPU
Minutes:  12, and 11 for the search, on one H200 shared with other runs
Expected: test accuracy of every method between 91.8 and 92.3 % (40 % of the training rows), none
          clearly above the plain Transformer; the paper has 93.0 to 93.7 %
"""

from distattn_jax.tasks import TextClassificationConfig, TextClassificationData

SENTENCE = "Stocks fell on Wall Street as oil prices rose and investors sold shares of airlines"


METHODS = (
    "no_positions",
    "vanilla",
    "relative_position",
    "transformer_xl",
    "adapted",
    "distance_aware",
)  # the rows of the paper's tables, and attention without positions


def get_config() -> TextClassificationConfig:
    """Return the config, with 20 seeds.

    The paper has 5 seeds, too few to detect differences as small as those between the methods.
    """
    return TextClassificationConfig(
        name="ag",
        methods=METHODS,
        seeds=20,
        epochs=5.0,
        data=TextClassificationData(dataset="ag_news", longest=128, buckets=2, min_count=2),
    )
