"""Arguments and outputs of attention in the form that every implementation receives and returns."""

import dataclasses
from typing import NamedTuple

import jax
from jax.export import is_symbolic_dim
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.attention.dropout import Dropout
from distattn_jax.attention.variants import Variant


class Attended(NamedTuple):
    """Outputs of attention. All outputs but `values` are None unless requested.

    Attributes:
      values: Weighted sums of values, in the dtype of `value`.
      received: Attention that each key receives, summed over the queries, before dropout.
      weights: Attention weights before dropout.
      logsumexp: Logarithm of Σ_j exp(score_ij) over the visible keys j of each query i. It is -inf
        for a query without a visible key.
    """

    values: Float[Array, "*B T N E"]
    received: Float[Array, "*B N S"] | None = None
    weights: Float[Array, "*B N T S"] | None = None
    logsumexp: Float[Array, "*B N T"] | None = None


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Options:
    """Arguments of `attention` that are Python values, fixed when the program is traced.

    Attributes:
      scale: Factor of the products of queries and keys, 1/√H for most variants.
      is_causal: If True, key j is visible to query i only if j <= i + offset.
      window: Largest number of positions (left, right) by which a visible key may be before and
        after the query. None does not limit the distance.
      aligned: True if the offset is the Python number 0, so that query i and key i have the same
        position.
      received: If True, return the attention that each key receives, summed over the queries.
      weights: If True, return the attention weights.
      logsumexp: If True, return the logsumexp of the scores of each query.
    """

    scale: float
    is_causal: bool
    window: tuple[int, int] | None
    aligned: bool
    received: bool
    weights: bool
    logsumexp: bool


class AttentionCall(NamedTuple):
    """Arguments of `attention`, validated and converted to arrays.

    Attributes:
      query: Queries.
      key: Keys. The number of key heads K is N or a divisor of N.
      value: Values.
      variant: Attention variant whose arrays are float32 or wider.
      mask: True where a query may attend to a key. None masks no entry.
      query_lengths: Number of queries of each example before the padding. None means no padding.
      key_lengths: Number of keys of each example before the padding. None means no padding.
      query_segments: Segment of each query. A key is visible only to queries of its own segment.
        None means that all queries and keys belong to one segment.
      key_segments: Segment of each key. None if `query_segments` is None.
      offset: Position of the first query minus the position of the first key.
      dropout_rate: Probability of dropping a weight. None disables dropout.
      dropout_words: Random words that seed the dropout hash. None disables dropout.
      options: Arguments that are Python values.
    """

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K E"]
    variant: Variant
    mask: Bool[Array, "#B #N #T #S"] | None
    query_lengths: Int[Array, " B"] | None
    key_lengths: Int[Array, " B"] | None
    query_segments: Int[Array, "B T"] | None
    key_segments: Int[Array, "B S"] | None
    offset: Int[Array, "#B"]
    dropout_rate: Float[Array, ""] | None
    dropout_words: UInt32[Array, "2"] | None
    options: Options

    @property
    def group_size(self) -> int:
        """Number of consecutive query heads that share one key head."""
        return self.query.shape[2] // self.key.shape[2]

    @property
    def has_symbolic_shape(self) -> bool:
        """True if `jax.export` exports the call for a batch or a length that is not yet known."""
        return any(map(is_symbolic_dim, (*self.query.shape, *self.key.shape)))

    def unsupported_dtype_reason(self, *dtypes: str) -> str | None:
        """Return None if query, key and value have one of the dtypes, otherwise an error text."""
        found = {str(x.dtype) for x in (self.query, self.key, self.value)}
        if len(found) == 1 and found <= {*dtypes}:
            return None
        return f"query, key and value must all be {' or '.join(dtypes)}; got {sorted(found)}"


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
      query_segments: Segment of each query. None means one segment.
      key_segments: Segment of each key. None means one segment.
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
    query_segments: Int[Array, " T"] | None
    key_segments: Int[Array, " S"] | None
    offset: Int[Array, ""]
    dropout: Dropout | None
