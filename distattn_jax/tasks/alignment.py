"""Alignment of translations with their sources: the attention from target words to source words.

The attention of a target token is the cross-attention of the decoder at the position that predicts
this token. Tokens may be parts of words. The attention of a target word is the mean over the tokens
of the word. The attention to a source word is the sum over the tokens of the word. All attention
weights are averaged over heads.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from tokenizers import Tokenizer

from distattn_jax.data import END_ID, END_TOKEN, PADDING_ROW, Ragged
from distattn_jax.models import shift_right
from distattn_jax.tasks.decoding import Tokens, plan_batches

WORD = re.compile(r"\w+|[^\w\s]")  # a word or a punctuation mark


class Alignment(NamedTuple):
    """Attention of a decoder with L layers from T target words to S source words.

    Attributes:
      source: Source words. The last one is the end token.
      target: Target words. The last one is the end token.
      weights: Attention weights of every layer, averaged over heads.
    """

    source: list[str]
    target: list[str]
    weights: Float[np.ndarray, "L T S"]


def find_sharpest_layer(alignments: Sequence[Alignment]) -> int:
    """Return the index of the decoder layer whose attention is most concentrated on single words.

    For each layer, the largest attention weight of every target word is averaged over all target
    words. The layer with the largest average is chosen. In this layer, target words mostly attend
    to the source words that they translate.

    Args:
      alignments: At least one alignment, all by the same model.
    """
    largest = [alignment.weights.max(axis=2) for alignment in alignments]  # each (L, T)
    return int(np.concatenate(largest, axis=1).mean(axis=1).argmax())


def align_words(
    model: Any, tokenizer: Tokenizer, sources: Ragged, translations: Sequence[Tokens]
) -> list[Alignment]:
    """Return the attention from the words of every translation to the words of its source.

    Args:
      model: Translator.
      tokenizer: Tokenizer of both languages.
      sources: Token ids of the source sentences, each with the end token.
      translations: Token ids of the translations, without the end token.
    """
    targets = _append_end(translations)
    alignments: list[Any] = [None] * len(sources)
    rows = zip(sources.split(), targets.split(), strict=True)
    words = [[_split_words(tokenizer, tokens.tolist()) for tokens in pair] for pair in rows]
    for batch in plan_batches(np.maximum(sources.lengths, targets.lengths)):
        weights = _attend(
            model, *sources.pad(batch.rows, batch.length), *targets.pad(batch.rows, batch.length)
        )
        for row, one in zip(batch.rows.tolist(), np.asarray(weights), strict=True):
            if row != PADDING_ROW:
                (source, source_of), (target, target_of) = words[row]
                one = one[:, : len(target_of), : len(source_of)]
                rows_by_word = target_of[None] == np.arange(len(target))[:, None]
                columns_by_word = source_of[:, None] == np.arange(len(source))
                means = rows_by_word / rows_by_word.sum(axis=1, keepdims=True)
                alignments[row] = Alignment(source, target, means @ one @ columns_by_word)
    return alignments


@jax.jit
def _attend(
    model: Any, source: Any, source_lengths: Any, target: Any, target_lengths: Any
) -> jax.Array:
    """Return the attention from target to source tokens, averaged over heads: (B, L, T, S)."""
    inputs = shift_right(target)
    outputs = model(source, source_lengths, inputs, target_lengths, weights=True)
    return outputs.cross_weights.mean(axis=2)


def _split_words(tokenizer: Tokenizer, tokens: Tokens) -> tuple[list[str], np.ndarray]:
    """Return the words of a sentence, and the index of the word that each token belongs to.

    A word is a sequence of letters and digits, or one punctuation mark. A token belongs to the word
    that contains the first character of the token. The last token is the end token, which is a word
    of its own.
    """
    ends = [0, *(len(tokenizer.decode(tokens[: i + 1])) for i in range(len(tokens) - 1))]
    text = tokenizer.decode(tokens[:-1])
    found = list(WORD.finditer(text))
    first_characters = [
        start + len(text[start:]) - len(text[start:].lstrip()) for start in ends[:-1]
    ]
    starts = np.asarray([match.start() for match in found] or [0])
    index = np.searchsorted(starts, first_characters, side="right") - 1
    # If no token begins in a word, such as the second mark of the token "!!", the word becomes part
    # of the word before it.
    used, index = np.unique(np.maximum(index, 0), return_inverse=True)
    bounds = [*(starts[i] for i in used), len(text)]
    words = [text[a:b].strip() for a, b in itertools.pairwise(bounds)]
    return [*words, END_TOKEN], np.append(index, len(words))


def _append_end(sentences: Sequence[Tokens]) -> Ragged:
    """Append the end token to every sentence, and return the sentences as one column."""
    lengths = [len(tokens) + 1 for tokens in sentences]
    values = itertools.chain.from_iterable((*tokens, END_ID) for tokens in sentences)
    return Ragged(np.fromiter(values, np.int32), np.cumsum([0, *lengths], dtype=np.int64))
