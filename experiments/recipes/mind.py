"""Recipe for Table 5 of the DA-Transformer paper: rank news by how likely a reader clicks them.

The data set is MIND. The metrics are AUC, MRR, nDCG@5 and nDCG@10.

Command:  python -m experiments train mind --data.vectors GLOVE
Device:   a GPU
Minutes:  not run on MIND
Expected: not run on MIND; experiments/RESULTS.md has results on a synthetic click log
"""

from distattn_jax.tasks import NewsRecommendationConfig, NewsRecommendationData
from experiments.recipes.ag import METHODS


def get_config() -> NewsRecommendationConfig:
    """Return the config, with 5 seeds as in the paper.

    Titles have at most 30 words, and histories at most 50 clicks. Each click has 4 negative
    candidates.

    `--data.dataset mind_large` uses the large version of MIND. It is downloaded from a mirror
    unless `--data.manual-dir` is set; docs/papers.md says where to get the files by hand.
    """
    return NewsRecommendationConfig(
        name="mind",
        methods=METHODS,
        seeds=5,
        epochs=3.0,
        data=NewsRecommendationData(dataset="mind", min_count=2),
    )
