"""Recipes: one module per experiment, whose `get_config` returns the config of the experiment.

The docstring of a recipe states its command, the device, the minutes that the command takes,
and the expected result.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments import summarize_modules

DEFAULT = "nearest"


def list_recipes() -> dict[str, str]:
    """Return a dict from the name of each recipe to the first line of its docstring."""
    return summarize_modules(Path(__file__).parent)


def load_recipe(name: str) -> ModuleType:
    """Import a recipe. If the name is unknown, exit with a message that suggests a name."""
    known = list_recipes()
    if name not in known:
        from distattn_jax.names import suggest  # Listing names needs no library.

        raise SystemExit(f"unknown recipe {name!r}: {suggest(name, known)}")
    return importlib.import_module(f"{__name__}.{name}")


def find_recipe(config: Any) -> ModuleType | None:
    """Return the recipe of an experiment, or None if there is none.

    The recipe has the name of the experiment. If the experiment was given another name, the recipe
    is the first one with the same task and data set.

    Args:
      config: Config of the experiment.
    """
    if config.name in list_recipes():
        return load_recipe(config.name)
    for recipe in map(load_recipe, list_recipes()):
        known = recipe.get_config()
        if (known.task, known.data.dataset) == (config.task, config.data.dataset):
            return recipe
    return None
