"""Arguments and outputs of attention in the form that every implementation receives and returns."""

from typing import NamedTuple

from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.attention.dropout import Dropout
from distattn_jax.attention.variants import Variant


class Attended(NamedTuple):
    """Outputs of attention. `received` and `weights` are None unless requested.

    Attributes:
      values: Weighted sums of values, in the dtype of `value`.
      received: Attention that each key receives, summed over the queries, before dropout.
      weights: Attention weights before dropout.
    """

    values: Float[Array, "*B T N E"]
    received: Float[Array, "*B N S"] | None = None
    weights: Float[Array, "*B N T S"] | None = None


class Options(NamedTuple):
    """Arguments of `attention` that are Python values, fixed when the program is traced.

    Attributes:
      is_causal: If True, key j is visible to query i only if j <= i + offset.
      aligned: True if the offset is the Python number 0, so that query i and key i have the same
        position.
      received: If True, return the attention that each key receives, summed over the queries.
      weights: If True, return the attention weights.
    """

    is_causal: bool
    aligned: bool
    received: bool
    weights: bool


class AttentionCall(NamedTuple):
    """Arguments of `attention`, validated and converted to arrays.

    Attributes:
      query: Queries.
      key: Keys.
      value: Values.
      variant: Attention variant whose arrays are float32 or wider.
      mask: True where a query may attend to a key. None masks no entry.
      query_lengths: Number of queries of each example before the padding. None means no padding.
      key_lengths: Number of keys of each example before the padding. None means no padding.
      offset: Position of the first query minus the position of the first key.
      dropout_rate: Probability of dropping a weight. None disables dropout.
      dropout_words: Random words that seed the dropout hash. None disables dropout.
      options: Arguments that are Python values.
    """

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S N H"]
    value: Float[Array, "B S N E"]
    variant: Variant
    mask: Bool[Array, "#B #N #T #S"] | None
    query_lengths: Int[Array, " B"] | None
    key_lengths: Int[Array, " B"] | None
    offset: Int[Array, "#B"]
    dropout_rate: Float[Array, ""] | None
    dropout_words: UInt32[Array, "2"] | None
    options: Options


class Head(NamedTuple):
    """Arguments of `attention` for one head of one example.

    Attributes:
      query: Queries.
      key: Keys.
      value: Values.
      variant: Attention variant whose arrays have no head axis.
      mask: True where a query may attend to a key. None masks no entry.
      query_length: Number of queries before the padding. None means no padding.
      key_length: Number of keys before the padding. None means no padding.
      offset: Position of the first query minus the position of the first key.
      dropout: Dropout of this head. None disables dropout.
    """

    query: Float[Array, "T H"]
    key: Float[Array, "S H"]
    value: Float[Array, "S E"]
    variant: Variant
    mask: Bool[Array, "#T #S"] | None
    query_length: Int[Array, ""] | None
    key_length: Int[Array, ""] | None
    offset: Int[Array, ""]
    dropout: Dropout | None
