"""List the recipes."""

from collections.abc import Sequence

from experiments.recipes import list_recipes


def main(arguments: Sequence[str]) -> None:
    """Print the name and the summary of each recipe."""
    if arguments:
        raise SystemExit(f"usage: python -m experiments list; got {' '.join(arguments)!r} as well.")
    recipes = list_recipes()
    width = max(map(len, recipes))
    for name, summary in recipes.items():
        print(f"{name:<{width}}  {summary}")
