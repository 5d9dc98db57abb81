"""DA-Transformer, Figure 3: the stars of a review as a number. Amazon, RMSE and MAE.

Before:   the search of amazon.py
Command:  python -m experiments train amazon_rating --data.vectors GLOVE --search runs/amazon_search
Device:   a GPU
Minutes:  6 for four of the six methods, on one H200 that ran others beside it
Expected: test RMSE 0.68 to 0.71, where the mean rating has 0.84 (10,524 reviews)
"""

from distattn_jax.train import Config
from experiments.amazon import DATA
from experiments.da import paper_config


def get_config() -> Config:
    """5 seeds, as in the paper, with the settings found for the classes."""
    return paper_config("amazon_rating", name="amazon_rating", seeds=5, epochs=6.0, data=DATA)
