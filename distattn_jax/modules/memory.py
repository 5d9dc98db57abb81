"""Segment memory (Dai et al. 2019, section 3.2): each layer also sees the segment before.

A layer's keys and values come from [memory, inputs], its queries from the inputs alone, and no
gradient reaches the memory. With M remembered positions the call is `query_offset=M`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class SegmentMemory(NamedTuple):
    """What the layers saw, newest last, and which slots hold anything.

    Attributes:
      states: the inputs of every layer.
      filled: False for slots never written, or written by padding.
    """

    states: Float[Array, "L B M D"]
    filled: Bool[Array, "B M"]

    @classmethod
    def empty(
        cls, layers: int, batch: int, length: int, features: int, dtype=jnp.float32
    ) -> "SegmentMemory":
        """A memory of `length` positions in which nothing is remembered yet."""
        states = jnp.zeros((layers, batch, length, features), dtype)
        return cls(states, jnp.zeros((batch, length), bool))

    def after(
        self, states: Float[Array, "L B T D"], lengths: Int[Array, " B"] | None = None
    ) -> "SegmentMemory":
        """The memory once a segment has passed, of which `lengths` tokens were not padding."""
        segment, size = states.shape[2], self.filled.shape[1]
        real = jnp.ones((states.shape[1], segment), bool)
        if lengths is not None:
            real = jnp.arange(segment)[None, :] < lengths[:, None]
        states = jax.lax.stop_gradient(states).astype(self.states.dtype)
        return SegmentMemory(
            jnp.concatenate([self.states, states], axis=2)[:, :, segment:],
            jnp.concatenate([self.filled, real], axis=1)[:, segment : segment + size],
        )
