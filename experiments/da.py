"""What the recipes of the DA-Transformer paper share: sizes, rows of the tables, and the search.

The paper gives 300-wide GloVe vectors, 16 heads of 16, one layer, Adam with 1e-3. It leaves open
dropout, epochs, and where w and v begin and how fast they learn. These are searched for on the
validation set: 12 settings, 3 seeds each. The grid is one for all methods, but without w and v only
3 of the 12 differ, so that DA-Transformer has more tries. Epochs are chosen for each seed by its
validation, after every epoch.
"""

import dataclasses
from typing import Any

from distattn_jax.train import Config, DataConfig, ModelConfig, OptimizerConfig
from experiments.searched import SEARCHED

OURS = "distance_aware"
ROWS = (
    "no_positions",
    "vanilla",
    "relative_position",
    "transformer_xl",
    "adapted",
    OURS,
)
DATA_SETS = {
    "ag": "AG's News",
    "amazon": "Amazon Electronics",
    "sst": "SST",
    "snli": "SNLI",
    "mind": "MIND",
}  # by the recipes of the tables
MAPPINGS = (
    "distance_aware_clip",
    "distance_aware_linear",
    "distance_aware_exponent",
    "distance_aware_sigmoid",
)
ADJUSTMENTS = (
    "distance_aware_late_add",
    "distance_aware_late_multiply",
    "distance_aware_early_add",
)

DROPOUT_RATES = (0.2, 0.35, 0.5)
INITIAL_WEIGHTS = (0.1, 0.5)
DISTANCE_RATES = (1.0, 10.0)
SEARCH_SEEDS = 3


def paper_config(task: str, *, data: DataConfig, **fields: Any) -> Config:
    """The sizes of the paper, for a task of these data."""
    return Config(
        task=task,
        methods=ROWS,
        data=data,
        model=ModelConfig(initial_weight=INITIAL_WEIGHTS[:1]),
        optimizer=OptimizerConfig(learning_rate=(1e-3,)),
        **fields,
    )


def search_of(config: Config) -> Config:
    """The search that comes before a recipe: every setting, few seeds, the test set unread."""
    return dataclasses.replace(
        config,
        name=config.name + SEARCHED,
        seeds=SEARCH_SEEDS,
        model=dataclasses.replace(
            config.model, dropout_rate=DROPOUT_RATES, initial_weight=INITIAL_WEIGHTS
        ),
        optimizer=dataclasses.replace(config.optimizer, distance_rate=DISTANCE_RATES),
        output=dataclasses.replace(config.output, test=False),
    )
