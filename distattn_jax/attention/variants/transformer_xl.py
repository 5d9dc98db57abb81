"""Transformer-XL attention (Dai et al. 2019, section 3.3), with or without segment memory.

    score_ij = ((q_i + content_bias) · k_j + (q_i + position_bias) · W r_{i-j}) / √H

r_t is the sinusoid of width D, W the `projection`; the paper calls the biases u and v. Keys may
begin before the queries (memory) through `query_offset`, and need not be causal: then i - j runs
through all T + S - 1 values from offset - (S - 1) to offset + (T - 1).

The projected r has no narrower form: (q_i + position_bias) · W r_t is computed for every t, and row
i is shifted by i (`skew`). A block of P queries needs P + S of these products per query, not T + S.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.variants.sinusoid import sinusoid
from distattn_jax.attention.variants.variant import Variant, product, variant


@variant
class TransformerXL(Variant):
    """Attention by content and by projected sinusoids of the relative position.

    Attributes:
      projection: W, from the D (even) sinusoids to the width of a head.
      content_bias: u, what every query asks of content.
      position_bias: v, what every query asks of position.
    """

    projection: Float[Array, "#N D H"]
    content_bias: Float[Array, "#N H"]
    position_bias: Float[Array, "#N H"]

    def __post_init__(self):
        if self.projection.ndim != 3 or self.projection.shape[1] % 2:
            raise ValueError(
                "TransformerXL.projection must have shape (heads or 1, D, H), D even (a sine and a "
                f"cosine per frequency); got {self.projection.shape}."
            )

    def scores(self, query, key, relative_positions):
        related = self._project(relative_positions.reshape(-1)).reshape(
            *relative_positions.shape, -1
        )  # (T, S, H)
        content = product(query + self.content_bias[None], key)
        position = jnp.einsum("th,tsh->ts", query + self.position_bias[None], related)
        return (content + position) / math.sqrt(query.shape[-1])

    def prepare(self, query, key, offset):
        descending = (
            offset + query.shape[0] - 1 - jnp.arange(query.shape[0] + key.shape[0], dtype=jnp.int32)
        )
        return query, (key, self._project(descending))

    def block_scores(self, query, prepared, offset, start):
        key, relations = prepared
        needed = query.shape[0] + key.shape[0]
        relations = jax.lax.dynamic_slice_in_dim(
            relations, relations.shape[0] - needed - start, needed
        )
        content = product(query + self.content_bias[None], key)
        position = skew(product(query + self.position_bias[None], relations))
        return (content + position) / math.sqrt(query.shape[-1])

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
        width, _ = self.projection.shape
        return sinusoid(position, width, self.projection.dtype) @ self.projection


def skew(entries: Float[Array, "T _"]) -> Float[Array, "T S"]:
    """out[i, j] = entries[i, T - 1 - i + j]: in memory, each row begins one entry earlier."""
    rows, width = entries.shape
    flat = entries.reshape(-1)[rows - 1 : rows - 1 + rows * (width - 1)]
    return flat.reshape(rows, width - 1)[:, : width - rows]
