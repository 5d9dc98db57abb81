"""What the recipes of the attention-guiding paper share: rows of the tables, and the search.

The paper (Wang et al. 2022, section 3.3) gives length 256, Adam with 1e-5, and 5, 20 and 5 epochs
on MultiNLI, MedNLI and Cross-genre-IR. It searches alpha and beta of MDG and PDG among 0.1, 0.01,
0.001 and 0.0001, and does not say how it weighs the other guides. These are searched for on the
validation set, 3 seeds each: 16 settings of AG, 4 of each guide with one weight, 1 without a guide.
So AG has more tries; its 48 models are computed 12 at a time. Epochs are chosen for each seed by
its validation, after every epoch.

1e-5 is the paper's rate for whole data sets. Where only a part of one is at hand, the rate is
searched for first, on the validation set, without a guide, and is then the same for all:

    search RECIPE --methods none --name RECIPE_rates --optimizer.learning-rate 1e-5 3e-5 1e-4 3e-4

Figures 3 and 6 are sweeps with the weights that the search found:

    train multinli --methods ag mdg pdg --guiding.layer 0 1 2 3 4 5 --name multinli_layers ...
    train multinli --methods none ag mdg pdg --data.share 0.2 --name multinli_share_20 ...
"""

import dataclasses
from typing import Any

from distattn_jax.train import Config, DataConfig, GuidingConfig, ModelConfig, OptimizerConfig
from experiments.searched import SEARCHED

ABLATION = ("none", "ag", "mdg", "pdg")
PATTERNS = ("first", "next", "previous", "period", "delimiter")
# The guides that need nothing but the data. The other two need a file each: --methods dependency
# --data.parses FOLDER, and --methods word_similarity --data.vectors GLOVE.
METHODS = (*ABLATION, *PATTERNS, "pmi")

PAPERS_RATE = 1e-5
MDG_AND_PDG_WEIGHTS = (1e-1, 1e-2, 1e-3, 1e-4)
OTHER_WEIGHTS = (1.0, 1e-1, 1e-2, 1e-3)
SEARCH_SEEDS, SEARCH_AT_ONCE = 3, 12
RATES = "_rates"  # ends the name of an experiment that searches the learning rate


def paper_config(task: str, *, epochs: float, batch_size: int = 64, **fields: Any) -> Config:
    """The settings of the paper, for a task of this name."""
    return Config(
        name=task,
        task=task,
        methods=METHODS,
        epochs=epochs,
        data=DataConfig(batch_size=batch_size, longest=256),
        model=ModelConfig(dropout_rate=(0.1,)),
        guiding=GuidingConfig(alpha=(0.01,), beta=(0.01,), gamma=(0.1,)),
        optimizer=OptimizerConfig(learning_rate=(PAPERS_RATE,)),
        **fields,
    )


def search_of(config: Config) -> Config:
    """The search that comes before a recipe: every weight, few seeds, the test set unread."""
    return dataclasses.replace(
        config,
        name=config.name + SEARCHED,
        seeds=SEARCH_SEEDS,
        guiding=dataclasses.replace(
            config.guiding,
            alpha=MDG_AND_PDG_WEIGHTS,
            beta=MDG_AND_PDG_WEIGHTS,
            gamma=OTHER_WEIGHTS,
        ),
        mesh=dataclasses.replace(config.mesh, at_once=SEARCH_AT_ONCE),
        output=dataclasses.replace(config.output, test=False),
    )
