"""Recipes: one module per experiment, whose `get_config` returns the config of the experiment.

The docstring of a recipe states its command, the device, the minutes that the command takes,
and the expected result.
"""

import ast
import difflib
import importlib
from pathlib import Path
from types import ModuleType

DEFAULT = "nearest"


def list_recipes() -> dict[str, str]:
    """Return a dict from the name of each recipe to the first line of its docstring.

    The modules of the recipes are not imported.
    """
    recipes = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if not path.name.startswith("_"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            recipes[path.stem] = docstring.partition("\n")[0]
    return recipes


def load_recipe(name: str) -> ModuleType:
    """Import a recipe. If the name is unknown, exit with a message that suggests a name."""
    known = list_recipes()
    if name not in known:
        similar = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f"did you mean {similar[0]!r}?" if similar else f"known are: {', '.join(known)}."
        raise SystemExit(f"unknown recipe {name!r}: {hint}")
    return importlib.import_module(f"{__name__}.{name}")
