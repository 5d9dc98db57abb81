"""Recipe for Table 4 (right) of the DA-Transformer paper: classify entailment of sentence pairs.

The data set is SNLI, with 2 classes.

Before:   python -m experiments search snli --data.vectors GLOVE
Command:  python -m experiments train snli --data.vectors GLOVE --search runs/snli_search
Device:   a GPU
Minutes:  5 to train and 9 to search, on one H200 shared with other runs
Expected: test accuracy 76.9 % for the plain Transformer, 77.6 % for DA-Transformer, 78.2 % for a
          Transformer without positions (21,605 pairs)
"""

from distattn_jax.tasks import PairClassificationConfig, PairClassificationData
from experiments.recipes.ag import METHODS


def get_config() -> PairClassificationConfig:
    """Return the config, with 10 seeds."""
    return PairClassificationConfig(
        name="snli",
        methods=METHODS,
        seeds=10,
        epochs=6.0,
        data=PairClassificationData(dataset="snli", longest=48, buckets=2),
    )
