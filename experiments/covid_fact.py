"""Attention guiding, in the place of Cross-genre-IR: the evidence of a claim, COVID-Fact.

Before:   python -m experiments search covid_fact --model.pretrained MODEL --data.manual-dir FOLDER
Command:  python -m experiments train covid_fact --model.pretrained MODEL --data.manual-dir FOLDER
          --search runs/covid_fact_search
Device:   a GPU
Minutes:  1 to 3 for six seeds of a guide, MiniLM, an H200 that up to three other runs share
Expected: MiniLM, 5 epochs at 1e-4: MRR 90.6 % without a guide, 89.6 to 91.6 % with one; BM25 83.8 %
"""

from distattn_jax.train import Config
from experiments.guiding import paper_config


def get_config() -> Config:
    """3 seeds; 12 claims with 5 candidates each are 60 texts a batch."""
    return paper_config("covid_fact", epochs=5.0, batch_size=12, seeds=3)
