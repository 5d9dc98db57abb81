"""Attention guiding, Tables 1 to 4: MultiNLI, 3 classes, on a pre-trained model.

Before:   python -m experiments search multinli --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train multinli --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/multinli_search
Device:   a GPU
Minutes:  not timed alone: about 1 for six seeds of a guide, MiniLM, an H200 shared with other runs
Expected: MiniLM, 2.3 % of the training set, 4 epochs at 1e-4: 65.1 to 65.4 % without a guide, 64.6
          to 65.7 % with one; the paper's BERT-base has 83.24 % without a guide and 83.89 % with AG
"""

from distattn_jax.train import Config
from experiments.guiding import paper_config

PAIR = (
    "The old bridge was closed for a week because the river had risen.",
    "Nobody could cross the bridge for several days.",
)  # whose attention is drawn


def get_config() -> Config:
    """3 seeds."""
    return paper_config("multinli", epochs=5.0, seeds=3)
