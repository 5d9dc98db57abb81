"""DA-Transformer, Table 3, left: what is this news about? AG's News, 4 classes.

Before:   python -m experiments search ag --data.vectors GLOVE
Command:  python -m experiments train ag --data.vectors GLOVE --search runs/ag_search
Device:   a GPU
Minutes:  12, and 11 for the search, on one H200 that ran others beside it
Expected: test accuracy of every method between 91.8 and 92.3 % (40 % of the rows), none clearly
          above the vanilla Transformer; the paper has 93.0 to 93.7
"""

from distattn_jax.train import Config, DataConfig
from experiments.da import paper_config

SENTENCE = "Stocks fell on Wall Street as oil prices rose and investors sold shares of airlines"


def get_config() -> Config:
    """20 seeds: the paper's 5 cannot tell such differences from chance."""
    return paper_config(
        "ag_news",
        name="ag",
        seeds=20,
        epochs=5.0,
        data=DataConfig(longest=128, buckets=2, min_count=2),
    )
