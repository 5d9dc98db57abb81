"""Translate each line of text."""

import argparse
import contextlib
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from distattn_jax.data import encode
from distattn_jax.tasks import LoadedModel, Translation, load
from distattn_jax.tasks.alignment import Alignment, align_words, find_sharpest_layer
from distattn_jax.tasks.decoding import decode_lines, translate_tokens
from distattn_jax.train import Run, RunError
from distattn_jax.train.journal import last_step
from distattn_jax.train.progress import Progress
from experiments.commands.evaluate import add_decoding_flags, decoding_options
from experiments.commands.predict import add_model_and_file, is_typed, open_lines
from experiments.commands.train import enable_compilation_cache

SHOWN_LINES = 5  # numbers of lines in a message
FEW_STEPS = 1000  # A translator with fewer training steps often predicts the end token alone.
CHUNK = 4096  # number of lines that are sorted by length and translated together


def main(arguments: Sequence[str]) -> None:
    """Run `translate RUN [FILE] [--beam N] [--alignments] ...`: print a translation per line."""
    parsed = make_parser().parse_args(arguments)
    enable_compilation_cache()
    typed = is_typed(parsed.file)
    with open_lines(parsed.file) as opened:
        loaded = load(parsed.run, member=parsed.member, average=parsed.average)
        lines = opened if typed else list(opened)
        translated = translate(
            loaded,
            lines,
            alignments=parsed.alignments,
            layer=None if parsed.layer is None else parsed.layer - 1,
            size=1 if typed else CHUNK,
            total=len(lines) if isinstance(lines, list) and sys.stderr.isatty() else 0,
            steps=count_steps(parsed.run),
            **decoding_options(parsed),
        )
        for text in translated:
            print(text, flush=typed)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments translate", description=__doc__)
    add_model_and_file(parser, "multi30k/relative_position", "a blank line stays blank")
    add_decoding_flags(parser)
    parser.add_argument(
        "--alignments",
        action="store_true",
        help="after each translation, print every target word, the source word with the largest "
        "attention weight, and this weight, averaged over the heads of a decoder layer",
    )
    parser.add_argument(
        "--layer",
        type=int,
        metavar="I",
        help="decoder layer of --alignments; the first layer is 1 (now: the layer whose attention "
        "is most concentrated on single words)",
    )
    return parser


def translate(
    loaded: LoadedModel,
    lines: Iterable[str],
    *,
    alignments: bool = False,
    layer: int | None = None,
    size: int = CHUNK,
    total: int = 0,
    steps: int | None = None,
    **options: Any,
) -> Iterator[str]:
    """Yield the translation of every line, and an empty text for a blank line.

    If the model gives an empty translation, the reason is printed on standard error.

    Args:
      loaded: Trained translator.
      lines: Source sentences.
      alignments: Append lines to each translation: every target word, the source word with the
        largest attention weight, and this weight.
      layer: Index of the decoder layer of the alignments. None chooses the layer whose attention is
        most concentrated in the first `size` lines, and prints the layer on standard error.
      size: Number of lines that are sorted by length and translated together.
      total: Number of lines, to show the progress on standard error. 0 shows no progress.
      steps: Number of training steps of the model, for the reason of an empty translation. None if
        it is unknown.
      **options: Options of `translate_tokens`.
    """
    if not isinstance(loaded.task, Translation):
        raise RunError(f"RUN must have the task translation; got {loaded.config.task}.")
    layers = loaded.task.config.model.layers
    if layer is not None and not 0 <= layer < layers:
        raise ValueError(f"layer (--layer) must be from 1 to {layers}; got {layer + 1}.")
    remaining, done = iter(lines), 0
    while chunk := [line.strip() for line in itertools.islice(remaining, size)]:
        sources = encode(loaded.tokenizer, [line for line in chunk if line])
        with _show_progress(total, done) as progress:
            tokens = translate_tokens(loaded.model, sources, on_batch=progress, **options)
        texts = decode_lines(loaded.tokenizer, tokens)
        numbers = [number for number, line in enumerate(chunk, start=done + 1) if line]
        empty = {numbers[i]: tokens[i] for i, text in enumerate(texts) if not text}
        if empty:
            print(explain_empty(empty, steps), file=sys.stderr)
        done += len(chunk)
        if alignments:
            aligned = align_words(loaded.model, loaded.tokenizer, sources, tokens)
            if layer is None and aligned:
                layer = find_sharpest_layer(aligned)
                print(f"attention of decoder layer {layer + 1}:", file=sys.stderr)
            texts = [
                "\n".join([text, *format_alignment(one, layer or 0)])
                for text, one in zip(texts, aligned, strict=True)
            ]
        found = iter(texts)
        yield from (next(found) if line else "" for line in chunk)


def explain_empty(empty: Mapping[int, Sequence[int]], steps: int | None) -> str:
    """Return a message that says why translations are empty, and what to do.

    Args:
      empty: Dict from the number of each line with an empty translation to the tokens of the
        translation, without the end token.
      steps: Number of training steps of the model. None if it is unknown.
    """
    lines = ", ".join(map(str, list(empty)[:SHOWN_LINES]))
    lines += ", ..." if len(empty) > SHOWN_LINES else ""
    message = f"empty translation of line {lines}: {find_reason(empty.values(), steps)}"
    if steps is not None and steps < FEW_STEPS:
        return message
    return f"{message} A smaller --beam or a larger --length-penalty favours longer translations."


def find_reason(translations: Collection[Sequence[int]], steps: int | None) -> str:
    """Return the reason why translations are empty, in one sentence or two.

    Args:
      translations: Tokens of each empty translation, without the end token.
      steps: Number of training steps of the model. None if it is unknown.
    """
    has_tokens = any(translations)
    reason = "its tokens have no text." if has_tokens else "the model predicts the end token alone."
    if steps is None or steps >= FEW_STEPS:
        return reason
    return f"{reason} The model is hardly trained, after {steps} steps; translators need thousands."


def count_steps(path: str) -> int:
    """Return the number of training steps of a run, or of a folder that `save` wrote."""
    run = Run(epath.Path(path))
    return run.result["steps"] if run.result else last_step(run.path)


def format_alignment(alignment: Alignment, layer: int) -> list[str]:
    """Return a line for each target word: the word, a source word and an attention weight.

    The source word has the largest attention weight of the target word. The end token of the
    translation is left out.

    Args:
      alignment: Attention from the words of a translation to the words of its source.
      layer: Index of the decoder layer.
    """
    pairs = [
        (word, alignment.source[row.argmax()], row.max())
        for word, row in zip(alignment.target[:-1], alignment.weights[layer], strict=False)
    ]
    widths = [max((len(pair[i]) for pair in pairs), default=0) for i in range(2)]
    return [
        f"  {target:<{widths[0]}}  {source:<{widths[1]}}  {weight:.2f}"
        for target, source, weight in pairs
    ]


@contextlib.contextmanager
def _show_progress(total: int, done: int) -> Iterator[Callable[[int], None] | None]:
    """Show the number of translated lines on standard error. Yield a function that updates it.

    Args:
      total: Number of all lines. 0 shows nothing, and yields None.
      done: Number of lines that were translated before.
    """
    if not total:
        yield None
        return
    with Progress(total, unit="lines") as progress:
        progress.update(done, {})
        yield lambda count: progress.update(done + count, {})
