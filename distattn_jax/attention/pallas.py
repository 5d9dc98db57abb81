"""Our own kernels: dot-product and distance-aware attention in fused passes over tiles.

Here a call becomes what the kernels take: a scoring and its coefficients, lengths for every
example, words for the dropout hash.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention import fused, mesh
from distattn_jax.attention.arguments import Attended, AttentionCall
from distattn_jax.attention.dropout import drop_threshold, make_head_words
from distattn_jax.attention.fused import derivative
from distattn_jax.attention.variants import (
    DistanceAware,
    DotProduct,
    Variant,
    early_add,
    early_multiply,
    mappings,
)

OLDEST_JAX = (0, 11)
HOPPER = 9  # compute capability; the matrix instructions are those of this generation alone
WIDTHS = (16, 32, 64)  # of heads; others are padded to the next
LEAST_V = -80.0  # of a learnable sigmoid; below it e^v would vanish
GRAIN = 8  # lengths are padded to a multiple of it
TOLERANCE = 2.0**-10  # about what 16-bit inputs do to a score anyway
SHORTEST = 1024  # a map of fewer queries and keys has too few tiles to save any


class _Form(NamedTuple):
    """A mapping as the kernels know it.

    Attributes:
      family: its form, but for a height.
      numbers: the two of the family and the height, from w and the shape.
    """

    family: fused.DistanceFunction
    numbers: Callable[[Array, Any], tuple[Array, Array, Array]]


def _of_learnable_sigmoid(weight, shape):
    v = jnp.clip(shape, LEAST_V, mappings.LARGEST_EXPONENT)
    return weight, -v, 1 + jnp.exp(v)


def _of_sigmoid(weight, shape):
    return weight, jnp.zeros_like(weight), jnp.ones_like(weight)


def _of_exponent(weight, shape):
    most = jnp.full_like(weight, mappings.LARGEST_EXPONENT * fused.LOG2E)
    return weight * fused.LOG2E, most, jnp.ones_like(weight)


def _of_linear(weight, shape):
    slope, intercept = shape
    return slope * weight, intercept, jnp.ones_like(weight)


def _of_clip(weight, shape):
    return weight, jax.lax.stop_gradient(shape), jnp.ones_like(weight)


FORMS = {
    mappings.learnable_sigmoid: _Form(fused.SIGMOID, _of_learnable_sigmoid),
    mappings.sigmoid: _Form(fused.SIGMOID, _of_sigmoid),
    mappings.exponent: _Form(fused.EXPONENTIAL, _of_exponent),
    mappings.linear: _Form(fused.LINEAR, _of_linear),
    mappings.clip: _Form(fused.CLIPPED, _of_clip),
}


def run(call: AttentionCall) -> Attended:
    """The call in fused passes, each device its own examples and heads."""
    # Importing Pallas takes long, and an old JAX lacks Mosaic GPU: import the kernels only here.
    from distattn_jax.attention.fused.gpu.kernels import select_kernels

    _, queries, _, width = call.query.shape
    _, keys, _, value_width = call.value.shape
    plan = fused.Plan(
        scoring=_scoring_of(call.variant, width),
        is_causal=call.options.is_causal,
        received=call.options.received,
        tolerance=_tolerance(call),
    )
    attend = functools.partial(derivative.fused_attention, select_kernels(), plan)
    values, received = mesh.over_parts(attend, _operands(call))
    values = values[:, :queries, :, :value_width]
    return Attended(values, None if received is None else received[:, :, :keys])


def unsupported_reason(call: AttentionCall) -> str | None:
    """What keeps the kernels from serving this call, or None."""
    reason = _refuses_variant(call.variant)
    if reason is not None:
        return reason
    dtypes = {x.dtype for x in (call.query, call.key, call.value)}
    if call.options.weights:
        return "it never has the map: weights must be False"
    if call.mask is not None:
        return "it knows lengths only: mask must be None (use query_lengths and key_lengths)"
    if dtypes not in ({jnp.dtype(jnp.bfloat16)}, {jnp.dtype(jnp.float16)}):
        return (
            f"query, key and value must all be bfloat16 or float16; got {sorted(map(str, dtypes))}"
        )
    widest = max(call.query.shape[-1], call.value.shape[-1])
    if widest > WIDTHS[-1]:
        return f"heads must be at most {WIDTHS[-1]} wide; got {widest}"
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    if version < OLDEST_JAX:
        return f"it needs JAX {'.'.join(map(str, OLDEST_JAX))} or newer; this is {jax.__version__}"
    if mesh.is_partly_manual():
        return "it cannot part itself inside a shard_map over some of the mesh's axes only"
    if not _fits_devices():
        return "its matrix instructions are those of Hopper, compute capability 9"
    return None


def _refuses_variant(variant: Variant) -> str | None:
    if isinstance(variant, DotProduct):
        return None
    if not isinstance(variant, DistanceAware):
        return f"there is no kernel for {type(variant).__name__}"
    if variant.adjust not in (early_multiply, early_add):
        return "what is done to weights after the softmax cannot be fused: adjust must be early"
    if variant.mapping not in FORMS:
        name = getattr(variant.mapping, "__name__", repr(variant.mapping))
        return f"there is no kernel for the mapping {name}"
    return None


def _fits_devices() -> bool:
    """Whether the GPUs here can run it; a program may be lowered for others where there is none."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return True
    return all(int(float(device.compute_capability)) == HOPPER for device in devices)


def _scoring_of(variant: Variant, width: int) -> fused.Scoring:
    scale = 1 / math.sqrt(width)
    if not isinstance(variant, DistanceAware):
        return fused.DotProductScoring(scale)
    return fused.DistanceScoring(scale, FORMS[variant.mapping].family, variant.adjust == early_add)


def _operands(call: AttentionCall) -> fused.Operands:
    batch, queries, heads, _ = call.query.shape
    keys = call.key.shape[1]
    words = scale = None
    if call.dropout_rate is not None:
        assert call.dropout_words is not None, "they come together"
        threshold = drop_threshold(call.dropout_rate)
        of_heads = make_head_words(
            call.dropout_words,
            jnp.arange(batch, dtype=jnp.int32)[:, None],
            jnp.arange(heads, dtype=jnp.int32)[None, :],
        )
        words = _together((*of_heads, threshold), (batch, heads))
        scale = jnp.broadcast_to(1 / (1 - call.dropout_rate), (batch, heads, 1))
    return fused.Operands(
        query=_padded(call.query),
        key=_padded(call.key),
        value=_padded(call.value),
        coefficients=_coefficients(call, (batch, heads), queries + keys),
        query_lengths=_lengths(call.query_lengths, batch, queries),
        key_lengths=_lengths(call.key_lengths, batch, keys),
        offset=jnp.broadcast_to(call.offset, (batch,)),
        dropout_words=words,
        dropout_scale=scale,
    )


def _coefficients(
    call: AttentionCall, shape: tuple[int, int], furthest: int
) -> Float[Array, "B N C"]:
    """The numbers of the mapping, and what it is at the furthest distance."""
    variant = call.variant
    if not isinstance(variant, DistanceAware):
        return jnp.zeros((*shape, 0), jnp.float32)
    first, second, height = FORMS[variant.mapping].numbers(variant.weight, variant.shape)
    far = jax.lax.stop_gradient(variant.mapping(variant.weight * furthest, variant.shape) / height)
    unit = fused.LOG2E
    if variant.adjust == early_multiply:
        unit /= math.sqrt(call.query.shape[-1])
    return _together((first, second, height * unit, far), shape)


def _together(arrays: tuple[Array, ...], shape: tuple[int, int]) -> Array:
    """Numbers for all, for each head or for each head of each example, side by side."""
    broadcast = []
    for array in arrays:
        array = array.reshape((1,) * (2 - array.ndim) + array.shape)
        broadcast.append(jnp.broadcast_to(array, shape))
    return jnp.stack(broadcast, axis=-1)


def _tolerance(call: AttentionCall) -> float:
    """By how much a score may be off; 0: by nothing, f is evaluated everywhere."""
    if not isinstance(call.variant, DistanceAware) or call.dropout_rate is not None:
        return 0.0
    if call.variant.tolerance is not None:
        return call.variant.tolerance
    return TOLERANCE if max(call.query.shape[1], call.key.shape[1]) >= SHORTEST else 0.0


def _padded(x: Float[Array, "B L N W"]) -> Float[Array, "B _ N _"]:
    """x with a width that the matrix units know, and a length that the copy engine does."""
    width = next(width for width in WIDTHS if width >= x.shape[-1])
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % GRAIN), (0, 0), (0, width - x.shape[-1])))


def _lengths(lengths: Array | None, batch: int, length: int) -> Array:
    """How many are real, never more than there are."""
    if lengths is None:
        return jnp.full((batch,), length, jnp.int32)
    return jnp.clip(lengths, 0, length)
