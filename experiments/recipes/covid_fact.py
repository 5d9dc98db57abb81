"""Recipe for attention guiding on COVID-Fact: find the evidence for a claim.

COVID-Fact replaces Cross-genre-IR, a data set of the attention-guiding paper that is not public.
The metric is the mean reciprocal rank (MRR).

Before:   python -m experiments search covid_fact --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train covid_fact --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/covid_fact_search
Device:   a GPU
Minutes:  1 to 3 to train MiniLM with one guide and six seeds, on one H200 shared with other runs
Expected: MiniLM, trained for 5 epochs with learning rate 1e-4, has an MRR of 90.6 % without a guide
          and 89.6 to 91.6 % with a guide; BM25 has 83.8 %
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
