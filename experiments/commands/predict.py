"""Reads texts, one a line, and prints what a model says of each: a label and its probability."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

import jax
import numpy as np

from distattn_jax.data import DataError, Table
from distattn_jax.train import Loaded, load
from experiments.commands.train import keep_compiled_programs

CHUNK = 64  # texts at a time; one where a person types them


def main(arguments: Sequence[str]) -> None:
    """`predict RUN [FILE] [--member I]`."""
    parser = argparse.ArgumentParser(prog="python -m experiments predict", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument("file", nargs="?", help="texts, one a line (now: standard input)")
    parser.add_argument("--member", type=int, help="which of its models (now: the best)")
    given = parser.parse_args(arguments)
    keep_compiled_programs()
    loaded = load(given.run, member=given.member)
    try:
        source = sys.stdin if given.file is None else open(given.file, encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise ValueError(f"file must be one that can be read; got {given.file}: {error}") from None
    with contextlib.nullcontext() if given.file is None else source:
        for said in predictions(loaded, source):
            print(said, flush=True)


def predictions(loaded: Loaded, lines: TextIO) -> Iterator[str]:
    """What the model says of every line; a pair of texts is split by a tab."""
    task, config = loaded.task, loaded.config.data
    if not task.fields:
        raise DataError(f"the task {loaded.config.task} is not about single texts.")
    said = jax.jit(task.outputs)
    size = 1 if lines.isatty() else CHUNK
    while chunk := [line.rstrip("\n") for line in itertools.islice(lines, size)]:
        rows = [_row(line, task.fields) for line in chunk]
        rows += [dict.fromkeys(task.fields, "")] * (size - len(chunk))
        table = Table(task.encoded(rows, task.tokenizer, config))
        longest = max(int(table.lengths(task.by).max()), 1)
        length = min(-(-longest // 8) * 8, task.longest(config) or longest)  # few shapes
        outputs = said(loaded.model, table.take(np.arange(size), length))
        yield from task.said(outputs)[: len(chunk)]


def _row(line: str, fields: tuple[str, ...]) -> dict[str, str]:
    parts = [line] if len(fields) == 1 else line.split("\t")
    if len(parts) != len(fields):
        raise DataError(f"a line must be {' and '.join(fields)}, split by a tab; got {line!r}.")
    return dict(zip(fields, parts, strict=True))
