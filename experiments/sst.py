"""DA-Transformer, Table 4, left: is this sentence positive? SST, 2 classes.

Before:   python -m experiments search sst --data.vectors GLOVE
Command:  python -m experiments train sst --data.vectors GLOVE --search runs/sst_search
Device:   a GPU
Minutes:  4, and 6 for the search, on one H200 that ran others beside it
Expected: test accuracy of every method between 81.5 and 82.5 %; the paper has 89.7 to 90.5
"""

from distattn_jax.train import Config, DataConfig
from experiments.da import paper_config

SENTENCE = "the plot is thin , but the actors are so good that nobody will mind"


def get_config() -> Config:
    """20 seeds: the paper's 5 cannot tell such differences from chance."""
    return paper_config(
        "sst",
        name="sst",
        seeds=20,
        epochs=8.0,
        data=DataConfig(longest=64, buckets=2),
    )
