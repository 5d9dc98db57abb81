"""Reads texts, one a line, and prints the label of each and how probable it is."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

import jax
import numpy as np

from distattn_jax.data import encode
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
        for label, probability in predictions(loaded, source):
            print(f"{label}\t{probability:.4f}", flush=True)


def predictions(loaded: Loaded, lines: TextIO) -> Iterator[tuple[str, float]]:
    """The label of every line, and its probability."""

    @jax.jit
    def probabilities(tokens, lengths):
        return jax.nn.softmax(loaded.model(tokens, lengths).logits)

    size = 1 if lines.isatty() else CHUNK
    longest = loaded.config.data.longest
    while chunk := [line.rstrip("\n") for line in itertools.islice(lines, size)]:
        texts = encode(loaded.tokenizer, chunk + [""] * (size - len(chunk)))
        length = min(-(-max(int(texts.lengths.max()), 1) // 8) * 8, longest)  # few shapes
        chances = np.asarray(probabilities(*texts.padded(np.arange(size), length)))
        for row in chances[: len(chunk)]:
            best = int(row.argmax())
            yield loaded.labels[best], float(row[best])
