"""Fused attention on one device: from the arrays of a call to the operands of the kernels.

`attend` finds the `KernelView` of the variant, which makes the scoring and the arrays that the
scoring needs. `attend` then pads all arrays for the kernels, and calls `fused_attention`, which has
a custom derivative.
"""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.attention.fused import derivative
from distattn_jax.attention.fused.derivative import Outputs
from distattn_jax.attention.fused.kernel_view import LENGTH_MULTIPLE, Block, KernelForm
from distattn_jax.attention.fused.kernels import KernelFactory, Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.relations import can_multiply_tables
from distattn_jax.attention.fused.variants import find_view
from distattn_jax.attention.fused.visible_columns import Window

MASK_MULTIPLE = 16  # bytes: the copy engine needs aligned rows


class Inputs(NamedTuple):
    """Arrays of an attention call, or the part of these arrays that one device has.

    Attributes:
      query: Queries.
      key: Keys. The number of key heads K is N or a divisor of N.
      value: Values.
      variant: Attention variant whose arrays are float32.
      first_query: Position of the first query: one number for each example, or one for all.
      first_key: Position of the first key: one number for each example, or one for all.
      mask: True where a query may attend to a key. None masks no entry.
      query_lengths: Number of queries of each example before the padding. None means no padding.
      key_lengths: Number of keys of each example before the padding. None means no padding.
      query_segments: Segment of each query. None means one segment.
      key_segments: Segment of each key. None means one segment.
      dropout_words: See `Operands.dropout_words`.
      dropout_scale: See `Operands.dropout_scale`.
    """

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K E"]
    variant: Any
    first_query: Int[Array, "#B"]
    first_key: Int[Array, "#B"]
    mask: Bool[Array, "#B #N #T #S"] | None = None
    query_lengths: Int[Array, " B"] | None = None
    key_lengths: Int[Array, " B"] | None = None
    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    dropout_words: UInt32[Array, "B N 5"] | None = None
    dropout_scale: Float[Array, "B N 1"] | None = None


class Settings(NamedTuple):
    """Static settings of an attention call: they are fixed when the program is traced.

    Attributes:
      scale: Factor of the products of queries and keys.
      window: Limits of the distance between a query and a visible key.
      received: If True, compute the attention that each key receives, summed over the queries.
      logsumexp: If True, return the logsumexp of the scores of each query.
      widths: Widths of heads that the kernels support, in ascending order.
      max_table_distance: Largest clip distance of tables of relations that the kernels multiply:
        see `Scoring.multiplies_tables`.
    """

    scale: float
    window: Window
    received: bool
    logsumexp: bool
    widths: tuple[int, ...]
    max_table_distance: int = 0


def attend(make_kernels: KernelFactory, settings: Settings, inputs: Inputs) -> Outputs:
    """Compute attention on one device.

    Args:
      make_kernels: Returns the kernels for one type of chip.
      settings: Static settings of the call.
      inputs: Arrays of the call, or the part of these arrays that the device has.
    """
    plan, operands = prepare(settings, inputs)
    values, received, logsumexp = derivative.fused_attention(make_kernels, plan, operands)
    queries, (keys, _, value_width) = inputs.query.shape[1], inputs.value.shape[1:]
    return Outputs(
        values[:, :queries, :, :value_width],
        received=None if received is None else received[:, :, :keys],
        logsumexp=None if logsumexp is None else logsumexp[:, :, :queries],
    )


def prepare(settings: Settings, inputs: Inputs) -> tuple[Plan, Operands]:
    """Return the static options of the kernels (`Plan`), and their padded arrays (`Operands`)."""
    view = find_view(inputs.variant)
    assert view is not None, "a call without a kernel view is not supported"
    offset = inputs.first_query - inputs.first_key
    block = Block(*inputs[:3], offset, settings.scale)
    form = view.make_form(inputs.variant, block)
    operands = _make_operands(inputs, block, form, settings.widths)
    scoring: Any = form.scoring
    width = max(operands.query.shape[-1], operands.value.shape[-1])
    is_small = can_multiply_tables(scoring.clip_distance, width, operands.query.dtype)
    if is_small and scoring.clip_distance <= settings.max_table_distance:
        scoring = dataclasses.replace(scoring, multiplies_tables=True)
    plan = Plan(
        scoring=scoring,
        window=settings.window,
        received=settings.received,
        logsumexp=settings.logsumexp,
        tolerance=form.tolerance,
        trained_key_width=form.trained_key_width,
        has_padded_keys=inputs.key_lengths is not None
        or operands.key.shape[1] > inputs.key.shape[1],
    )
    return plan, operands


def _make_operands(
    inputs: Inputs, block: Block, form: KernelForm, widths: tuple[int, ...]
) -> Operands:
    """Return the operands of the kernels, with padded lengths and widths.

    Args:
      inputs: Arrays of the call.
      block: Queries, keys and values of the call.
      form: Scoring of the variant, and the arrays that it needs.
      widths: Widths of heads that the kernels support, in ascending order.
    """
    _, queries, heads, _ = inputs.query.shape

    def pad_width(x: Array | None) -> Array | None:
        """Pad the last axis with zeros to the next width that the kernels support.

        Return None if x is None.
        """
        if x is None:
            return None
        padding = next(width for width in widths if width >= x.shape[-1]) - x.shape[-1]
        return jnp.pad(x, (*[(0, 0)] * (x.ndim - 1), (0, padding)))

    def pad(x: Array | None) -> Any:
        """Pad (B, L, N, W) with zeros to a length L and a width W that the kernels support.

        Return None if x is None.
        """
        if x is None:
            return None
        padded = jnp.pad(x, ((0, 0), (0, -x.shape[1] % LENGTH_MULTIPLE), (0, 0), (0, 0)))
        return pad_width(padded)

    coefficients = form.coefficients
    if coefficients is None:
        coefficients = jnp.zeros((1, heads, 0), jnp.float32)
    return Operands(
        query=pad(form.query),
        key=pad(form.key),
        value=pad(inputs.value),
        coefficients=coefficients,
        factor_table=form.factor_table,
        bias_table=form.bias_table,
        factor_bound=form.factor_bound,
        bias_bound=form.bias_bound,
        bias_change=form.bias_change,
        query_lengths=_fill_lengths(inputs.query_lengths, queries),
        key_lengths=_fill_lengths(inputs.key_lengths, inputs.key.shape[1]),
        offset=block.offset,
        query_segments=_pad_segments(inputs.query_segments),
        key_segments=_pad_segments(inputs.key_segments),
        **_make_masks(inputs, block.padded_lengths),
        dropout_words=inputs.dropout_words,
        dropout_scale=inputs.dropout_scale,
        key_table=pad_width(form.key_table),
        value_table=pad_width(form.value_table),
        position_query=pad(form.position_query),
        positions=pad_width(form.positions),
    )


def _make_masks(inputs: Inputs, padded_lengths: tuple[int, int]) -> dict[str, Array]:
    """Return {name: padded mask}, or an empty dict if the call has no mask.

    The name is "key_mask" if axis 2 (queries) of the mask has size 1, "query_mask" if axis 3 (keys)
    has size 1, and otherwise "mask". A key mask also hides the keys beyond `key_lengths`.

    Args:
      inputs: Arrays of the call.
      padded_lengths: Padded number of queries and padded number of keys.
    """
    mask = inputs.mask
    if mask is None:
        return {}
    queries, keys = padded_lengths
    if mask.shape[2] == 1:
        mask = jnp.broadcast_to(mask[:, :, 0], (*mask.shape[:2], inputs.key.shape[1]))
        mask = jnp.pad(mask, ((0, 0), (0, 0), (0, keys - mask.shape[2])))
        if inputs.key_lengths is not None:
            mask &= jnp.arange(keys)[None, None, :] < inputs.key_lengths[:, None, None]
        return {"key_mask": mask}
    if mask.shape[3] == 1:
        return {"query_mask": jnp.pad(mask[..., 0], ((0, 0), (0, 0), (0, queries - mask.shape[2])))}
    padding = [(0, -length % MASK_MULTIPLE) for length in mask.shape[2:]]
    return {"mask": jnp.pad(mask.astype(jnp.int8), ((0, 0), (0, 0), *padding))}


def _pad_segments(segments: Int[Array, "B L"] | None) -> Int[Array, "B _"] | None:
    """Pad the segment numbers to a length that the kernels support, by repeating the last number.

    Return None if `segments` is None.
    """
    if segments is None:
        return None
    return jnp.pad(segments, ((0, 0), (0, -segments.shape[1] % LENGTH_MULTIPLE)), mode="edge")


def _fill_lengths(lengths: Int[Array, " B"] | None, length: int) -> Int[Array, "#B"]:
    """Return `lengths`, or `length` as the length of all examples if `lengths` is None."""
    return jnp.full((1,), length, jnp.int32) if lengths is None else lengths
