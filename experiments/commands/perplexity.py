"""Measure language models on texts of other lengths than in training."""

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np
from etils import epath

from distattn_jax.tasks import LanguageModelingConfig, load_config, measure_perplexity
from distattn_jax.tasks.text_lengths import (
    LengthResult,
    count_tokens,
    load_language_modeling,
    results_to_json,
)
from distattn_jax.train import RunError
from distattn_jax.train.members import list_members
from distattn_jax.train.run_files import write_atomically
from experiments.commands._json import add_json_flag, keep_output_for_json, print_json
from experiments.commands.evaluate import format_metrics
from experiments.commands.train import enable_compilation_cache
from experiments.papers.formatting import markdown_table
from experiments.papers.when_to_use.measures import PERPLEXITY_FILE


def main(arguments: Sequence[str]) -> None:
    """Run `perplexity RUN [RUN ...] [--lengths N ...] [--json]`: print and store perplexities."""
    parser = argparse.ArgumentParser(prog="python -m experiments perplexity", description=__doc__)
    add_runs_and_lengths(
        parser,
        "tokens of an example (now: 1, 2, 4 and 8 times the length in training, as far as the "
        "split has so many tokens)",
    )
    parser.add_argument("--split", default="test", help="split of the data set (now: test)")
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="number of predicted tokens (now: all)"
    )
    add_json_flag(parser)
    parsed = parser.parse_args(arguments)
    enable_compilation_cache()
    measured = []
    for path in parsed.runs:
        config = load_config(path)
        if not isinstance(config, LanguageModelingConfig):
            raise RunError(
                f"{path} must be a run on language modeling; got the task {config.task}."
            )
        trained_length = config.data.longest
        with keep_output_for_json(parsed.json):
            lengths = parsed.lengths or choose_lengths(path, parsed.split, parsed.tokens)
            results = measure_perplexity(path, lengths, split=parsed.split, tokens=parsed.tokens)
        content = {
            "split": parsed.split,
            "trained_length": trained_length,
            "lengths": results_to_json(results),
        }
        write_atomically(epath.Path(path) / PERPLEXITY_FILE, json.dumps(content, indent=1))
        measured.append({"run": path, **content})
        if parsed.json:
            continue
        print(
            f"{path}, trained on {trained_length} tokens. Perplexity on {parsed.split} by length:\n"
        )
        columns = {str(length): result.perplexity for length, result in results.items()}
        print(format_metrics(columns, list_members(config), digits=2))
        print(f"\nBy position, mean of all models:\n\n{format_positions(results)}\n")
    if parsed.json:
        print_json({"runs": measured})


def add_runs_and_lengths(parser: argparse.ArgumentParser, explanation: str) -> None:
    """Add `RUN [RUN ...]` and the flag --lengths, with its explanation for --help."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="N", help=explanation)


def choose_lengths(path: str, split: str, tokens: int | None) -> list[int]:
    """Return 1, 2, 4 and 8 times the length in training, without lengths that a split lacks.

    Args:
      path: Folder of a run on language modeling.
      split: Name of the split.
      tokens: Largest number of predicted tokens; None for all tokens of the split.
    """
    task = load_language_modeling(path)
    most = min(count_tokens(task, split), tokens or sys.maxsize)
    trained = task.config.data.longest
    return [trained, *(trained * factor for factor in (2, 4, 8) if trained * factor <= most)]


def format_positions(results: dict[int, LengthResult]) -> str:
    """Return a Markdown table of perplexities, averaged over models.

    There is one row for each length of the texts, and one column for each range of positions.
    """
    starts = max((result.starts for result in results.values()), key=len)
    rows = []
    for length, result in results.items():
        means = [f"{mean:.2f}" for mean in np.mean(result.by_position, axis=0)]
        rows.append([str(length), *means, *[""] * (len(starts) - len(means))])
    return markdown_table(["length", *(f"from {start}" for start in starts)], rows)
