"""Recipe for Figure 3 of the DA-Transformer paper: predict the stars of a review as a number.

The data set is Amazon. The metrics are the root-mean-square error (RMSE) and the mean absolute
error (MAE).

Before:   python -m experiments search amazon --data.vectors GLOVE
Command:  python -m experiments train amazon_rating --data.vectors GLOVE --search runs/amazon_search
Device:   a GPU
Minutes:  6 to train four of the six methods, on one H200 shared with other runs
Expected: test RMSE 0.68 to 0.71; 0.84 if the mean rating is always predicted (10,524 reviews)
"""

from distattn_jax.tasks import DocumentRegressionConfig
from experiments.recipes.ag import METHODS
from experiments.recipes.amazon import DATA


def get_config() -> DocumentRegressionConfig:
    """Return the config, with 5 seeds. The data options are those of the recipe `amazon`."""
    return DocumentRegressionConfig(
        name="amazon_rating", methods=METHODS, seeds=5, epochs=6.0, data=DATA
    )
