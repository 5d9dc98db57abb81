"""Transformer-XL attention (Dai et al. 2019, section 3.3), with or without segment memory.

    score_ij = ((q_i + content_bias) · k_j + (q_i + position_bias) · W r_{i-j}) / √H

r_t is the sinusoidal embedding of t, of width D, and W is the `projection`. The paper calls the
biases u and v. With segment memory, the first keys come before the first query: `query_offset` is
the length of the memory. Without a causal mask, i - j has all T + S - 1 values from
offset - (S - 1) to offset + (T - 1).

The product (q_i + position_bias) · W r_t is computed for every query i and every relative position
t. `skew` then selects the entries with t = i - j. A block of P consecutive queries has only
P + S - 1 relative positions, so that each query needs P + S products instead of T + S.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from distattn_jax.attention.variants.sinusoid import sinusoid
from distattn_jax.attention.variants.skew import descending_positions, select_positions, skew
from distattn_jax.attention.variants.variant import Variant, product, round_gradient, variant, weigh


@variant
class TransformerXL(Variant):
    """Transformer-XL attention, with projected sinusoidal embeddings of the relative position.

    Attributes:
      projection: Matrix that projects a sinusoid of even width D to the width H of a head.
      content_bias: Vector that is added to every query before its dot product with a key.
      position_bias: Vector that is added to every query before its dot product with a projected
        sinusoid.
    """

    projection: Float[Array, "#N D H"]
    content_bias: Float[Array, "#N H"]
    position_bias: Float[Array, "#N H"]

    def __post_init__(self):
        shape = np.shape(self.projection)
        if len(shape) != 3 or shape[1] % 2:
            raise ValueError(
                "TransformerXL.projection must have shape (heads or 1, D, H), D even (a sine and a "
                f"cosine per frequency); got {shape}."
            )
        for name in ("content_bias", "position_bias"):
            shape = np.shape(getattr(self, name))
            if len(shape) != 2:
                raise ValueError(
                    f"TransformerXL.{name} must have shape (heads or 1, H); got {shape}."
                )

    def scores(self, query, key, relative_positions, scale):
        sinusoids = self._project(relative_positions.reshape(-1))
        sinusoids = sinusoids.reshape(*relative_positions.shape, -1)  # (T, S, H)
        content = product(query + self.content_bias[None], key)
        position = jnp.einsum("th,tsh->ts", query + self.position_bias[None], sinusoids)
        return scale * (content + position)

    def weighted_values(self, weights, value, relative_positions):
        # On a GPU, XLA then runs the same kernels in an order that needs up to a fifth less memory.
        return weigh(weights, value, join_gradients=True)

    def with_plain_values(self):
        return self

    def prepare(self, query, key, offset):
        descending = descending_positions(query.shape[0], key.shape[0], offset)
        return query, (key, self._project(descending))

    def block_scores(self, query, prepared, offset, start, scale):
        key, sinusoids = prepared
        sinusoids = select_positions(sinusoids, query.shape[0], key.shape[0], start)
        content = product(query + self.content_bias[None], key)
        position = skew(product(query + self.position_bias[None], sinusoids))
        # Both products have the same gradient: it is rounded and stored once.
        return scale * round_gradient(content + position, query.dtype)

    def check(self, heads, width, value_width):
        super().check(heads, width, value_width)
        for name in ("projection", "content_bias", "position_bias"):
            leaf = getattr(self, name)
            if leaf.shape[-1] != width:
                raise ValueError(
                    f"TransformerXL.{name} must end in the width of a head, {width}; "
                    f"got shape {leaf.shape}."
                )

    def _project(self, position: Int[Array, " P"]) -> Float[Array, "P H"]:
        """Return the projected sinusoidal embedding of each position."""
        width, _ = self.projection.shape
        return sinusoid(position, width, self.projection.dtype) @ self.projection
