"""Recipe for Table 4 (left) of the DA-Transformer paper: predict the sentiment of a sentence.

The data set is SST, with 2 classes.

Before:   python -m experiments search sst --data.vectors GLOVE
Command:  python -m experiments train sst --data.vectors GLOVE --search runs/sst_search
Device:   a GPU
Minutes:  4 to train and 6 to search, on one H200 shared with other runs
Expected: test accuracy of every method between 81.5 and 82.5 %; the paper has 89.7 to 90.5 %
"""

from distattn_jax.tasks import TextClassificationConfig, TextClassificationData
from experiments.recipes.ag import METHODS

SENTENCE = "the plot is thin , but the actors are so good that nobody will mind"


def get_config() -> TextClassificationConfig:
    """Return the config, with 20 seeds.

    The paper uses 5 seeds, which are too few to detect the small differences between the methods.
    """
    return TextClassificationConfig(
        name="sst",
        methods=METHODS,
        seeds=20,
        epochs=8.0,
        data=TextClassificationData(dataset="sst", longest=64, buckets=2),
    )
