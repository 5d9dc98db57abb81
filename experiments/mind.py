"""DA-Transformer, Table 5: which news will a reader click? MIND; AUC, MRR, nDCG@5, nDCG@10.

Command:  python -m experiments train mind --data.vectors GLOVE
Device:   a GPU
Minutes:  not known: the real log was not run
Expected: not known; on a made-up log, see experiments/RESULTS.md
"""

from distattn_jax.train import Config, DataConfig
from experiments.da import paper_config

PAPER = {
    "vanilla": {
        **{"auc": "67.76 ± 0.18", "mrr": "33.05 ± 0.16"},
        **{"ndcg@5": "35.94 ± 0.19", "ndcg@10": "41.63 ± 0.20"},
    },
    "relative_position": {
        **{"auc": "67.81 ± 0.16", "mrr": "33.10 ± 0.17"},
        **{"ndcg@5": "35.98 ± 0.20", "ndcg@10": "41.65 ± 0.21"},
    },
    "transformer_xl": {
        **{"auc": "67.92 ± 0.16", "mrr": "33.15 ± 0.16"},
        **{"ndcg@5": "36.04 ± 0.20", "ndcg@10": "41.70 ± 0.19"},
    },
    "adapted": {
        **{"auc": "67.70 ± 0.22", "mrr": "33.01 ± 0.20"},
        **{"ndcg@5": "35.89 ± 0.17", "ndcg@10": "41.58 ± 0.23"},
    },
    "distance_aware": {
        **{"auc": "68.32 ± 0.15", "mrr": "33.36 ± 0.16"},
        **{"ndcg@5": "36.34 ± 0.14", "ndcg@10": "42.07 ± 0.17"},
    },
}


def get_config() -> Config:
    """5 seeds, as in the paper; titles of 30 words, 50 clicks, 4 negatives for each.

    `--task mind_large` downloads the large set where no folder is given.
    """
    return paper_config(
        "mind", name="mind", seeds=5, epochs=3.0, data=DataConfig(buckets=4, min_count=2)
    )
