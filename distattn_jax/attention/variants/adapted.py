"""Adapted attention (Yan et al. 2019, "TENER", section 3.2).

    score_ij = (q_i + content_bias) · k_j + (q_i + position_bias) · r_{i-j}

r_t is the sinusoid of width H, neither projected nor scaled; the paper calls the biases u and v.
Since sin(i-j) and cos(i-j) expand into products, this is plain attention in disguise: with
(a, b) = q_i + position_bias split in halves,

    (a, b) · r_{i-j} = (a sin i + b cos i, b sin i - a cos i) · (cos j, sin j)

so query and key become 2H wide, and any kernel for dot-product attention serves.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.variants.sinusoid import angles, sinusoid
from distattn_jax.attention.variants.variant import Variant, product, variant


@variant
class Adapted(Variant):
    """Unscaled attention by content and by sinusoids of the signed relative position.

    Attributes:
      content_bias: u, what every query asks of content.
      position_bias: v, what every query asks of position.
    """

    content_bias: Float[Array, "#N H"]
    position_bias: Float[Array, "#N H"]

    def scores(self, query, key, relative_positions):
        related = sinusoid(relative_positions.reshape(-1), query.shape[-1], query.dtype)
        related = related.reshape(*relative_positions.shape, -1)  # (T, S, H)
        content = product(query + self.content_bias[None], key)
        return content + jnp.einsum("th,tsh->ts", query + self.position_bias[None], related)

    def prepare(self, query, key, offset):
        width, dtype = query.shape[-1], self.position_bias.dtype
        here = angles(offset + jnp.arange(query.shape[0], dtype=jnp.int32), width, dtype)
        there = angles(jnp.arange(key.shape[0], dtype=jnp.int32), width, dtype)
        a, b = jnp.split(query + self.position_bias[None], 2, axis=-1)
        turned = [
            query + self.content_bias[None],
            a * jnp.sin(here) + b * jnp.cos(here),
            b * jnp.sin(here) - a * jnp.cos(here),
        ]
        sides = [key.astype(dtype), jnp.cos(there), jnp.sin(there)]
        return jnp.concatenate(turned, axis=-1), jnp.concatenate(sides, axis=-1)

    def block_scores(self, query, prepared, offset, start):
        return product(query, prepared)

    def as_dot_product(self, query, key, offset):
        query, key = self.prepare(query, key, offset)
        return query * math.sqrt(query.shape[-1]), key

    def check(self, heads, width, value_width):
        super().check(heads, width, value_width)
        if width % 2:
            raise ValueError(
                "Adapted needs query and key of even width (a sine and a cosine per frequency); "
                f"got width {width}."
            )
        for name in ("content_bias", "position_bias"):
            leaf = getattr(self, name)
            if leaf.shape[1:] != (width,):
                raise ValueError(
                    f"Adapted.{name} must have shape (heads or 1, {width}); got {leaf.shape}."
                )
