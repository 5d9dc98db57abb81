"""Published numbers of the DA-Transformer paper (Wu et al. 2021), as printed in its tables."""

# Table 1: rows of train, validation and test, classes, tokens per example.
DATA_SIZES = {
    "ag": ("108k", "12k", "7.6k", "4", "44"),
    "amazon": ("40k", "5k", "5k", "5", "133"),
    "sst": ("8k", "1k", "2k", "2", "19"),
    "snli": ("55k", "10k", "10k", "2", "22"),
}
# Table 2: size of MIND.
MIND_SIZES = {
    "users": "1,000,000",
    "news": "161,013",
    "impressions": "500,000",
    "clicks": "5,597,979",
    "candidates not clicked": "136,162,621",
    "words per title": "11.52",
}
# Metrics of Tables 3 to 5 and Figure 3, by experiment. The first one is the criterion.
METRICS = {
    "ag": ("accuracy", "macro_f"),
    "amazon": ("accuracy", "macro_f"),
    "sst": ("accuracy", "macro_f"),
    "snli": ("accuracy", "macro_f"),
    "amazon_rating": ("rmse", "mae"),
    "mind": ("auc", "mrr", "ndcg@5", "ndcg@10"),
    "mind_made_up": ("auc", "mrr", "ndcg@5", "ndcg@10"),
}

# Tables 3 to 5: experiment -> method -> metric -> mean ± standard deviation.
SCORES = {
    "ag": {
        "vanilla": {"accuracy": "93.01 ± 0.13", "macro_f": "93.00 ± 0.13"},
        "relative_position": {"accuracy": "93.14 ± 0.12", "macro_f": "93.13 ± 0.13"},
        "transformer_xl": {"accuracy": "93.35 ± 0.10", "macro_f": "93.34 ± 0.11"},
        "adapted": {"accuracy": "93.28 ± 0.13", "macro_f": "93.27 ± 0.14"},
        "distance_aware": {"accuracy": "93.72 ± 0.11", "macro_f": "93.70 ± 0.12"},
    },
    "amazon": {
        "vanilla": {"accuracy": "65.15 ± 0.40", "macro_f": "42.14 ± 0.41"},
        "relative_position": {"accuracy": "65.29 ± 0.38", "macro_f": "42.40 ± 0.40"},
        "transformer_xl": {"accuracy": "65.50 ± 0.40", "macro_f": "42.88 ± 0.43"},
        "adapted": {"accuracy": "65.47 ± 0.39", "macro_f": "42.69 ± 0.42"},
        "distance_aware": {"accuracy": "66.38 ± 0.39", "macro_f": "44.29 ± 0.40"},
    },
    "sst": {
        "vanilla": {"accuracy": "89.67 ± 0.22", "macro_f": "89.59 ± 0.24"},
        "relative_position": {"accuracy": "89.94 ± 0.19", "macro_f": "89.90 ± 0.20"},
        "transformer_xl": {"accuracy": "90.06 ± 0.20", "macro_f": "90.02 ± 0.21"},
        "adapted": {"accuracy": "90.15 ± 0.19", "macro_f": "90.10 ± 0.1"},
        "distance_aware": {"accuracy": "90.49 ± 0.17", "macro_f": "90.43 ± 0.19"},
    },
    "snli": {
        "vanilla": {"accuracy": "81.45 ± 0.30", "macro_f": "81.42 ± 0.31"},
        "relative_position": {"accuracy": "82.20 ± 0.31", "macro_f": "82.18 ± 0.31"},
        "transformer_xl": {"accuracy": "83.19 ± 0.29", "macro_f": "83.15 ± 0.30"},
        "adapted": {"accuracy": "82.35 ± 0.28", "macro_f": "82.31 ± 0.30"},
        "distance_aware": {"accuracy": "84.18 ± 0.27", "macro_f": "84.16 ± 0.29"},
    },
    "mind": {
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
    },
}
