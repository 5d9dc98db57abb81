"""Segment memory (Dai et al. 2019, section 3.2): each layer also attends to earlier segments.

A long text is processed in segments. The queries of a layer come from its inputs for the current
segment. The keys and values come from M stored inputs of earlier segments, the memory, followed by
the inputs for the current segment, so `query_offset` is M. No gradient reaches the memory.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.validation import validate_lengths
from distattn_jax.modules.explicit_mesh import is_explicit, shard_alike


class SegmentMemory(NamedTuple):
    """Stored inputs of each layer for the last M tokens of each example, oldest first.

    The most recent token is at the last of the M positions. If an example has had fewer than M
    tokens, the first positions are empty.

    Attributes:
      states: Inputs of each layer, shape (L, B, M, D).
      filled: True for positions with a token. False for empty positions.
    """

    states: Float[Array, "L B M D"]
    filled: Bool[Array, "B M"]

    @classmethod
    def empty(
        cls, layers: int, batch: int, length: int, features: int, dtype=jnp.float32
    ) -> "SegmentMemory":
        """Return a memory in which all positions are empty.

        Args:
          layers: Number of layers L.
          batch: Number of examples B.
          length: Number of positions M.
          features: Width D of the inputs.
          dtype: Dtype of the states.
        """
        states = jnp.zeros((layers, batch, length, features), dtype)
        return cls(states, jnp.zeros((batch, length), bool))

    def append(
        self, states: Float[Array, "L B T D"], lengths: Int[Array, " B"] | None = None
    ) -> "SegmentMemory":
        """Return a new memory with the tokens of a segment appended and the oldest tokens dropped.

        The padding of a segment is not appended, because it would increase the distance between the
        tokens of this segment and the tokens of the next segment.

        Args:
          states: Inputs of each layer for the T tokens of the segment.
          lengths: Number of tokens of each example before the padding. None means no padding.
        """
        segment, size = states.shape[2], self.filled.shape[1]
        lengths = validate_lengths("lengths", lengths, self.filled.shape[:1], segment)
        states = jax.lax.stop_gradient(states).astype(self.states.dtype)
        states = jnp.concatenate(shard_alike(self.states, states, axis=2), axis=2)
        filled = self.filled
        if is_explicit(states):
            batch = jax.typeof(states).sharding.spec[1]
            filled = jax.sharding.reshard(filled, jax.P(batch, None))
            lengths = None if lengths is None else jax.sharding.reshard(lengths, jax.P(batch))
        filled = jnp.pad(filled, ((0, 0), (0, segment)), constant_values=True)
        if lengths is None:
            return SegmentMemory(states[:, :, segment:], filled[:, segment:])

        @functools.partial(jax.vmap, in_axes=(1, 0, 0), out_axes=(1, 0))
        def last_tokens(states: Array, filled: Array, length: Array) -> tuple[Array, Array]:
            return (
                jax.lax.dynamic_slice_in_dim(states, length, size, axis=1),
                jax.lax.dynamic_slice_in_dim(filled, length, size),
            )

        return SegmentMemory(*last_tokens(states, filled, lengths))
