"""Losses on received attention: the attention weights of each key, summed over the queries.

The losses are the map discrimination guide (MDG) and the pattern decorrelation guide (PDG) of Wang
et al. 2022, "Paying More Attention to Self-attention". A map A_r is the matrix of the attention
weights of one head in one layer. There are R = layers · heads maps.

    m_r[j]   = Σ_i A_r[i, j]                attention that key j receives in map r  (8)
    M        = [m_1; m_2; ...; m_R]         matrix with rows m_r, scaled to norm 1  (9)
    P(r | m) = exp(m_r·m / τ) / Σ_s exp(m_s·m / τ)                                  (10)
    MDG      = -Σ_r log P(r | m_r)          small if the rows of M differ           (11)
    PDG      = ‖MᵀM - I‖²_F                 small if the columns of M differ        (12)

Both losses are computed from the Gram matrix G = MMᵀ, shape (R, R). MDG uses the rows of G. MᵀM and
MMᵀ have the same Frobenius norm, so PDG = ‖G‖²_F - 2 tr G + S for S valid keys, and no (S, S)
matrix is needed. Cost: R² S multiplications for each example.

Eq. 8 calls j "the column index". Taken literally, the sum would run along the softmax axis. Every
sum would then be 1, and both losses would be constant. The code released with the paper has this
defect. This file follows the text before eq. 8: "the attention values that all tokens received".
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention import promote
from distattn_jax.guiding.arguments import (
    check_lengths,
    check_shape,
    gather_heads,
    padding_mask,
    select_layers,
)

SCALINGS = ("mean", "sum")


def map_discrimination(
    received: Float[Array, "B L N S"],
    lengths: Int[Array, " B"],
    *,
    layers: Sequence[int] | None = None,
    scaling: str = "mean",
    temperature: float | int | Float[Array, ""] = 1.0,
) -> Float[Array, " B"]:
    """Return the loss of the map discrimination guide (MDG), eq. 8 to 11 of Wang et al. 2022.

    The loss is small if different heads attend to different keys. If all R heads of the selected
    layers attend to the keys in the same proportions, the loss with `scaling="mean"` is log R.

    Args:
      received: Attention weights of each key, summed over the queries, shape (B, L, N, S). A head
        whose entries are all 0 is treated as orthogonal to all other heads.
      lengths: Number of valid keys of each example. The rest is padding.
      layers: Indices of the layers that contribute. None selects all.
      scaling: "sum" adds the losses of all heads, as in eq. 11. "mean" averages them.
      temperature: Divisor τ of the similarities between heads. May be traced.

    Returns:
      Loss of each example. It is 0 for an example of length 0.
    """
    lengths = _check_arguments(received, lengths, scaling)
    if not isinstance(temperature, jax.core.Tracer) and not temperature > 0:
        raise ValueError(f"temperature must be above 0; got {temperature}.")
    similarities = _gram_matrix(received, lengths, layers) / temperature
    losses = jax.nn.logsumexp(similarities, axis=-1) - jnp.diagonal(similarities, axis1=1, axis2=2)
    total = losses.mean(axis=-1) if scaling == "mean" else losses.sum(axis=-1)
    return jnp.where(lengths > 0, total, 0)


def pattern_decorrelation(
    received: Float[Array, "B L N S"],
    lengths: Int[Array, " B"],
    *,
    layers: Sequence[int] | None = None,
    scaling: str = "mean",
) -> Float[Array, " B"]:
    """Return the loss of the pattern decorrelation guide (PDG), eq. 12 of Wang et al. 2022.

    The loss is small if different keys receive their attention from different heads.

    Args:
      received: Attention weights of each key, summed over the queries, shape (B, L, N, S).
      lengths: Number of valid keys of each example. The rest is padding.
      layers: Indices of the layers that contribute. None selects all.
      scaling: "sum" adds the losses of all pairs of keys, as in eq. 12. "mean" divides this sum by
        the number of valid keys.

    Returns:
      Loss of each example. It is 0 for an example of length 0.
    """
    lengths = _check_arguments(received, lengths, scaling)
    gram = _gram_matrix(received, lengths, layers)
    keys = lengths.astype(gram.dtype)
    trace = jnp.trace(gram, axis1=1, axis2=2)
    total = jnp.square(gram).sum(axis=(1, 2)) - 2 * trace + keys
    return total / jnp.maximum(keys, 1) if scaling == "mean" else total


def _gram_matrix(
    received: Float[Array, "B L N S"], lengths: Int[Array, " B"], layers: Sequence[int] | None
) -> Float[Array, "B R R"]:
    """Return the cosine similarity of the received attention of every pair of heads.

    The R heads are the heads of all selected layers. The received attention of a head is a vector
    with one entry for each key: the attention weights of the key, summed over the queries.

    Args:
      received: Received attention of each head.
      lengths: Number of valid keys of each example. The rest is padding, which is ignored.
      layers: Indices of layers. None selects all.
    """
    received = gather_heads(select_layers(received, layers))
    batch, layer_count, heads, keys = received.shape
    rows = received.astype(promote(received.dtype)).reshape(batch, layer_count * heads, keys)
    rows = jnp.where(padding_mask(lengths, keys)[:, None, :], rows, 0)
    squares = jnp.square(rows).sum(axis=-1, keepdims=True)
    # The inner `where` keeps rsqrt finite, so that the gradient of a row of zeros is 0, not NaN.
    rows = jnp.where(squares > 0, rows * jax.lax.rsqrt(jnp.where(squares > 0, squares, 1)), 0)
    return jnp.einsum("brs,bqs->brq", rows, rows, precision="highest")


def _check_arguments(received: Array, lengths: Array, scaling: str) -> Int[Array, " B"]:
    """Raise a ValueError if the shapes do not match, or if `scaling` is not "mean" or "sum".

    Returns:
      The lengths as int32 numbers, at most the number of keys.
    """
    sizes: dict[str, int] = {}
    check_shape("received", received, "B L N S", sizes)
    if scaling not in SCALINGS:
        raise ValueError(f'scaling must be "mean" or "sum"; got {scaling!r}.')
    return check_lengths(lengths, sizes["B"], sizes["S"])
