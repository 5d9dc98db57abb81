"""Recipe for Tables 1 to 4 of the attention-guiding paper: find the article that supports a claim.

The data set is Cross-genre-IR. The metric is the mean reciprocal rank (MRR).

Before:   python -m experiments search cross_genre --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train cross_genre --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/cross_genre_search
Device:   a GPU
Minutes:  not run
Expected: not run (the data are not public); the paper's BERT-base has an MRR of 73.18 % without a
          guide and 73.38 % with attention guiding (both guides of the paper)
"""

import dataclasses

from distattn_jax.tasks import ClaimRankingConfig, ClaimRankingData
from experiments.recipes import covid_fact


def get_config() -> ClaimRankingConfig:
    """Return the config of the recipe `covid_fact`, changed to the data set Cross-genre-IR."""
    return dataclasses.replace(
        covid_fact.get_config(),
        name="cross_genre",
        data=ClaimRankingData(dataset="cross_genre", batch_size=12, longest=256),
    )
