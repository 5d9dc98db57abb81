"""Adapted attention (Yan et al. 2019, "TENER", section 3.2).

    score_ij = (q_i + content_bias) · k_j + (q_i + position_bias) · r_{i-j}

r_t is the sinusoidal embedding of t, of width H. It is neither projected nor scaled. The paper
calls the biases u and v.

The scores are dot products of queries and keys of width 2H, because sin(i-j) and cos(i-j) expand
into products. If (a, b) are the two halves of q_i + position_bias, then, for each frequency,

    (a, b) · r_{i-j} = (a sin i + b cos i, b sin i - a cos i) · (cos j, sin j)

Any kernel for dot-product attention can therefore compute this variant.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.variants.sinusoid import angles, sinusoid
from distattn_jax.attention.variants.variant import Variant, product, variant


@variant
class Adapted(Variant):
    """Adapted attention (TENER): q·k plus q·r, where r is a sinusoid of i - j. No factor 1/√H.

    Attributes:
      content_bias: Vector that is added to every query before its dot product with a key.
      position_bias: Vector that is added to every query before its dot product with a sinusoid.
    """

    content_bias: Float[Array, "#N H"]
    position_bias: Float[Array, "#N H"]

    appends_constants = True

    def default_scale(self, width):
        return 1.0

    def scores(self, query, key, relative_positions, scale):
        sinusoids = sinusoid(relative_positions.reshape(-1), query.shape[-1], query.dtype)
        sinusoids = sinusoids.reshape(*relative_positions.shape, -1)  # (T, S, H)
        content = product(query + self.content_bias[None], key)
        position = jnp.einsum("th,tsh->ts", query + self.position_bias[None], sinusoids)
        return scale * (content + position)

    def prepare(self, query, key, offset):
        width, dtype = query.shape[-1], self.position_bias.dtype
        query_positions = offset + jnp.arange(query.shape[0], dtype=jnp.int32)
        query_angles = angles(query_positions, width, dtype)
        key_angles = angles(jnp.arange(key.shape[0], dtype=jnp.int32), width, dtype)
        a, b = jnp.split(query + self.position_bias[None], 2, axis=-1)
        query_parts = [
            query + self.content_bias[None],
            a * jnp.sin(query_angles) + b * jnp.cos(query_angles),
            b * jnp.sin(query_angles) - a * jnp.cos(query_angles),
        ]
        key_parts = [key.astype(dtype), jnp.cos(key_angles), jnp.sin(key_angles)]
        return jnp.concatenate(query_parts, axis=-1), jnp.concatenate(key_parts, axis=-1)

    def block_scores(self, query, prepared, offset, start, scale):
        return scale * product(query, prepared)

    def as_dot_product(self, query, key, offset):
        return self.prepare(query, key, offset)

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
