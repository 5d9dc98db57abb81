"""Recipes: one module per experiment, whose `get_config` returns the config of the experiment.

The docstring of a recipe states its command, the device, the minutes that the command takes,
and the expected result.
"""

import importlib
from pathlib import Path
from types import ModuleType

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
