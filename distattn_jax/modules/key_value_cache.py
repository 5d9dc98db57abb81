"""Cache of projected keys and values, for decoding one token at a time."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from distattn_jax.attention.validation import validate_lengths


class KeyValueCache(NamedTuple):
    """Cached keys and values of the tokens that one layer of a decoder has processed.

    A cache is immutable: `append` returns a new cache. Every example has its own number of tokens,
    so that a batch can contain prompts of different lengths. Use causal attention, which hides the
    entries after the last token of an example.

    Attributes:
      key: Projected keys, with room for S tokens of each example.
      value: Projected values, with room for S tokens of each example.
      lengths: Number of tokens of each example in the cache.
    """

    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K E"]
    lengths: Int[Array, " B"]

    @classmethod
    def empty(
        cls, batch: int, room: int, heads: int, width: int, dtype: DTypeLike
    ) -> "KeyValueCache":
        """Return a cache without tokens.

        Args:
          batch: Number of examples B.
          room: Largest number of tokens S of an example.
          heads: Number of key heads K.
          width: Width H of a head.
          dtype: Dtype of keys and values.
        """
        zeros = jnp.zeros((batch, room, heads, width), dtype)
        return cls(zeros, zeros, jnp.zeros(batch, jnp.int32))

    def append(
        self,
        key: Float[Array, "B T K H"],
        value: Float[Array, "B T K E"],
        lengths: Int[Array, " B"] | None = None,
    ) -> "KeyValueCache":
        """Return a cache with T new tokens appended to each example.

        If the T tokens do not fit after the cached tokens of an example, all keys and values of
        this example become NaN: a compiled program cannot raise an error. Raise a ValueError if T
        is larger than the room of an empty cache.

        Args:
          key: Projected keys of the new tokens.
          value: Projected values of the new tokens.
          lengths: Number of new tokens of each example before the padding, at most T. The next call
            overwrites the padding. None means no padding.
        """
        for name, new, cached in (("key", key, self.key), ("value", value, self.value)):
            if (new.shape[0], *new.shape[2:]) != (cached.shape[0], *cached.shape[2:]):
                raise ValueError(
                    f"{name} must fit into the cache, whose {name}s have the shape "
                    f"{cached.shape}; got shape {new.shape}."
                )
        if value.shape[1] != key.shape[1]:
            raise ValueError(
                f"value must have the {key.shape[1]} tokens of key; got {value.shape[1]}."
            )
        tokens, room = key.shape[1], self.key.shape[1]
        if tokens > room:
            raise ValueError(
                f"key must have at most {room} tokens, the room of the cache; got {tokens}."
            )

        def write(cached: Array, new: Array) -> Array:
            update = jax.vmap(jax.lax.dynamic_update_slice_in_dim, in_axes=(0, 0, 0, None))
            written = update(cached, new.astype(cached.dtype), self.lengths, 0)
            overflows = self.lengths + tokens > room
            return jnp.where(overflows[:, None, None, None], jnp.nan, written)

        added = validate_lengths("lengths", lengths, self.lengths.shape, tokens)
        if added is None:
            added = jnp.full_like(self.lengths, tokens)
        return KeyValueCache(write(self.key, key), write(self.value, value), self.lengths + added)
