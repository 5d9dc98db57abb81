"""Attention guiding, instead of Cross-genre-IR: the evidence for a claim. COVID-Fact, MRR.

Before:   python -m experiments search covid_fact --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train covid_fact --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/covid_fact_search
Device:   a GPU
Minutes:  1 to 3 for six seeds of one guide with MiniLM, on one H200 shared with other runs
Expected: with MiniLM, 5 epochs at 1e-4, MRR 90.6 % without a guide and 89.6 to 91.6 % with one;
          BM25 has 83.8 %
"""

from distattn_jax.tasks import ClaimRankingConfig, ClaimRankingData
from experiments.recipes.multinli import GUIDING, METHODS, OPTIMIZER


def get_config() -> ClaimRankingConfig:
    """Return the config, with 3 seeds. A batch has 12 claims with 5 candidates each: 60 texts."""
    return ClaimRankingConfig(
        name="covid_fact",
        methods=METHODS,
        seeds=3,
        epochs=5.0,
        data=ClaimRankingData(dataset="covid_fact", batch_size=12, longest=256),
        guiding=GUIDING,
        optimizer=OPTIMIZER,
    )
