"""Inputs and outputs of one attention call that the kernels of every type of chip share."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import BackwardOperands, Operands, select_precision

Pad = Callable[[Array], Array]


def collect_scalars(plan: Plan, operands: Operands) -> dict[str, Array]:
    """Return a few numbers for each example and head, shape (B, N, count), by name."""
    batch, _, heads, _ = operands.query.shape
    lengths = jnp.stack((operands.query_lengths, operands.key_lengths, operands.offset), axis=-1)
    scalars = {"lengths": jnp.broadcast_to(lengths[:, None], (batch, heads, 3))}
    if plan.scoring.function is not None:
        scalars["coefficients"] = operands.coefficients
    if operands.dropout_words is not None and operands.dropout_scale is not None:
        scalars["dropout_words"] = operands.dropout_words
        scalars["dropout_scale"] = operands.dropout_scale
    return scalars


def name_tables(plan: Plan, operands: Operands, kernel: str) -> dict[str, Float[Array, "B N D"]]:
    """Return the tables of `TableScoring` that a kernel reads, by name.

    Args:
      plan: Static options of the call.
      operands: Arrays of the call.
      kernel: Name of the kernel. Only "query_gradient" reads derivatives.
    """
    names = ("table", *plan.scoring.gradient_names)
    if kernel != "query_gradient":
        names = names[:1]
    return dict(zip(names, operands.tables, strict=False))


def collect_masks(
    operands: Operands, pad_queries: Pad, pad_keys: Pad, *, is_transposed: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the key mask and the segments of the rows and of the columns, by name.

    Args:
      operands: Arrays of the call.
      pad_queries: Pads an array of shape (B, N, T) with zeros, as a kernel requires.
      pad_keys: Pads an array of shape (B, N, S) with zeros, as a kernel requires.
      is_transposed: True if the rows of the score map are keys.
    """
    rows: dict[str, Array] = {}
    columns: dict[str, Array] = {}
    if operands.key_mask is not None:
        key_mask = pad_keys(operands.key_mask.astype(jnp.float32))
        (rows if is_transposed else columns)["key_mask"] = key_mask
    if operands.query_segments is not None and operands.key_segments is not None:
        query_segments = pad_queries(operands.query_segments.astype(jnp.int32)[:, None])
        key_segments = pad_keys(operands.key_segments.astype(jnp.int32)[:, None])
        rows["row_segments"] = key_segments if is_transposed else query_segments
        columns["column_segments"] = query_segments if is_transposed else key_segments
    return rows, columns


def compute_coefficient_gradients(
    plan: Plan, operands: Operands, parts: dict[str, Float[Array, "B N T"]]
) -> Float[Array, "B N C"]:
    """Return the gradients of all coefficients.

    Args:
      plan: Static options of the call.
      operands: Arrays of the call.
      parts: Part of each query of the gradients, by the names in `Scoring.gradient_names`.
    """
    coefficients = operands.coefficients
    if not parts:
        return jnp.zeros_like(coefficients)
    # One sum of stacked arrays is one operation on the chip instead of several.
    sums = jnp.stack([parts[name] for name in plan.scoring.gradient_names]).sum(axis=-1)
    return plan.scoring.combine_gradients(sums, coefficients)


def compute_delta(backward: BackwardOperands) -> Float[Array, "B N T"]:
    """Return D of each query, for kernels that do not compute it."""
    delta = jnp.einsum(
        "btne,btne->bnt",
        backward.values,
        backward.values_cotangent,
        preferred_element_type=jnp.float32,
        precision=select_precision(backward.values.dtype),
    )
    return delta if backward.other_delta is None else backward.other_delta + delta


def sum_groups(gradient: Float[Array, "B S N W"], key_heads: int) -> Float[Array, "B S K W"]:
    """Sum the parts of a gradient over the query heads that share a key head.

    Args:
      gradient: Gradient of keys or values, with one part for each query head.
      key_heads: Number K of key heads.
    """
    if gradient.shape[2] == key_heads:
        return gradient
    parts = gradient.reshape(*gradient.shape[:2], key_heads, -1, gradient.shape[3])
    return parts.astype(jnp.float32).sum(axis=3).astype(gradient.dtype)
