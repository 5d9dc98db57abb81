"""Attention targets that are fixed patterns of positions (Deshpande and Narasimhan 2020).

| function | each token attends to | tokens without a target |
| --- | --- | --- |
| first_token | the first token | - |
| next_token | the token after it | the last |
| previous_token | the token before it | the first |
| period | all periods, equally | all, in a text without periods |
| delimiter | all delimiters, equally | all, in a text without delimiters |

Padding tokens have no target, and no token attends to padding. Targets are computed on the device
from token ids.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from distattn_jax.guiding.arguments import check_integers
from distattn_jax.guiding.target import Target, make_target


def first_token(tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Target:
    """Return the attention target in which each token attends to the first token of its text.

    Args:
      tokens: Token ids. Only their shape is used.
      lengths: Number of valid tokens of each text. The rest is padding.
    """
    is_first = jnp.arange(tokens.shape[1], dtype=jnp.int32) == 0
    return _make_key_target(jnp.broadcast_to(is_first, tokens.shape), lengths)


def next_token(tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Target:
    """Return the attention target in which each token attends to the token after it.

    The last token of a text has no target.

    Args:
      tokens: Token ids. Only their shape is used.
      lengths: Number of valid tokens of each text. The rest is padding.
    """
    return _make_distance_target(1, tokens, lengths)


def previous_token(tokens: Int[Array, "B T"], lengths: Int[Array, " B"]) -> Target:
    """Return the attention target in which each token attends to the token before it.

    The first token of a text has no target.

    Args:
      tokens: Token ids. Only their shape is used.
      lengths: Number of valid tokens of each text. The rest is padding.
    """
    return _make_distance_target(-1, tokens, lengths)


def period(
    tokens: Int[Array, "B T"], lengths: Int[Array, " B"], *, periods: Sequence[int]
) -> Target:
    """Return the attention target in which tokens attend equally to all periods of their text.

    The tokens of a text without periods have no target.

    Args:
      tokens: Token ids.
      lengths: Number of valid tokens of each text. The rest is padding.
      periods: Token ids of periods.
    """
    return _make_key_target(_is_any_of("periods", tokens, periods), lengths)


def delimiter(
    tokens: Int[Array, "B T"], lengths: Int[Array, " B"], *, delimiters: Sequence[int]
) -> Target:
    """Return the attention target in which tokens attend equally to all delimiters of their text.

    The tokens of a text without delimiters have no target.

    Args:
      tokens: Token ids.
      lengths: Number of valid tokens of each text. The rest is padding.
      delimiters: Token ids of delimiters such as [SEP].
    """
    return _make_key_target(_is_any_of("delimiters", tokens, delimiters), lengths)


def _is_any_of(name: str, tokens: Int[Array, "B T"], ids: Sequence[int]) -> Bool[Array, "B T"]:
    """Return a mask that is True for the tokens whose id is one of `ids`.

    Args:
      name: Name of the argument that contains the ids, for error messages.
      tokens: Token ids.
      ids: At least one token id.
    """
    return jnp.isin(tokens, jnp.asarray(check_integers(name, ids), jnp.int32))


def _make_key_target(is_target: Bool[Array, "B S"], lengths: Int[Array, " B"]) -> Target:
    """Return the attention target in which all queries attend equally to the same keys.

    Args:
      is_target: True for the keys that the queries attend to.
      lengths: Number of valid tokens of each text. The rest is padding.
    """
    batch, keys = is_target.shape
    scores = jnp.broadcast_to(is_target[:, None, :], (batch, keys, keys))
    return make_target(scores.astype(jnp.float32), lengths)


def _make_distance_target(
    distance: int, tokens: Int[Array, "B T"], lengths: Int[Array, " B"]
) -> Target:
    """Return the attention target in which query i attends to key i + distance."""
    batch, length = tokens.shape
    scores = jnp.eye(length, k=distance, dtype=jnp.float32)
    return make_target(jnp.broadcast_to(scores[None], (batch, length, length)), lengths)
