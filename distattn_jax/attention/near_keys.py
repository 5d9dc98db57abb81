"""Heads that look near, over a sharded sequence: only keys near the border of a shard travel.

If all heads need only the keys within a distance h, a device needs the h keys before its shard and
the h keys after it. There are two kinds of such heads:

- A local head of distance-aware attention (w < 0) gives every key beyond the distance the score 0,
  within the tolerance of the variant. Of these far keys, a device needs only the number n and the
  sum of the values. They are one more block with the score 0, which `ring` merges by the logsumexp:

      z_far = log n        o_far = Σ_j V_j / n

- A head of two-sided attention that forgets leaves out the keys beyond the distance: see
  `fused.forgetting`. There is no far block. The distance h is a window of the near keys.

The bytes that travel do not depend on the length of the sequence. The distance depends on trained
parameters, so the program contains one branch for each h of `HALOS`, and a ring for other heads.
All devices take the same branch: a device that sends needs one that receives.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import fused_kernels
from distattn_jax.attention.arguments import AttentionCall
from distattn_jax.attention.fused.varying import mark_varying
from distattn_jax.attention.implementations import compute, list_candidates
from distattn_jax.attention.ring import Ring, merge
from distattn_jax.attention.variants import promote

HALOS = (512, 2048)  # numbers of keys that travel from each side


def list_halos(call: AttentionCall, name: str | None) -> tuple[int, ...]:
    """Return the halos that a call can use: those of `HALOS` below the length of a shard.

    The result is empty if no fused kernel computes the call: on one device, only these kernels have
    a tolerance. It is also empty if far keys have no common sum, or if a query that forgets far
    keys may not see its own key.

    Args:
      call: Call of one device. The shards of queries and keys are consecutive positions.
      name: Name of the implementation, or None.
    """
    options, mask = call.options, call.mask
    has_common_sum = (
        options.aligned
        and options.window is None
        and not (options.received or options.weights)
        and call.query.shape[1] == call.key.shape[1]
        and call.query_segments is None
        and call.dropout_rate is None
        and (mask is None or mask.shape[1:3] == (1, 1))
    )
    if not has_common_sum or name not in (None, "pallas"):
        return ()
    may_forget = fused_kernels.may_forget(call.variant) and mask is None
    if not (may_forget or fused_kernels.may_be_local(call.variant)):
        return ()
    block = call._replace(options=dataclasses.replace(options, logsumexp=True))
    if not any(each == "pallas" and reason is None for each, _, reason in list_candidates(block)):
        return ()
    return tuple(halo for halo in HALOS if halo < call.key.shape[1])


def select_halo(call: AttentionCall, halos: tuple[int, ...], ring: Ring) -> Int[Array, ""]:
    """Return the index of the first halo that is large enough for all heads of all devices.

    The index is len(halos) if no halo is large enough.
    """
    names, call = _list_manual_axes(), lax.stop_gradient(call)
    squares = jnp.square(call.key.astype(jnp.float32)).sum(axis=-1, keepdims=True)
    norms = jnp.sqrt(squares.max(axis=1, keepdims=True))
    # The distance depends on the largest norm of all keys, also of those on other devices.
    ratio = lax.pmax(norms, ring.axis) / jnp.maximum(norms, jnp.finfo(jnp.float32).tiny)
    length = jnp.full((call.key.shape[0],), ring.size * call.key.shape[1], jnp.int32)
    call = call._replace(
        key=(call.key * ratio).astype(call.key.dtype),
        query_lengths=length if call.query_lengths is None else call.query_lengths,
        key_lengths=length if call.key_lengths is None else call.key_lengths,
    )
    distance = fused_kernels.find_near_distance(call, ring.size)
    distance = lax.pmax(mark_varying(distance, names), tuple(names))
    return (distance > jnp.asarray(halos, jnp.int32)).sum(dtype=jnp.int32)


def _list_manual_axes() -> frozenset[str]:
    """Return the mesh axes of the `shard_map` that is traced."""
    mesh = jax.sharding.get_abstract_mesh()
    pairs = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return frozenset(name for name, kind in pairs if kind == AxisType.Manual)


def attend(
    ring: Ring, call: AttentionCall, halo: int
) -> tuple[Float[Array, "B T N E"], Float[Array, "B N T"]]:
    """Return the values and the logsumexp of the queries of this device, with all keys.

    Args:
      ring: Description of the devices that share the sequence.
      call: Call of this device.
      halo: Distance of the keys that all heads need.
    """
    forgets = fused_kernels.may_forget(call.variant)
    visible = _find_visible_keys(ring, call)
    before, after = halo, 0 if call.options.is_causal else halo

    def extend(x: Array, axis: int) -> Array:
        """Add the last keys of the device before, and the first keys of the device after."""
        length = x.shape[axis]
        parts = [ring.send(lax.slice_in_dim(x, length - halo, length, axis=axis), 1), x]
        if after:
            parts.append(ring.send(lax.slice_in_dim(x, 0, halo, axis=axis), -1))
        return jnp.concatenate(parts, axis=axis)

    near_visible = extend(visible, 3)
    length = call.key.shape[1]
    first = lax.axis_index(ring.axis) * length - before
    position = first + jnp.arange(near_visible.shape[3], dtype=jnp.int32)
    is_key = (position >= 0) & (position < ring.size * length)  # The devices are no circle.
    near_visible &= is_key[None, None, None, :]
    near = call._replace(
        key=extend(call.key, 1),
        value=extend(call.value, 1),
        mask=near_visible,
        key_lengths=None,
        query_lengths=_shift_lengths(ring, call),
        offset=call.offset + before,
        options=dataclasses.replace(
            call.options, logsumexp=True, aligned=False, window=(halo, halo) if forgets else None
        ),
    )
    with jax.default_matmul_precision(ring.precision):
        attended = compute(near, ring.implementation)
    assert attended.logsumexp is not None, "the options request it"
    if forgets:
        return attended.values, attended.logsumexp
    block = attended.values.astype(promote(call.query.dtype)), attended.logsumexp
    values, logsumexp = merge(block, _average_far_keys(ring, call, near, visible))
    return values.astype(call.value.dtype), logsumexp


def _find_visible_keys(ring: Ring, call: AttentionCall) -> Bool[Array, "_ 1 1 S"]:
    """Return the keys of this device that a mask of keys and the lengths leave visible."""
    length = call.key.shape[1]
    visible = jnp.ones((1, 1, 1, length), bool) if call.mask is None else call.mask
    if call.key_lengths is not None:
        position = lax.axis_index(ring.axis) * length + jnp.arange(length, dtype=jnp.int32)
        visible = visible & (position[None, None, None, :] < call.key_lengths[:, None, None, None])
    return visible


def _shift_lengths(ring: Ring, call: AttentionCall) -> Int[Array, " B"] | None:
    """Return the numbers of queries of this device before the padding, or None."""
    if call.query_lengths is None:
        return None
    length = call.query.shape[1]
    return jnp.clip(call.query_lengths - lax.axis_index(ring.axis) * length, 0, length)


def _average_far_keys(
    ring: Ring, call: AttentionCall, near: Any, visible: Array
) -> tuple[Any, Any]:
    """Return the values and the logsumexp of all keys that are not near, whose scores are 0.

    Args:
      ring: Description of the devices that share the sequence.
      call: Call of this device.
      near: Call of the queries of this device with the near keys.
      visible: Visible keys of this device.
    """
    dtype = promote(call.query.dtype)

    def total(value: Array, visible: Array) -> tuple[Array, Array]:
        """Return the sum of the visible values, and their number, for each example."""
        rows = jnp.moveaxis(visible[:, 0], 1, 2)[..., None].astype(dtype)  # (B or 1, S, 1, 1)
        rows = jnp.broadcast_to(rows, (value.shape[0], *rows.shape[1:]))
        return (value.astype(dtype) * rows).sum(axis=1), rows.sum(axis=1)

    device = lax.axis_index(ring.axis)
    index = jnp.arange(ring.size, dtype=jnp.int32)
    is_counted = index < device if call.options.is_causal else index >= 0
    near_keys = near.key.shape[1] - (call.key.shape[1] if call.options.is_causal else 0)
    near_total = total(near.value[:, :near_keys], near.mask[..., :near_keys])

    def subtract(shard_total: Array, near_total: Array) -> Array:
        totals = lax.all_gather(shard_total, ring.axis)
        return jnp.tensordot(is_counted.astype(dtype), totals, axes=1) - near_total

    sums, counts = map(subtract, total(call.value, visible), near_total)  # (B, K, E), (B, 1, 1)
    counts = jnp.round(lax.stop_gradient(counts))
    batch, length, heads, _ = call.query.shape
    mean = jnp.repeat(sums / jnp.maximum(counts, 1), call.group_size, axis=1)[:, None]
    logsumexp = jnp.where(counts > 0, jnp.log(jnp.maximum(counts, 1)), -jnp.inf)
    if near.query_lengths is not None:
        row = jnp.arange(length, dtype=jnp.int32)[None, None, :]
        logsumexp = jnp.where(row < near.query_lengths[:, None, None], logsumexp, -jnp.inf)
    return mean, jnp.broadcast_to(logsumexp, (batch, heads, length))
