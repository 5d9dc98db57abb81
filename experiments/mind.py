"""DA-Transformer, Table 5: which news will a reader click? MIND; AUC, MRR, nDCG@5, nDCG@10.

Command:  python -m experiments train mind --data.vectors GLOVE
Device:   a GPU
Minutes:  not known: the real log was not run
Expected: not known; on a made-up log, see experiments/RESULTS.md
"""

from distattn_jax.train import Config, DataConfig
from experiments.da import paper_config


def get_config() -> Config:
    """5 seeds, as in the paper; titles of 30 words, 50 clicks, 4 negatives for each.

    `--task mind_large` downloads the large set where no folder is given.
    """
    return paper_config(
        "mind", name="mind", seeds=5, epochs=3.0, data=DataConfig(buckets=4, min_count=2)
    )
