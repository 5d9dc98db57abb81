"""Search the learning rate and the dropout rate, which depend on the size of the data set.

The paper publishes its hyperparameters for WMT 2014. Our data sets are a hundred times smaller, and
need other learning rates and dropout rates. The search trains 6 settings with each of four kinds of
positions, side by side: absolute, relative, both and none. One setting is used for all rows of all
tables: the setting with the lowest validation loss, averaged over the four kinds.

An earlier search tried the learning rates 5e-4 and 1.5e-3 and the dropout rates 0.1, 0.3 and 0.5,
with 20 epochs on Multi30k. It selected 1.5e-3 and 0.1 for all kinds, at the edge of its grid. The
search of this module again selects a dropout rate of 0.1.

These learning rates are too large for the medium models: with 3e-3 on Multi30k, all 12 models
diverged before the end of the warm-up. The search of the medium models therefore tries other rates,
with the dropout rate that the search of the small models selected:

    python -m experiments search positions --name multi30k_medium_search --model.layers 4
      --model.features 512 --model.heads 8 --optimizer.learning-rate 3e-4 6e-4 1.2e-3
      --model.dropout-rate 0.1

It selects 1.2e-3 on Multi30k, the edge of the grid, and 6e-4 on LibreOffice help.
"""

import dataclasses
from collections.abc import Mapping

from distattn_jax.models.methods import SAME_AS_KEYS
from distattn_jax.tasks import TranslationConfig
from distattn_jax.train.results import Result
from experiments.papers.shaw.switched import BASE_DISTANCE, SWITCHED

LEARNING_RATES = (1.5e-3, 3e-3)
DROPOUT_RATES = (0.1, 0.2, 0.3)
SEARCHED = ("learning_rate", "dropout_rate")


def search_config(config: TranslationConfig) -> TranslationConfig:
    """Return a config that searches a hyperparameter grid with the model of a recipe.

    The search has one seed and does not evaluate the test set.
    """
    return dataclasses.replace(
        config,
        name=config.name + "_search",
        methods=(SWITCHED,),
        seeds=1,
        model=dataclasses.replace(
            config.model,
            dropout_rate=DROPOUT_RATES,
            key_distance=(-1, BASE_DISTANCE),
            value_distance=(SAME_AS_KEYS,),
            sinusoids=(0, 1),
        ),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=LEARNING_RATES),
        output=dataclasses.replace(config.output, test=False),
    )


def choose_setting(result: Result) -> Mapping[str, float]:
    """Return the learning rate and dropout rate with the lowest mean validation loss.

    The mean is over the models of all kinds of positions (absolute, relative, both and none).

    Args:
      result: Result of a search.
    """
    losses: dict[tuple[float, ...], list[float]] = {}
    for member in result["members"]:
        setting = tuple(member["setting"][name] for name in SEARCHED)
        losses.setdefault(setting, []).append(member["validation"]["loss"])
    best = min(losses, key=lambda setting: sum(losses[setting]) / len(losses[setting]))
    return dict(zip(SEARCHED, best, strict=True))
