"""Targets that are fixed patterns of positions (Deshpande and Narasimhan 2020).

| name | a token attends to | rows without a target |
| --- | --- | --- |
| first | the first token | none |
| following | the token after it, [Next] | the last |
| previous | the token before it | the first |
| period | all periods, equally | all, in a text without one |
| delimiter | all separators, equally | all, in a text without one |

Padding has no target, and is none. They are made where the tokens are, from one small column.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from distattn_jax.guiding.choice import integers
from distattn_jax.guiding.target import Target, shared


def first(tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Target:
    """Every token attends to the first, itself included."""
    return _of_columns(
        jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32) == 0, tokens.shape), lengths
    )


def following(tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Target:
    """Every token but the last attends to the one after it."""
    return _at_distance(1, tokens, lengths)


def previous(tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Target:
    """Every token but the first attends to the one before it."""
    return _at_distance(-1, tokens, lengths)


def period(
    tokens: Int[Array, "B T"], lengths: Int[Array, " B"], *, periods: Sequence[int]
) -> Target:
    """Every token attends to all periods of its text, equally.

    Args:
      tokens: the texts.
      lengths: right padding.
      periods: the tokens that are periods.
    """
    return _of_columns(_is_one_of("periods", tokens, periods), lengths)


def delimiter(
    tokens: Int[Array, "B T"], lengths: Int[Array, " B"], *, delimiters: Sequence[int]
) -> Target:
    """Every token attends to all separators of its text, equally.

    Args:
      tokens: the texts.
      lengths: right padding.
      delimiters: the tokens that are separators.
    """
    return _of_columns(_is_one_of("delimiters", tokens, delimiters), lengths)


def _is_one_of(name: str, tokens: Int[Array, "B T"], wanted: Sequence[int]) -> Bool[Array, "B T"]:
    return jnp.isin(tokens, jnp.asarray(integers(name, wanted), jnp.int32))


def _of_columns(is_wanted: Bool[Array, "B S"], lengths: Int[Array, " B"]) -> Target:
    """All rows share the same keys."""
    batch, keys = is_wanted.shape
    strengths = jnp.broadcast_to(is_wanted[:, None, :], (batch, keys, keys))
    return shared(strengths.astype(jnp.float32), lengths)


def _at_distance(distance: int, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Target:
    """Row i has the one key i + distance."""
    batch, length = tokens.shape
    strengths = jnp.eye(length, k=distance, dtype=jnp.float32)
    return shared(jnp.broadcast_to(strengths[None], (batch, length, length)), lengths)
