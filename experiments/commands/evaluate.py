"""Measures the best models of a run on a split of its data."""

import argparse
from collections.abc import Sequence

import numpy as np

from distattn_jax import sharding
from distattn_jax.train import RunError, Trainer, load_config
from distattn_jax.train.flags import differences, parse, to_dict
from distattn_jax.train.members import members_of
from distattn_jax.train.run import MAY_CHANGE, Run, load_best
from distattn_jax.train.tasks import table_of
from experiments.commands.train import keep_compiled_programs
from experiments.papers.formatting import markdown_table


def main(arguments: Sequence[str]) -> None:
    """`evaluate RUN [--split NAME] [--field value ...]`."""
    parser = argparse.ArgumentParser(prog="python -m experiments evaluate", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument(
        "--split",
        default="test",
        help="train, validation, test, or another that the data have, as test_mismatched of "
        "multinli (now: test)",
    )
    given, flags = parser.parse_known_args(arguments)
    saved = load_config(given.run)
    config = parse(saved, flags, program="python -m experiments evaluate RUN")
    changed = differences(to_dict(saved), to_dict(config), ignoring=MAY_CHANGE)
    if changed:
        raise RunError("what a run was trained with cannot be changed:\n  " + "\n  ".join(changed))
    keep_compiled_programs()
    task, params = load_best(given.run)
    table = table_of(config, given.split, tokenizer=task.tokenizer, labels=task.labels)
    task.tables = {"train": table, given.split: table}
    trainer = Trainer(task, config, Run(given.run), sharding.make_mesh(1, 1))
    metrics = trainer.evaluate(params, given.split)
    print(f"{given.run} on {len(table)} examples of {given.split}:\n")
    print(_table(metrics, [member.seed for member in members_of(config)]))


def _table(metrics: dict[str, np.ndarray], seeds: list[int]) -> str:
    columns = list(metrics.values())
    rows = [
        [str(seed), *(f"{column[i]:.4f}" for column in columns)] for i, seed in enumerate(seeds)
    ]
    rows.append(["mean", *(f"{column.mean():.4f}" for column in columns)])
    return markdown_table(["seed", *metrics], rows)
