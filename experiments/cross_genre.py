"""Attention guiding, Tables 1 to 4: Cross-genre-IR, the paper of a claim, on a pre-trained model.

Before:   python -m experiments search cross_genre --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train cross_genre --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/cross_genre_search
Device:   a GPU
Minutes:  not run
Expected: not run (the data could not be had); the paper's BERT-base has an MRR of 73.18 % without
          a guide and 73.38 % with AG
"""

from distattn_jax.train import Config
from experiments.guiding import paper_config


def get_config() -> Config:
    """3 seeds; 12 claims with 5 candidates each are 60 texts a batch."""
    return paper_config("cross_genre", epochs=5.0, batch_size=12, seeds=3)
