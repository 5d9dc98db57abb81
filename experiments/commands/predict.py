"""Predict a label for each line of text."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

import jax
import numpy as np

from distattn_jax.data import DataError, Table, round_length
from distattn_jax.tasks import LoadedModel, load
from distattn_jax.tasks.text_task import PredictingTask
from experiments.commands.train import enable_compilation_cache

CHUNK = 64  # texts computed at a time; 1 if a person types them


def main(arguments: Sequence[str]) -> None:
    """Run `predict RUN [FILE] [--member I]`: print a prediction for each line of a file."""
    parser = argparse.ArgumentParser(prog="python -m experiments predict", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument("file", nargs="?", help="texts, one on each line (now: standard input)")
    parser.add_argument("--member", type=int, help="index of one of its models (now: the best)")
    parsed = parser.parse_args(arguments)
    enable_compilation_cache()
    loaded = load(parsed.run, member=parsed.member)
    try:
        source = sys.stdin if parsed.file is None else open(parsed.file, encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise ValueError(f"file must be one that can be read; got {parsed.file}: {error}") from None
    with contextlib.nullcontext() if parsed.file is None else source:
        for prediction in predict(loaded, source):
            print(prediction, flush=True)


def predict(loaded: LoadedModel, lines: TextIO) -> Iterator[str]:
    """Yield the prediction for every line. In tasks on pairs, a tab separates the two texts."""
    task = loaded.task
    if not isinstance(task, PredictingTask):
        raise DataError(f"the task {loaded.config.task} does not read single lines of text.")
    apply = jax.jit(task.apply)
    size = 1 if lines.isatty() else CHUNK
    while chunk := [line.rstrip("\n") for line in itertools.islice(lines, size)]:
        rows = [_parse_line(line, task.fields) for line in chunk]
        rows += [dict.fromkeys(task.fields, "")] * (size - len(chunk))
        table = Table(task.encode(rows))
        longest = max(int(table.lengths(task.length_columns).max()), 1)
        length = round_length(longest, task.max_length)
        outputs = apply(loaded.model, table.take(np.arange(size), length))
        yield from task.format_predictions(outputs)[: len(chunk)]


def _parse_line(line: str, fields: tuple[str, ...]) -> dict[str, str]:
    parts = [line] if len(fields) == 1 else line.split("\t")
    if len(parts) != len(fields):
        raise DataError(f"a line must be {' and '.join(fields)}, split by a tab; got {line!r}.")
    return dict(zip(fields, parts, strict=True))
