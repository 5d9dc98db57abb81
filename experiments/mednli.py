"""Attention guiding, Tables 1 to 4: MedNLI, 3 classes, on a pre-trained model.

Before:   python -m experiments search mednli --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train mednli --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/mednli_search
Device:   a GPU
Minutes:  not run
Expected: not run (the data are given to those who sign for them); the paper's BERT-base has
          76.02 % without a guide and 77.22 % with AG
"""

from distattn_jax.train import Config
from experiments.guiding import paper_config


def get_config() -> Config:
    """3 seeds."""
    return paper_config("mednli", epochs=20.0, seeds=3)
