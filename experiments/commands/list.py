"""Names the recipes, and says what each is."""

from collections.abc import Sequence

from experiments.recipes import recipes


def main(arguments: Sequence[str]) -> None:
    """Prints a line for each recipe."""
    if arguments:
        raise SystemExit(f"usage: python -m experiments list; got {' '.join(arguments)!r} as well.")
    known = dict(recipes())
    width = max(map(len, known))
    for name, module in known.items():
        print(f"{name:<{width}}  {(module.__doc__ or '').splitlines()[0]}")
