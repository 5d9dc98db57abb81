"""Searches the settings that the paper leaves open, on the validation set alone."""

from collections.abc import Sequence

from distattn_jax.train import GUIDES
from distattn_jax.train.flags import named, parse
from experiments import da, guiding
from experiments.commands.train import run
from experiments.recipes import config_of


def main(arguments: Sequence[str]) -> None:
    """`search RECIPE [--field value ...]`; `train RECIPE --search FOLDER` takes what it finds."""
    if not arguments or arguments[0].startswith("-"):
        print("usage: python -m experiments search RECIPE [--field value ...]")
        raise SystemExit(0 if set(arguments) & {"-h", "--help"} else 2)
    recipe, *flags = arguments
    config = config_of(recipe)
    of_a_guide = any(method in GUIDES for method in config.methods)
    search = guiding.search_of(config) if of_a_guide else da.search_of(config)
    config = parse(search, flags, program=f"python -m experiments search {recipe}")
    run(config, given=named(flags))
