"""The recipes: every module beside this one that has a function `get_config()`."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import experiments
from distattn_jax.train import Config
from distattn_jax.train.flags import nearest

DEFAULT = "nearest"


def recipes() -> Iterator[tuple[str, ModuleType]]:
    """Names and modules."""
    for found in pkgutil.iter_modules(experiments.__path__):
        if not (found.ispkg or found.name.startswith("_")):
            module = importlib.import_module(f"experiments.{found.name}")
            if hasattr(module, "get_config"):
                yield found.name, module


def config_of(name: str) -> Config:
    """The configuration of a recipe; an unknown name says which is nearest."""
    known = dict(recipes())
    if name not in known:
        raise SystemExit(f"unknown recipe {name!r}: {nearest(name, known)}")
    return known[name].get_config()
