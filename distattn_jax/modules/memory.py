"""Segment memory (Dai et al. 2019, section 3.2): each layer also attends to earlier segments.

The keys and values of a layer come from the memory followed by the inputs, but the queries come
from the inputs alone. No gradient reaches the memory. With M positions in memory, `query_offset` is
M.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class SegmentMemory(NamedTuple):
    """Inputs of each layer at the last M positions, oldest first.

    Attributes:
      states: Inputs of each layer, shape (L, B, M, D).
      filled: True for positions with a token. False for empty positions and for padding.
    """

    states: Float[Array, "L B M D"]
    filled: Bool[Array, "B M"]

    @classmethod
    def empty(
        cls, layers: int, batch: int, length: int, features: int, dtype=jnp.float32
    ) -> "SegmentMemory":
        """Return an empty memory.

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
        """Return the memory with a segment appended and the oldest positions dropped.

        Args:
          states: Inputs of each layer for the T tokens of the segment.
          lengths: Number of valid tokens of each example. None means that all tokens are valid.
        """
        segment, size = states.shape[2], self.filled.shape[1]
        is_token = jnp.ones((states.shape[1], segment), bool)
        if lengths is not None:
            is_token = jnp.arange(segment)[None, :] < lengths[:, None]
        states = jax.lax.stop_gradient(states).astype(self.states.dtype)
        return SegmentMemory(
            jnp.concatenate([self.states, states], axis=2)[:, :, segment:],
            jnp.concatenate([self.filled, is_token], axis=1)[:, segment : segment + size],
        )
