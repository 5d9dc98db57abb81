"""Classes that hold the arguments and the outputs of attention, for every implementation."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.attention.dropout import Dropout
from distattn_jax.attention.variants import Variant


class Attended(NamedTuple):
    """Outputs of attention. Except for `values`, an output that was not requested is None.

    Attributes:
      values: Weighted sum of values for each query, shape (..., T, N, E), in the dtype of `value`.
      received: Attention weights of each key before dropout, summed over the queries, shape
        (..., N, S).
      weights: Attention weights before dropout, shape (..., N, T, S).
      logsumexp: Logarithm of Σ_j exp(score_ij) over the visible keys j of each query i, shape
        (..., N, T). It is -inf for a query without a visible key.
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
      scale: Factor that multiplies the dot products of queries and keys, 1/√H for most variants.
      is_causal: If True, key j is visible to query i only if j <= i + offset.
      window: Pair (left, right). A query attends to keys at most `left` positions before it and at
        most `right` positions after it. None means that keys at all distances are visible.
      aligned: True if the offset is the Python number 0, so that query i and key i have the same
        position.
      received: If True, return the attention weights of each key, summed over the queries.
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


class BlockStart(NamedTuple):
    """Indices of the first example, head, query and key of a block in the whole call.

    Dropout depends on the indices in the whole call.
    """

    example: Int[Array, ""]
    head: Int[Array, ""]
    query: Int[Array, ""]
    key: Int[Array, ""]


class AttentionCall(NamedTuple):
    """Arguments of `attention`, validated and converted to arrays.

    Attributes:
      query: Queries, shape (B, T, N, H).
      key: Keys, shape (B, S, K, H). The number of key heads K divides the number of query heads N.
      value: Values, shape (B, S, K, E).
      variant: Attention variant. Its arrays were converted to float32, or to float64 for float64
        queries.
      mask: True where a query may attend to a key. None means no mask.
      query_lengths: Number of queries of each example before the padding. None means no padding.
      key_lengths: Number of keys of each example before the padding. None means no padding.
      query_segments: Segment number of each query, where a segment is one of the sequences packed
        into a row. A query attends only to keys of its own segment. None means one segment.
      key_segments: Segment number of each key. None if `query_segments` is None.
      offset: Position of the first query minus the position of the first key.
      dropout_rate: Probability of dropping a weight. None disables dropout.
      dropout_words: Two random 32-bit integers that seed the dropout hash. None disables dropout.
      options: Arguments that are Python values.
      block_start: Place of this call in a larger one, if it is one block of a sharded sequence.
        None means the whole call.
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
    block_start: BlockStart | None = None

    @property
    def first_indices(self) -> BlockStart:
        """Indices of the first example, head, query and key. They are 0 unless this is a block."""
        return self.block_start or BlockStart(*[jnp.int32(0)] * 4)

    @property
    def group_size(self) -> int:
        """Number of consecutive query heads that share one key head."""
        return self.query.shape[2] // self.key.shape[2]

    @property
    def has_symbolic_shape(self) -> bool:
        """True if the batch size or a length is a symbolic dimension of `jax.export`."""
        return any(map(is_symbolic_dim, (*self.query.shape, *self.key.shape)))

    def unsupported_dtype_reason(self, *dtypes: str) -> str | None:
        """Return None if query, key and value have the same dtype, and it is one of `dtypes`.

        Otherwise return an error text.
        """
        found = {str(x.dtype) for x in (self.query, self.key, self.value)}
        if len(found) == 1 and found <= {*dtypes}:
            return None
        return f"query, key and value must all be {' or '.join(dtypes)}; got {sorted(found)}"


class Head(NamedTuple):
    """Arguments of `attention` for one head of one example.

    Attributes:
      query: Queries, shape (T, H).
      key: Keys, shape (S, H).
      value: Values, shape (S, E).
      variant: Attention variant. Its arrays have no head axis.
      mask: True where a query may attend to a key. None means no mask.
      query_length: Number of queries before the padding. None means no padding.
      key_length: Number of keys before the padding. None means no padding.
      query_segments: Segment number of each query. None means one segment.
      key_segments: Segment number of each key. None means one segment.
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
