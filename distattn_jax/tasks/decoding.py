"""Translation of sentences with a trained model.

Sentences are sorted by length and translated in batches. The program is compiled for each batch
shape, so there should be few different shapes. The length of a batch is therefore a power of two.
All batches of one length have the same number of rows. Padding rows fill the last of these batches.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Int
from tokenizers import Tokenizer

from distattn_jax.data import END_ID, PADDING_ROW, Ragged, decode, encode, iterate_split
from distattn_jax.models.beam_search import BEAM_SIZE, LENGTH_PENALTY
from distattn_jax.tasks.preparation import open_dataset
from distattn_jax.tasks.translation import Translation, find_languages
from distattn_jax.train.members import map_members

SHORTEST = 32  # smallest number of tokens to which sentences are padded
TOKENS_AT_ONCE = 4096  # largest number of source tokens of a batch, padding included
# A translation has at most this number of tokens more than its source, as in Vaswani et al. 2017.
EXTRA_TOKENS = 50

Tokens = list[int]


class Batch(NamedTuple):
    """Sentences that are computed together.

    Attributes:
      rows: Index of each sentence. -1 marks a padding row.
      length: Number of tokens to which the sentences are padded.
    """

    rows: np.ndarray
    length: int


def plan_batches(lengths: Sequence[int] | np.ndarray, tokens: int = TOKENS_AT_ONCE) -> list[Batch]:
    """Divide sentences into batches, the shortest sentences first. Few batch shapes are used.

    Args:
      lengths: Number of tokens of every sentence.
      tokens: Largest number of tokens of a batch, padding included. If a single padded sentence has
        more tokens, it forms a batch of its own.
    """
    order = np.argsort(lengths, kind="stable").tolist()
    batches = []
    for length, group in itertools.groupby(order, lambda i: _round_up(int(lengths[i]), SHORTEST)):
        rows = list(group)
        size = min(max(tokens // length, 1), _round_up(len(rows)))
        for start in range(0, len(rows), size):
            part = np.full(size, PADDING_ROW)
            part[: len(rows[start : start + size])] = rows[start : start + size]
            batches.append(Batch(part, length))
    return batches


def translate_tokens(model: Any, sources: Ragged, **options: Any) -> list[Tokens]:
    """Return the best translation of every sentence, without the end token.

    Args:
      model: Translator.
      sources: Token ids of the source sentences, each with the end token.
      **options: Options of `translate_with_models`.
    """
    return translate_with_models(*_as_stack(model), sources, **options)[0]


def translate_with_models(
    graph: Any,
    params: Any,
    sources: Ragged,
    *,
    beam_size: int = BEAM_SIZE,
    length_penalty: float = LENGTH_PENALTY,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[Tokens]]:
    """Translate every sentence with each of several models.

    Args:
      graph: Graph definition of the translator, the same for all models.
      params: Parameters of the models, with a leading axis over models.
      sources: Token ids of the source sentences, each with the end token.
      beam_size: Number of hypotheses of the beam search. 1 is greedy search.
      length_penalty: Exponent of the length penalty of the beam search.
      on_batch: Callback that receives the number of sentences translated so far, after every batch.

    Returns:
      For each model, a list with the best translation of every sentence, as token ids without the
      end token.
    """
    if beam_size < 1:
        raise ValueError(f"beam_size (--beam) must be at least 1; got {beam_size}.")
    models = len(jax.tree.leaves(params)[0])
    translations: list[list[Tokens]] = [[[] for _ in range(len(sources))] for _ in range(models)]
    done = 0
    for batch in plan_batches(sources.lengths):
        source, lengths = sources.pad(batch.rows, batch.length)
        is_sentence = batch.rows != PADDING_ROW
        found = _translate_batch(
            graph,
            params,
            source,
            lengths,
            max_lengths=np.where(is_sentence, lengths + EXTRA_TOKENS, 1),
            length_penalty=length_penalty,
            beam_size=beam_size,
            longest=batch.length + EXTRA_TOKENS,
        )
        for own, best in zip(translations, np.asarray(found), strict=True):
            for row, tokens in zip(batch.rows[is_sentence], best[is_sentence], strict=True):
                own[row] = list(itertools.takewhile(END_ID.__ne__, tokens.tolist()))
        done += int(is_sentence.sum())
        if on_batch is not None:
            on_batch(done)
    return translations


def _as_stack(model: Any) -> tuple[Any, Any]:
    """Return the graph definition of a model, and its parameters with a leading axis of size 1."""
    graph, params = nnx.split(model)
    return graph, jax.tree.map(lambda leaf: leaf[None], params)


@functools.partial(jax.jit, static_argnames=("graph", "beam_size", "longest"))
def _translate_batch(
    graph: Any, params: Any, source: Array, lengths: Array, **options: Any
) -> Int[Array, "models B longest"]:
    """Return the tokens of the best translations. `Translator.translate` describes the options."""

    def translate(params: Any) -> Array:
        return nnx.merge(graph, params).translate(source, lengths, **options).tokens[:, 0]

    return map_members(translate, in_axes=(0,))(params)


def decode_lines(tokenizer: Tokenizer, translations: Sequence[Tokens]) -> list[str]:
    """Return the text of every translation, without line breaks."""
    return [" ".join(text.split()) for text in decode(tokenizer, translations)]


def translate_sentences(
    model: Any, tokenizer: Tokenizer, sentences: Sequence[str], **options: Any
) -> list[str]:
    """Return the best translation of every sentence. The translation of a blank line is empty.

    Args:
      model: Translator.
      tokenizer: Tokenizer of both languages.
      sentences: Source sentences.
      **options: Options of `translate_with_models`.
    """
    return translate_sentences_with_models(*_as_stack(model), tokenizer, sentences, **options)[0]


def translate_sentences_with_models(
    graph: Any, params: Any, tokenizer: Tokenizer, sentences: Sequence[str], **options: Any
) -> list[list[str]]:
    """Translate every sentence with each of several models.

    The result has, for each model, a list with the best translation of every sentence. The
    translation of a blank line is empty.

    Args:
      graph: Graph definition of the translator, the same for all models.
      params: Parameters of the models, with a leading axis over models.
      tokenizer: Tokenizer of both languages.
      sentences: Source sentences.
      **options: Options of `translate_with_models`.
    """
    filled = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    sources = encode(tokenizer, [sentences[i].strip() for i in filled])
    found = []
    for tokens in translate_with_models(graph, params, sources, **options):
        lines = dict(zip(filled, decode_lines(tokenizer, tokens), strict=True))
        found.append([lines.get(i, "") for i in range(len(sentences))])
    return found


def read_sentences(task: Translation, split: str) -> tuple[list[str], list[str]]:
    """Return the source sentences of a split and their references, as texts."""
    dataset = open_dataset(task.config.data)
    languages = find_languages(task.config.data, dataset)
    rows = [[row[language] for language in languages] for row in iterate_split(dataset, split)]
    sources, references = ([row[i] for row in rows] for i in range(2))
    return sources, references


def _round_up(length: int, minimum: int = 1) -> int:
    """Return the smallest power of two that is at least `length` and `minimum`."""
    return max(minimum, 1 << (length - 1).bit_length())
