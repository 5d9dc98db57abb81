"""Measure the best models of a run on one split of its data."""

import argparse
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from etils import epath

from distattn_jax import sharding
from distattn_jax.tasks import load_config, read_split
from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.train import Member, Run, RunError, evaluate
from distattn_jax.train.members import list_members, varied_axes
from distattn_jax.train.options import describe_differences, parse_options, result_options
from distattn_jax.train.results import select_members
from experiments.commands.train import enable_compilation_cache
from experiments.papers.formatting import markdown_table


def main(arguments: Sequence[str]) -> None:
    """Run `evaluate RUN [--split NAME] [--average N] [--option value ...]`: print all metrics."""
    parser = argparse.ArgumentParser(prog="python -m experiments evaluate", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument(
        "--split",
        default="test",
        help="train, validation, test, or another split of the data set, e.g. test_mismatched of "
        "multinli (now: test)",
    )
    add_average_flag(parser)
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
    params = load_parameters(parsed.run, task, average=parsed.average)
    table = read_split(task, parsed.split)
    metrics = evaluate(task, params, table, sharding.make_mesh(1, 1))
    print(f"{parsed.run} on {len(table)} examples of {parsed.split}:\n")
    members = list_members(config)
    print(format_metrics(metrics, members))
    result = Run(epath.Path(parsed.run)).result
    axes = varied_axes(members)
    if result is not None and axes:
        best = members[select_members(result)[0]].setting
        chosen = ", ".join(f"{axis} {best[axis]}" for axis in axes)
        print(f"\nBest on the validation set: {chosen}.")


def add_average_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--average` of commands that use a trained model."""
    parser.add_argument(
        "--average",
        type=int,
        metavar="N",
        help="use the mean of the parameters of the last N checkpoints (now: the parameters that "
        "are best on the validation set)",
    )


def format_metrics(metrics: Mapping[str, np.ndarray], members: Sequence[Member]) -> str:
    """Return a Markdown table of the metrics of all models of a run.

    Each model has a row with its seed and its hyperparameters, as far as these differ between
    models. After the models with equal hyperparameters follows a row with their mean.

    Args:
      metrics: Metrics by name, each of shape (members,).
      members: Seed and hyperparameters of every model. Models with equal hyperparameters are
        adjacent.
    """
    axes = varied_axes(list(members))
    rows = []

    def add_row(title: str, member: Member, models: list[int]) -> None:
        setting = [str(member.setting[axis]) for axis in axes]
        means = [f"{column[models].mean():.4f}" for column in metrics.values()]
        rows.append([title, *setting, *means])

    for _, group in itertools.groupby(range(len(members)), lambda i: members[i].setting):
        models = list(group)
        for i in models:
            add_row(str(members[i].seed), members[i], [i])
        if len(models) > 1:
            add_row("mean", members[models[0]], models)
    return markdown_table(["seed", *axes, *metrics], rows)
