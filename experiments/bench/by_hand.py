"""Attention written by hand: a few lines of `jnp` for each variant, with all scores stored.

This is what a user would write without this package, and what `xla` is compared with. There are no
blocks, no padding and no offsets. Scores and weights are float32. Matrix products have operands of
the dtype of the query.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import (
    Adapted,
    Attended,
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    TransformerXL,
    TwoSided,
    Variant,
)

Scores = Float[Array, "B N T S"]


def attend(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N E"],
    variant: Variant,
    *,
    scale: float,
    mask: Bool[Array, "#B #N #T #S"] | None = None,
) -> Attended:
    """Compute attention with stored scores. The arguments are those of `attention`."""
    scores = SCORES[type(variant)](query, key, variant, scale)
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores)
    values = jnp.einsum("bnts,bsne->btne", weights.astype(value.dtype), value)
    if isinstance(variant, RelativePosition) and variant.values is not None:
        values += _position_values(weights, variant.values).astype(value.dtype)
    return Attended(values)


def attend_with_jax_nn(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N E"],
    variant: Variant,
    *,
    scale: float,
    mask: Bool[Array, "#B #N #T #S"] | None = None,
) -> Attended:
    """Compute dot-product attention with `jax.nn.dot_product_attention`, without cuDNN."""
    assert isinstance(variant, DotProduct), "JAX has no other variant"
    values = jax.nn.dot_product_attention(
        query, key, value, mask=mask, scale=scale, implementation="xla"
    )
    return Attended(values)


def _product(query: Float[Array, "B T N H"], key: Float[Array, "B S N H"]) -> Scores:
    """Return the dot product of every query with every key, in float32."""
    return jnp.einsum("btnh,bsnh->bnts", query, key, preferred_element_type=jnp.float32)


def _positions(length: int) -> Int[Array, "T S"]:
    """Return the position of query i minus the position of key j."""
    position = jnp.arange(length)
    return position[:, None] - position[None, :]


def _dot_product(query: Any, key: Any, variant: DotProduct, scale: float) -> Scores:
    """Return q_i · k_j / √H."""
    return scale * _product(query, key)


def _distance_aware(query: Any, key: Any, variant: DistanceAware, scale: float) -> Scores:
    """Return ReLU(q_i · k_j / √H) f(w |i-j|), where f is the learnable sigmoid."""
    w, v = variant.weight[:, None, None], variant.shape[:, None, None]
    distance = jnp.abs(_positions(query.shape[1]))[None]
    f = (1 + jnp.exp(v)) * jax.nn.sigmoid(w * distance - v)
    return jax.nn.relu(scale * _product(query, key)) * f[None]


def _two_sided(query: Any, key: Any, variant: TwoSided, scale: float) -> Scores:
    """Return ReLU(q_i · k_j / √H) f_s(w_s |i-j|) + g_s(|i-j|), where s is the side of the key."""
    positions = _positions(query.shape[1])
    f = jax.vmap(TwoSided.factor, (0, None))(variant, positions)
    g = jax.vmap(TwoSided.bias_sum, (0, None))(variant, positions)
    return jax.nn.relu(scale * _product(query, key)) * f[None] + g[None]


def _bias(variant: DistanceBias, length: int) -> Float[Array, "N T S"]:
    """Return f(i - j) for each head."""
    function: Any = variant.function
    return jax.vmap(function, (None, 0))(_positions(length), variant.parameters)


def _distance_bias(query: Any, key: Any, variant: DistanceBias, scale: float) -> Scores:
    """Return q_i · k_j / √H + f(i - j)."""
    return scale * _product(query, key) + _bias(variant, query.shape[1])[None]


def _relations(length: int, table: Float[Array, "N R W"]) -> Int[Array, "T S"]:
    """Return the row of the table for query i and key j, clip(j - i, -k, k) + k."""
    k = table.shape[1] // 2
    return jnp.clip(-_positions(length), -k, k) + k


def _relative_position(query: Any, key: Any, variant: RelativePosition, scale: float) -> Scores:
    """Return q_i · (k_j + a_ij) / √H: the products by relation are copied to all pairs."""
    table: Any = variant.keys
    by_relation = jnp.einsum(
        "btnh,nrh->bntr", query, table.astype(query.dtype), preferred_element_type=jnp.float32
    )
    relations = _relations(query.shape[1], table)[None, None]
    return scale * (_product(query, key) + jnp.take_along_axis(by_relation, relations, axis=-1))


def _position_values(weights: Scores, table: Float[Array, "N R E"]) -> Float[Array, "B T N E"]:
    """Return Σ_j α_ij a_ij: the weights are summed by relation, and multiplied by the table."""
    relations = _relations(weights.shape[-1], table)
    rows = jnp.arange(weights.shape[-2])[:, None]
    by_relation = jnp.zeros((*weights.shape[:-1], table.shape[1]))
    by_relation = by_relation.at[:, :, rows, relations].add(weights)
    return jnp.einsum("bntr,nre->btne", by_relation, table)


def _sinusoids(length: int, width: int) -> Float[Array, "P W"]:
    """Return the sinusoids of the relative positions L, L - 1, ..., 1 - L."""
    position = jnp.arange(length, -length, -1.0)
    frequency = 10_000 ** (-jnp.arange(width // 2) / (width // 2))
    angle = position[:, None] * frequency[None]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def _shift(products: Float[Array, "B N T P"]) -> Scores:
    """Return the relative shift of Transformer-XL: entry (i, j) is products[i, T - i + j]."""
    batch, heads, length, count = products.shape
    products = products.reshape(batch, heads, count, length)[:, :, 1:]
    return products.reshape(batch, heads, length, count - 1)[..., :length]


def _with_position_vectors(
    query: Any, key: Any, variant: Any, vectors: Float[Array, "N P H"], scale: float
) -> Scores:
    """Return ((q_i + u) · k_j + (q_i + v) · r_{i-j}) / √H, for the vectors r."""
    u, v, vectors = (
        x.astype(query.dtype)
        for x in (variant.content_bias[None, None], variant.position_bias[None, None], vectors)
    )
    position = jnp.einsum("btnh,nph->bntp", query + v, vectors, preferred_element_type=jnp.float32)
    return scale * (_product(query + u, key) + _shift(position))


def _transformer_xl(query: Any, key: Any, variant: TransformerXL, scale: float) -> Scores:
    """Return the scores of Transformer-XL, whose position vectors are projected sinusoids."""
    sinusoids = _sinusoids(query.shape[1], variant.projection.shape[1])
    vectors = jnp.einsum("pd,ndh->nph", sinusoids, variant.projection)
    return _with_position_vectors(query, key, variant, vectors, scale)


def _adapted(query: Any, key: Any, variant: Adapted, scale: float) -> Scores:
    """Return the scores of TENER, whose position vectors are sinusoids."""
    sinusoids = _sinusoids(query.shape[1], query.shape[-1])
    vectors = jnp.broadcast_to(sinusoids, (query.shape[2], *sinusoids.shape))
    return _with_position_vectors(query, key, variant, vectors, scale)


FUNCTIONS = {"by_hand": attend, "jax_nn": attend_with_jax_nn}
SCORES: dict[type[Variant], Callable[..., Scores]] = {
    DotProduct: _dot_product,
    DistanceAware: _distance_aware,
    DistanceBias: _distance_bias,
    RelativePosition: _relative_position,
    TransformerXL: _transformer_xl,
    TwoSided: _two_sided,
    Adapted: _adapted,
}
