"""Predict a label for each line of text, or the tags of its words."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import jax
import numpy as np

from distattn_jax.data import DataError, Table, round_length
from distattn_jax.data.files import decode_line
from distattn_jax.tasks import LoadedModel, load
from distattn_jax.tasks.text_task import PredictingTask
from experiments.commands.evaluate import add_average_flag
from experiments.commands.train import enable_compilation_cache

CHUNK = 64  # texts computed at a time; 1 if a person types them


def main(arguments: Sequence[str]) -> None:
    """Run `predict RUN [FILE] [--member I] [--average N]`: print a prediction for each line."""
    parser = argparse.ArgumentParser(prog="python -m experiments predict", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="texts, one on each line (now: standard input); a blank line has a blank prediction",
    )
    parser.add_argument("--member", type=int, help="index of one of its models (now: the best)")
    add_average_flag(parser)
    parsed = parser.parse_args(arguments)
    enable_compilation_cache()
    source = parsed.file or "standard input"
    typed = parsed.file is None and sys.stdin.isatty()
    with open_texts(parsed.file) as file:
        lines = (
            decode_line(raw, f"{source}:{i}", first=i == 1) for i, raw in enumerate(file, start=1)
        )
        loaded = load(parsed.run, member=parsed.member, average=parsed.average)
        for prediction in predict(loaded, lines, source=source, size=1 if typed else CHUNK):
            print(prediction, flush=True)


def predict(
    loaded: LoadedModel, lines: Iterable[str], *, source: str = "lines", size: int = CHUNK
) -> Iterator[str]:
    """Yield the prediction for every line, and an empty text for a blank line.

    Args:
      loaded: Trained model.
      lines: Texts. In tasks on pairs, a tab separates the two texts.
      source: Name of the file of the texts, for error messages.
      size: Number of texts computed at a time.
    """
    task = loaded.task
    if not isinstance(task, PredictingTask):
        raise DataError(f"the task {loaded.config.task} does not read single lines of text.")
    apply = jax.jit(task.apply)
    numbered = enumerate((line.rstrip("\r\n") for line in lines), start=1)
    while chunk := list(itertools.islice(numbered, size)):
        rows = [
            _parse_line(text, task.fields, f"{source}:{i}") for i, text in chunk if text.strip()
        ]
        found = iter(_predict_rows(task, loaded.model, rows, size, apply) if rows else ())
        yield from (next(found) if text.strip() else "" for _, text in chunk)


def _predict_rows(
    task: PredictingTask, model: Any, rows: list[dict[str, str]], size: int, apply: Any
) -> list[str]:
    """Return the predictions for at most `size` rows. Batches are filled to `size` rows."""
    table = Table(task.encode(rows + [dict.fromkeys(task.fields, "")] * (size - len(rows))))
    longest = max(int(table.lengths(task.length_columns).max()), 1)
    length = round_length(longest, task.max_length)
    return task.format_predictions(apply(model, table.take(np.arange(size), length)))[: len(rows)]


def open_texts(path: str | None) -> contextlib.AbstractContextManager[BinaryIO]:
    """Open a file of texts for reading bytes. None means the standard input, which stays open."""
    if path is None:
        return contextlib.nullcontext(sys.stdin.buffer)
    try:
        return open(path, "rb")
    except OSError as error:
        raise ValueError(f"FILE must be a file that can be read; got {path}: {error}") from None


def _parse_line(line: str, fields: tuple[str, ...], location: str) -> dict[str, str]:
    """Return the text fields of a line. `location` is the file and line, for error messages."""
    parts = [line] if len(fields) == 1 else line.split("\t")
    if len(parts) != len(fields):
        raise DataError(
            f"{location}: a line must be {' and '.join(fields)}, split by a tab; got {line[:60]!r}."
        )
    return dict(zip(fields, parts, strict=True))
