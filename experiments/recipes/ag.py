"""Recipe for Table 3 (left) of the DA-Transformer paper: predict the topic of a news text.

The data set is AG's News, with 4 classes.

Before:   python -m experiments search ag --data.vectors GLOVE
Command:  python -m experiments train ag --data.vectors GLOVE --search runs/ag_search
Device:   a GPU
Minutes:  12 to train and 11 to search, on one H200 shared with other runs
Expected: test accuracy of every method between 91.8 and 92.3 % (trained on 40 % of the training
          rows), none clearly above the plain Transformer; the paper has 93.0 to 93.7 %
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

    The paper uses 5 seeds, which are too few to detect the small differences between the methods.
    """
    return TextClassificationConfig(
        name="ag",
        methods=METHODS,
        seeds=20,
        epochs=5.0,
        data=TextClassificationData(dataset="ag_news", longest=128, buckets=2, min_count=2),
    )
