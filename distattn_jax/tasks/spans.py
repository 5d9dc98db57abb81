"""Find the spans that the tags of words mark, and count the spans, by the rules of conlleval.

A word with the tag `O` is outside of all spans. All other tags consist of a prefix and a type, such
as `B-PER`. The schemes IOB1, IOB2 and IOBES have the same rules. A word starts a span if its tag is
not `O` and one of these conditions holds:

- The prefix of the word is B (begin) or S (single).
- The previous word has another type, or is outside of all spans.
- The prefix of the previous word is E (end) or S.

A span ends before the next start of a span or the next `O`. These are the rules of the script
conlleval of the CoNLL shared tasks. The script also finds spans in tags that violate the scheme.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

OUTSIDE = "O"
PREFIXES = "OBIES"  # The code of a prefix is its index.


class SpanTags(NamedTuple):
    """Prefix and type of every tag of a data set.

    Attributes:
      prefixes: Prefix of each tag, as an index into `PREFIXES`, shape (C,).
      types: Type of each tag, as a number from 1, shape (C,). The tag `O` has the number 0.
    """

    prefixes: Int32[np.ndarray, " C"]
    types: Int32[np.ndarray, " C"]


def parse_tags(tags: Sequence[str]) -> SpanTags | None:
    """Return the prefixes and types of tags, or None if the tags mark no spans.

    Tags mark spans if every tag is `O` or starts with `B-`, `I-`, `E-` or `S-`, and at least one
    tag is not `O`.
    """
    found = [re.fullmatch(r"O|([BIES])-(.+)", tag) for tag in tags]
    if not all(found) or set(tags) <= {OUTSIDE}:
        return None
    parts = [(match[1] or OUTSIDE, match[2] or "") for match in found if match]
    types = sorted({name for _, name in parts if name})
    return SpanTags(
        np.asarray([PREFIXES.index(prefix) for prefix, _ in parts], np.int32),
        np.asarray([types.index(name) + 1 if name else 0 for _, name in parts], np.int32),
    )


def count_spans(
    true: Int[Array, "B T"], predicted: Int[Array, "B T"], valid: Bool[Array, "B T"], tags: SpanTags
) -> dict[str, Int[Array, ""]]:
    """Count the true spans, the predicted spans, and the predicted spans that equal a true span.

    Two spans are equal if they have the same first word, last word and type.

    Args:
      true: Index of the true tag of each word.
      predicted: Index of the predicted tag of each word.
      valid: True for words and False for padding.
      tags: Prefix and type of every tag.

    Returns:
      A dict with the counts `true_spans`, `predicted_spans` and `right_spans`.
    """
    starts, ends, types = _find_spans(true, valid, tags)
    predicted_starts, predicted_ends, predicted_types = _find_spans(predicted, valid, tags)
    right = starts & predicted_starts & (ends == predicted_ends) & (types == predicted_types)
    counts = {"true_spans": starts, "predicted_spans": predicted_starts, "right_spans": right}
    return {name: mask.sum(dtype=jnp.int32) for name, mask in counts.items()}


def _find_spans(
    indices: Int[Array, "B T"], valid: Bool[Array, "B T"], tags: SpanTags
) -> tuple[Bool[Array, "B T"], Int[Array, "B T"], Int[Array, "B T"]]:
    """Find the spans that tags mark.

    Returns:
      Three arrays with one value for each word: True if the word is the first word of a span; the
      position after the last word of the word's span; and the number of the type of this span.
    """
    outside, begin, _, end, single = range(len(PREFIXES))
    prefixes = jnp.where(valid, jnp.asarray(tags.prefixes)[indices], outside)
    types = jnp.where(valid, jnp.asarray(tags.types)[indices], 0)
    before = jnp.pad(prefixes, ((0, 0), (1, 0)), constant_values=outside)[:, :-1]
    type_before = jnp.pad(types, ((0, 0), (1, 0)))[:, :-1]
    starts = (prefixes != outside) & (
        (prefixes == begin)
        | (prefixes == single)
        | (before == end)
        | (before == single)
        | (types != type_before)  # The word before may be outside: its type is 0.
    )
    length = indices.shape[1]
    bounds = jnp.where(starts | (prefixes == outside), jnp.arange(length)[None], length)
    next_bounds = jnp.pad(bounds, ((0, 0), (0, 1)), constant_values=length)[:, 1:]
    return starts, jax.lax.cummin(next_bounds, axis=1, reverse=True), types


def span_metrics(true: int, predicted: int, right: int) -> dict[str, float]:
    """Return precision, recall and F1 over all spans of a split. A ratio of 0 to 0 is 0.

    Args:
      true: Number of true spans.
      predicted: Number of predicted spans.
      right: Number of predicted spans that equal a true span.
    """
    return {
        "f1": 2 * right / max(true + predicted, 1),
        "precision": right / max(predicted, 1),
        "recall": right / max(true, 1),
    }
