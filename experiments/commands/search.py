"""Searches the settings that the paper leaves open, on the validation set alone."""

from collections.abc import Sequence

from distattn_jax.train.flags import parse
from experiments.commands.train import run
from experiments.da import search_of
from experiments.recipes import config_of


def main(arguments: Sequence[str]) -> None:
    """`search RECIPE [--field value ...]`; `train RECIPE --search FOLDER` takes what it finds."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m experiments search RECIPE [--field value ...]")
        raise SystemExit(0 if set(arguments) & {"-h", "--help"} else 2)
    recipe, *flags = arguments
    config = search_of(config_of(recipe))
    run(parse(config, flags, program=f"python -m experiments search {recipe}"))
