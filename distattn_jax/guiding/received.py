"""Guides on received attention (Wang et al. 2022, "Paying More Attention to Self-attention").

    m_r[j]   = Σ_i A_r[i, j]                what key j receives in map r           (8)
    M        = [m_1; m_2; ...; m_R]         maps of all layers and heads, ‖m_r‖ = 1 (9)
    P(r | m) = exp(m_r·m / τ) / Σ_s exp(m_s·m / τ)                                 (10)
    MDG      = -Σ_r log P(r | m_r)          maps should differ from one another    (11)
    PDG      = ‖MᵀM - I‖²_F                 keys should be attended to differently (12)

Both read one Gram matrix G = MMᵀ, (R, R): MDG its rows, and PDG, because MᵀM and MMᵀ have the same
norm, ‖G‖²_F - 2 tr G + S with S the number of keys that are no padding. No (S, S) matrix is made.
Cost: R² S products for each example, R = layers · heads.

Eq. 8 calls j "the column index"; taken by the letter that is the axis of the softmax, along which
every row sums to 1: M would be constant, and so would both losses. (The code released with the
paper does so.) The sentence before it, "the attention values that all tokens received", decides.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention import promote
from distattn_jax.guiding.choice import layers_of
from distattn_jax.guiding.examples import check_shape, gathered, valid

SCALINGS = ("mean", "sum")


def map_discrimination(
    received: Float[Array, "B L N S"],
    lengths: Int[Array, " B"],
    *,
    layers: Sequence[int] | None = None,
    scaling: str = "mean",
    temperature: float | int | Float[Array, ""] = 1.0,
) -> Float[Array, " B"]:
    """MDG: every map should be told from all others by what its keys receive (eq. 8 to 11).

    With R maps it is R times (or, as "mean", once) log R where all are the same, and less the more
    they differ. A map that gives nothing at all counts as one that is like no other.

    Args:
      received: what each key receives in each head of each layer, summed over the queries.
      lengths: right padding: keys from there on do not count.
      layers: the layers that are guided; None: all.
      scaling: "sum": over the maps, as printed; "mean": divided by their number.
      temperature: τ, which divides the similarities; may be traced.

    Returns:
      One loss per example; 0 where the length is 0.
    """
    _check(received, lengths, scaling)
    if not isinstance(temperature, jax.core.Tracer) and not temperature > 0:
        raise ValueError(f"temperature must be above 0; got {temperature}.")
    similar = _gram(received, lengths, layers) / temperature
    losses = jax.nn.logsumexp(similar, axis=-1) - jnp.diagonal(similar, axis1=1, axis2=2)
    total = losses.mean(axis=-1) if scaling == "mean" else losses.sum(axis=-1)
    return jnp.where(lengths > 0, total, 0)


def pattern_decorrelation(
    received: Float[Array, "B L N S"],
    lengths: Int[Array, " B"],
    *,
    layers: Sequence[int] | None = None,
    scaling: str = "mean",
) -> Float[Array, " B"]:
    """PDG: no two keys should be attended to by the same maps (eq. 12).

    Args:
      received: what each key receives in each head of each layer, summed over the queries.
      lengths: right padding: keys from there on do not count.
      layers: the layers that are guided; None: all.
      scaling: "sum": over all pairs of keys, as printed; "mean": divided by the number of keys.

    Returns:
      One loss per example; 0 where the length is 0.
    """
    _check(received, lengths, scaling)
    gram = _gram(received, lengths, layers)
    keys = jnp.clip(lengths, 0, received.shape[-1]).astype(gram.dtype)
    trace = jnp.trace(gram, axis1=1, axis2=2)
    total = jnp.square(gram).sum(axis=(1, 2)) - 2 * trace + keys
    return total / jnp.maximum(keys, 1) if scaling == "mean" else total


def _gram(
    received: Float[Array, "B L N S"], lengths: Int[Array, " B"], layers: Sequence[int] | None
) -> Float[Array, "B R R"]:
    """G = MMᵀ, the similarity of every two maps, of rows of norm 1 over the valid keys."""
    received = gathered(layers_of(received, layers))
    batch, kept_layers, heads, keys = received.shape
    rows = received.astype(promote(received.dtype)).reshape(batch, kept_layers * heads, keys)
    rows = jnp.where(valid(lengths, keys)[:, None, :], rows, 0)
    squares = jnp.square(rows).sum(axis=-1, keepdims=True)
    # Twice, so that a row of zeros has a gradient of zeros and not 0 · ∞.
    rows = jnp.where(squares > 0, rows * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1)), 0)
    return jnp.einsum("brs,bqs->brq", rows, rows, precision="highest")


def _check(received: Array, lengths: Array, scaling: str) -> None:
    sizes: dict[str, int] = {}
    check_shape("received", received, "B L N S", sizes)
    check_shape("lengths", lengths, "B", sizes)
    if scaling not in SCALINGS:
        raise ValueError(f'scaling must be "mean" or "sum"; got {scaling!r}.')
