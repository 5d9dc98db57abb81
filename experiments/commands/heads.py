"""Measure trained heads: distance weight w, sigmoid shape v, pruning, attention to far tokens."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from distattn_jax.tasks import LanguageModelingConfig, read_split
from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.train.run_files import write_atomically
from experiments.commands._json import add_json_flag, keep_output_for_json, print_json
from experiments.commands.perplexity import add_runs_and_lengths
from experiments.commands.train import enable_compilation_cache
from experiments.papers.formatting import format_value, markdown_table, metric_title
from experiments.papers.when_to_use.measures import HEADS_FILE, measure_heads


def main(arguments: Sequence[str]) -> None:
    """Run `heads RUN [RUN ...] [--lengths N ...] [--json]`: print and store measures of heads."""
    parser = argparse.ArgumentParser(prog="python -m experiments heads", description=__doc__)
    add_runs_and_lengths(
        parser,
        "language models: tokens of an example (now: 1, 2 and 4 times the length in training)",
    )
    add_json_flag(parser)
    parsed = parser.parse_args(arguments)
    enable_compilation_cache()
    measured = []
    for path in parsed.runs:
        with keep_output_for_json(parsed.json):
            content = measure_run(path, parsed.lengths)
        measured.append({"run": path, **content})
        if not parsed.json:
            print("\n\n".join([path, *describe(content)]) + "\n")
    if parsed.json:
        print_json({"runs": measured})


def measure_run(path: str, lengths: Sequence[int] | None) -> dict[str, Any]:
    """Measure the heads of a run, store the measures in heads.json, and return them.

    Args:
      path: Folder of the run.
      lengths: Numbers of tokens of the texts of language models. None means 1, 2 and 4 times the
        length in training. Other models ignore the lengths.
    """
    task = load_task(path)
    params = load_parameters(path, task)
    if isinstance(task.config, LanguageModelingConfig):
        lengths = lengths or [task.config.data.longest * factor for factor in (1, 2, 4)]
    validation = read_split(task, "validation")
    content = measure_heads(path, task, params, validation, lengths or ())
    write_atomically(epath.Path(path) / HEADS_FILE, json.dumps(content))
    return content


def describe(content: dict) -> list[str]:
    """Return Markdown tables of the content of heads.json. A cell is a mean over models."""
    parts = []
    if "weight" in content:
        weight, shape = (np.asarray(content[name]) for name in ("weight", "shape"))
        rows = [
            [
                str(layer + 1),
                f"{100 * (weight[:, layer] > 0).mean():.0f}",
                f"{np.abs(weight[:, layer]).mean():.3f}",
                f"{shape[:, layer].mean():.2f}",
            ]
            for layer in range(weight.shape[1])
        ]
        parts.append(
            markdown_table(["layer", "w > 0 (% of heads)", "mean absolute w", "mean v"], rows)
        )
    if "pruning" in content:
        pruning = content["pruning"]
        criterion, whole = pruning["criterion"], float(np.mean(pruning["whole"]))
        rows = [
            [name, *(format_value(criterion, value) for value in np.mean(values, axis=0))]
            for name, values in pruning["orders"].items()
        ]
        counts = [f"without {count} of {pruning['heads']} heads" for count in pruning["counts"]]
        title = (
            f"validation {metric_title(criterion)}, {format_value(criterion, whole)} with all heads"
        )
        parts.append(markdown_table([title, *counts], rows))
    if "far" in content:
        far = content["far"]
        rows = [
            ["all heads", *(f"{100 * np.mean(one['heads']):.1f}" for one in far.values())],
            ["uniform attention", *(f"{100 * one['uniform']:.1f}" for one in far.values())],
        ]
        title = "attention (%) on tokens farther than the length in training"
        parts.append(markdown_table([title, *(f"{length} tokens" for length in far)], rows))
    return parts or ["No measure applies to this run."]
