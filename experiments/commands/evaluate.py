"""Measure the best models of a run on one split of its data."""

import argparse
from collections.abc import Sequence

import numpy as np

from distattn_jax import sharding
from distattn_jax.tasks import load_config, read_split
from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.train import RunError, evaluate
from distattn_jax.train.members import list_members
from distattn_jax.train.options import describe_differences, parse_options, result_options
from experiments.commands.train import enable_compilation_cache
from experiments.papers.formatting import markdown_table


def main(arguments: Sequence[str]) -> None:
    """Run `evaluate RUN [--split NAME] [--option value ...]`: print the metrics of all models."""
    parser = argparse.ArgumentParser(prog="python -m experiments evaluate", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument(
        "--split",
        default="test",
        help="train, validation, test, or another split of the data set, e.g. test_mismatched of "
        "multinli (now: test)",
    )
    parsed, flags = parser.parse_known_args(arguments)
    saved = load_config(parsed.run)
    config = parse_options(saved, flags, program="python -m experiments evaluate RUN")
    changed = describe_differences(result_options(saved), result_options(config))
    if changed:
        raise RunError(
            "options that a run was trained with cannot be changed:\n  " + "\n  ".join(changed)
        )
    enable_compilation_cache()
    task = load_task(parsed.run, config)
    params, table = load_parameters(parsed.run, task), read_split(task, parsed.split)
    metrics = evaluate(task, params, table, sharding.make_mesh(1, 1))
    print(f"{parsed.run} on {len(table)} examples of {parsed.split}:\n")
    print(_format_table(metrics, [member.seed for member in list_members(config)]))


def _format_table(metrics: dict[str, np.ndarray], seeds: list[int]) -> str:
    columns = list(metrics.values())
    rows = [
        [str(seed), *(f"{column[i]:.4f}" for column in columns)] for i, seed in enumerate(seeds)
    ]
    rows.append(["mean", *(f"{column.mean():.4f}" for column in columns)])
    return markdown_table(["seed", *metrics], rows)
