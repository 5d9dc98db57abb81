"""Predict a label for each line of text, or the tags of its words."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from distattn_jax.data import DataError, Table, round_length
from distattn_jax.data.files import decode_line
from distattn_jax.tasks import LoadedModel, load
from distattn_jax.tasks.text_attention import UNKNOWN_TOKENS
from distattn_jax.tasks.text_task import PredictingTask, Prediction
from experiments.commands._json import add_json_flag, keep_output_for_json, print_json
from experiments.commands.evaluate import add_average_flag
from experiments.commands.train import enable_compilation_cache

STANDARD_INPUT = "standard input"
COLUMNS = (
    "A tagger prints a line for each word: the word, a tab and its tag; a blank line follows each "
    "sentence. Other models print a line for each text: the label, its probability, the other "
    "labels with their probabilities, and the text, separated by tabs."
)
SHOWN_WORDS = 10  # largest number of unknown words that are named
CHUNK = 64  # texts computed at a time; 1 if a person types them


def main(arguments: Sequence[str]) -> None:
    """Run `predict RUN [FILE] [--member I] [--average N] [--json]`: predict each line of text."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments predict",
        description=f"{__doc__} {COLUMNS}",
    )
    add_model_and_file(parser, "nearest/distance_aware", "a blank line has a blank prediction")
    add_json_flag(parser)
    parsed = parser.parse_args(arguments)
    enable_compilation_cache()
    with open_lines(parsed.file) as lines, keep_output_for_json(parsed.json):
        loaded = load(parsed.run, member=parsed.member, average=parsed.average)
        size = 1 if is_typed(parsed.file) else CHUNK
        unknown: dict[str, None] = {}  # a set that keeps the order
        read = note_unknown_words(loaded, lines, unknown)
        predictions = predict(loaded, read, source=parsed.file or STANDARD_INPUT, size=size)
        found = []
        for number, prediction in enumerate(predictions, start=1):
            if not parsed.json:
                print(prediction.lines if prediction else "", flush=True)
            elif prediction:
                found.append({"line": number, **prediction.values})
    if parsed.json:
        print_json({"run": parsed.run, "task": loaded.config.task, "predictions": found})
    if unknown:
        print(describe_unknown_words(list(unknown)), file=sys.stderr)


def note_unknown_words(
    loaded: LoadedModel, lines: Iterable[str], unknown: dict[str, None]
) -> Iterator[str]:
    """Yield the lines, and add their words outside the vocabulary to the keys of `unknown`.

    A model that reads the spelling of words has no unknown words.
    """
    spelling = getattr(getattr(loaded.config, "model", None), "spelling_features", 0)
    for line in lines:
        if not spelling:
            encoded = loaded.tokenizer.encode(line, add_special_tokens=False)
            for token, (start, end) in zip(encoded.tokens, encoded.offsets, strict=True):
                if token in UNKNOWN_TOKENS:
                    unknown[line[start:end]] = None
        yield line


def describe_unknown_words(words: Sequence[str]) -> str:
    """Return a note that names some of the words that the model does not know."""
    shown = ", ".join(words[:SHOWN_WORDS]) + (", ..." if len(words) > SHOWN_WORDS else "")
    return f"note: words that the model does not know ({len(words)}): {shown}"


def add_model_and_file(parser: argparse.ArgumentParser, example: str, note: str) -> None:
    """Add RUN, FILE, --member and --average, the arguments of commands that read lines of text.

    Args:
      parser: Parser of the command line.
      example: Example of a run, for --help.
      note: Output of the command for a blank line, for --help.
    """
    parser.add_argument("run", help=f"folder of a run, e.g. runs/{example}")
    help_text = f"texts, one on each line (now: {STANDARD_INPUT}); {note}"
    parser.add_argument("file", nargs="?", metavar="FILE", help=help_text)
    parser.add_argument("--member", type=int, help="index of a model of the run (now: the best)")
    add_average_flag(parser)


def is_typed(path: str | None) -> bool:
    """Return True if a person types the lines, so that each line needs an answer at once."""
    return path is None and sys.stdin.isatty()


def predict(
    loaded: LoadedModel, lines: Iterable[str], *, source: str = "lines", size: int = CHUNK
) -> Iterator[Prediction | None]:
    """Yield the prediction for every line, and None for a blank line.

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
        yield from (next(found) if text.strip() else None for _, text in chunk)


def _predict_rows(
    task: PredictingTask, model: Any, rows: list[dict[str, str]], size: int, apply: Any
) -> list[Prediction]:
    """Return the predictions for at most `size` rows. Empty texts fill the batch to `size` rows."""
    table = Table(task.encode(rows + [dict.fromkeys(task.fields, "")] * (size - len(rows))))
    longest = max(int(table.lengths(task.length_columns).max()), 1)
    length = round_length(longest, task.max_length)
    return task.make_predictions(rows, apply(model, table.take(np.arange(size), length)))


@contextlib.contextmanager
def open_lines(path: str | None) -> Iterator[Iterator[str]]:
    """Open a file, and yield an iterator over its decoded lines.

    None means the standard input, which stays open.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = sys.stdin.buffer if path is None else stack.enter_context(open(path, "rb"))
        except OSError as error:
            raise ValueError(f"FILE must be a file that can be read; got {path}: {error}") from None
        source = path or STANDARD_INPUT
        yield (decode_line(raw, f"{source}:{i}", first=i == 1) for i, raw in enumerate(file, 1))


def _parse_line(line: str, fields: tuple[str, ...], location: str) -> dict[str, str]:
    """Return the text fields of a line. `location` is the file and line, for error messages."""
    parts = [line] if len(fields) == 1 else line.split("\t")
    if len(parts) != len(fields):
        raise DataError(
            f"{location}: a line must be {' and '.join(fields)}, split by a tab; got {line[:60]!r}."
        )
    return dict(zip(fields, parts, strict=True))
