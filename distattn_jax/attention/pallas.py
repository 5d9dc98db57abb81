"""Implementation with the package `fused`, for variants with scores of q · k and i - j.

This module converts a call into the operands of the kernels: coefficients or tables of the distance
function, tables of relations, lengths of every example, masks and hash words for dropout.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from distattn_jax.attention import fused, gpu_inputs, mesh, position_tables
from distattn_jax.attention.arguments import Attended, AttentionCall
from distattn_jax.attention.dropout import drop_threshold, kept_scale, make_head_words
from distattn_jax.attention.fused import derivative
from distattn_jax.attention.fused.visible_columns import INFINITE_RADIUS, Window
from distattn_jax.attention.variants import (
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    T5Buckets,
    TransformerXL,
    Variant,
    alibi,
    early_add,
    early_multiply,
    mappings,
)
from distattn_jax.attention.variants.sinusoid import sinusoid

OLDEST_JAX = (0, 11)
HOPPER = 9  # compute capability: only this generation has the matrix instructions of the kernels
WIDTHS = (16, 32, 64, 128)  # widths of heads in the kernels
LENGTH_MULTIPLE = 8
MASK_MULTIPLE = 16  # bytes: the copy engine needs aligned rows
MAX_CLIP_DISTANCE = 128  # of relative positions
MIN_V = -80.0  # of a learnable sigmoid, so that e^v does not underflow
DEFAULT_TOLERANCE = 2.0**-10  # about the rounding error of a score from 16-bit inputs
MIN_SATURATED_LENGTH = 1024  # shorter maps have too few tiles for skipping to pay off
MAX_TABLE_PARAMETERS = 4  # per head: the kernels read and sum one more table for each of them


class _KernelMapping(NamedTuple):
    """Mapping of distance-aware attention, written as height times a distance function f.

    Attributes:
      function: Distance function f.
      coefficients: Computes slope, shift and height from the distance weight w and the parameters
        `shape` of the mapping.
    """

    function: fused.DistanceFunction
    coefficients: Callable[[Array, Any], tuple[Array, Array, Array]]


def _learnable_sigmoid_coefficients(weight, shape):
    v = jnp.clip(shape, MIN_V, mappings.LARGEST_EXPONENT)
    return weight, -v, 1 + jnp.exp(v)


def _sigmoid_coefficients(weight, shape):
    return weight, jnp.zeros_like(weight), jnp.ones_like(weight)


def _exponent_coefficients(weight, shape):
    largest_exponent = jnp.full_like(weight, mappings.LARGEST_EXPONENT * fused.LOG2E)
    return weight * fused.LOG2E, largest_exponent, jnp.ones_like(weight)


def _linear_coefficients(weight, shape):
    slope, intercept = shape
    return slope * weight, intercept, jnp.ones_like(weight)


def _clip_coefficients(weight, shape):
    return weight, jax.lax.stop_gradient(shape), jnp.ones_like(weight)


KERNEL_MAPPINGS: dict[Any, _KernelMapping] = {
    mappings.learnable_sigmoid: _KernelMapping(fused.SIGMOID, _learnable_sigmoid_coefficients),
    mappings.sigmoid: _KernelMapping(fused.SIGMOID, _sigmoid_coefficients),
    mappings.exponent: _KernelMapping(fused.EXPONENTIAL, _exponent_coefficients),
    mappings.linear: _KernelMapping(fused.LINEAR, _linear_coefficients),
    mappings.clip: _KernelMapping(fused.CLIPPED, _clip_coefficients),
}


def run(call: AttentionCall) -> Attended:
    """Compute attention with the fused kernels, on each device for its own examples and heads."""
    # Import the kernels only here: importing Pallas takes long, and an old JAX lacks Mosaic GPU.
    from distattn_jax.attention.fused.gpu.kernels import select_kernels

    if call.variant.as_dot_product is not None:
        call = gpu_inputs.write_as_dot_product(call)
    queries = call.query.shape[1]
    _, keys, _, value_width = call.value.shape
    plan = fused.Plan(
        scoring=_make_scoring(call),
        window=_make_window(call),
        received=call.options.received,
        logsumexp=call.options.logsumexp,
        tolerance=_select_tolerance(call),
    )
    attend = functools.partial(derivative.fused_attention, select_kernels(), plan)
    values, received, logsumexp = mesh.run_sharded(attend, _make_operands(call))
    return Attended(
        values[:, :queries, :, :value_width],
        received=None if received is None else received[:, :, :keys],
        logsumexp=None if logsumexp is None else logsumexp[:, :, :queries],
    )


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return why the fused kernels do not support a call, or None if they support the call."""
    reason = _unsupported_variant_reason(call.variant)
    if reason is not None:
        return reason
    if call.options.weights:
        return "it does not store the attention weights: weights must be False"
    if call.has_symbolic_shape:
        return "it needs shapes of known size"
    reason = gpu_inputs.unsupported_dtype_reason(call)
    if reason is not None:
        return reason
    width = call.query.shape[-1]
    if call.variant.as_dot_product is not None:
        width = jax.eval_shape(gpu_inputs.write_as_dot_product, call).query.shape[-1]
    widest = max(width, call.value.shape[-1])
    if widest > WIDTHS[-1]:
        written = "" if width == call.query.shape[-1] else " written as dot-product attention"
        return f"heads{written} must be at most {WIDTHS[-1]} wide; got {widest}"
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    if version < OLDEST_JAX:
        return f"it needs JAX {'.'.join(map(str, OLDEST_JAX))} or newer; this is {jax.__version__}"
    if mesh.is_partly_manual():
        return "it does not support a shard_map over only some of the axes of the mesh"
    # Without any GPU the call is supported: the program may be lowered for another machine.
    capabilities = gpu_inputs.cuda_capabilities()
    if any(int(capability) != HOPPER for capability in capabilities):
        return f"it needs Hopper GPUs, compute capability {HOPPER}; got {capabilities}"
    return None


def _unsupported_variant_reason(variant: Variant) -> str | None:
    """Return the reason why no kernel supports a variant, or None if a kernel supports it."""
    if variant.as_dot_product is not None or isinstance(variant, TransformerXL):
        return None
    if isinstance(variant, RelativePosition) or _is_t5(variant):
        widest = max(_clip_distances(variant), default=0)
        if widest > MAX_CLIP_DISTANCE:
            return f"relations must be clipped at most at {MAX_CLIP_DISTANCE}; got {widest}"
        return None
    if not isinstance(variant, DistanceAware | DistanceBias):
        return f"there is no kernel for {type(variant).__name__}"
    if isinstance(variant, DistanceAware) and variant.adjust not in (early_multiply, early_add):
        return "it cannot adjust weights after the softmax: adjust must be early"
    parameters = position_tables.count_parameters(variant)
    if _uses_tables(variant) and parameters > MAX_TABLE_PARAMETERS:
        return (
            f"a function of the relative position must have at most {MAX_TABLE_PARAMETERS} "
            f"parameters per head; got {parameters}"
        )
    return None


def _uses_tables(variant: Variant) -> bool:
    """Return True if the kernels read the function of the relative position from a table."""
    if isinstance(variant, DistanceAware):
        return variant.mapping not in KERNEL_MAPPINGS
    return isinstance(variant, DistanceBias) and not (_is_alibi(variant) or _is_t5(variant))


def _is_alibi(variant: Variant) -> bool:
    """Return True for ALiBi, whose bias is a linear function of the distance."""
    return (
        isinstance(variant, DistanceBias)
        and variant.function is alibi
        and jnp.ndim(variant.parameters) == 1
    )


def _make_scoring(call: AttentionCall) -> fused.Scoring:
    """Return the scoring of a variant: how the kernels compute scores from products q · k."""
    variant, scale = call.variant, call.options.scale
    if _clip_distances(variant):
        # Relations that are clipped at 0 equal relations with repeated vectors that are clipped
        # at 1. The two tables of a call are resized to the larger one in the same way.
        clip_distance = max(1, *_clip_distances(variant))
        has_products = not isinstance(variant, RelativePosition) or variant.keys is not None
        has_weights = isinstance(variant, RelativePosition) and variant.values is not None
        return fused.RelationScoring(scale, clip_distance, has_products, has_weights)
    if isinstance(variant, DotProduct | RelativePosition):
        return fused.DotProductScoring(scale)
    if isinstance(variant, TransformerXL):
        return fused.PositionScoring(scale)
    is_additive = not isinstance(variant, DistanceAware) or variant.adjust == early_add
    if _uses_tables(variant):
        return fused.TableScoring(scale, is_additive, position_tables.count_parameters(variant))
    function = fused.LINEAR  # of ALiBi
    if isinstance(variant, DistanceAware):
        function = KERNEL_MAPPINGS[variant.mapping].function
    return fused.DistanceScoring(scale, function, is_additive)


def _is_t5(variant: Variant) -> bool:
    """Return True for the buckets of T5, a bias that is constant at large distances."""
    return isinstance(variant, DistanceBias) and isinstance(variant.function, T5Buckets)


def _clip_distances(variant: Variant) -> list[int]:
    """Return the distance k at which relations are clipped, for each table of 2k+1 relations.

    The list is empty for variants without relations.
    """
    if isinstance(variant, DistanceBias) and isinstance(variant.function, T5Buckets):
        return [variant.function.max_distance]
    if not isinstance(variant, RelativePosition):
        return []
    tables = (variant.keys, variant.values)
    return [table.shape[1] // 2 for table in tables if table is not None]


def _select_tolerance(call: AttentionCall) -> float:
    """Return the largest error of a score from treating the distance function as constant.

    If the result is 0, the kernels evaluate the distance function at all distances.
    """
    if not isinstance(call.variant, DistanceAware):
        return 0.0
    if call.variant.tolerance is not None:
        return call.variant.tolerance
    longest = max(call.query.shape[1], call.key.shape[1])
    return DEFAULT_TOLERANCE if longest >= MIN_SATURATED_LENGTH else 0.0


def _make_operands(call: AttentionCall) -> fused.Operands:
    """Return the operands of the kernels. Query, key and value are padded."""
    batch, queries, heads, _ = call.query.shape
    keys = call.key.shape[1]
    dropout_words = dropout_scale = None
    if call.dropout_rate is not None:
        assert call.dropout_words is not None, "a dropout rate comes with words"
        threshold = drop_threshold(call.dropout_rate)
        head_words = make_head_words(
            call.dropout_words,
            jnp.arange(batch, dtype=jnp.int32)[:, None],
            jnp.arange(heads, dtype=jnp.int32)[None, :],
        )
        dropout_words = _stack((*head_words, threshold), (batch, heads))
        dropout_scale = jnp.broadcast_to(kept_scale(call.dropout_rate), (batch, heads, 1))
    query, key, value = _make_query(call), _pad(call.key), _pad(call.value)
    if _uses_tables(call.variant):
        coefficients, tables = _make_tables(call, query.shape[1], key.shape[1])
    else:
        coefficients, tables = _make_coefficients(call), ()
    return fused.Operands(
        query=query,
        key=key,
        value=value,
        coefficients=coefficients,
        tables=tables,
        query_lengths=gpu_inputs.fill_lengths(call.query_lengths, batch, queries),
        key_lengths=gpu_inputs.fill_lengths(call.key_lengths, batch, keys),
        offset=jnp.broadcast_to(call.offset, (batch,)),
        query_segments=_pad_segments(call.query_segments),
        key_segments=_pad_segments(call.key_segments),
        **_make_masks(call)._asdict(),
        dropout_words=dropout_words,
        dropout_scale=dropout_scale,
        **_make_relation_tables(call),
        **_make_positions(call, query.shape[1], key.shape[1]),
    )


class _Masks(NamedTuple):
    """Masks of a call: of keys, of queries, and of pairs of a query and a key."""

    key_mask: Bool[Array, "#B #N S"] | None = None
    query_mask: Bool[Array, "#B #N T"] | None = None
    mask: Num[Array, "#B #N _ _"] | None = None


def _split_mask(call: AttentionCall) -> _Masks:
    """Return the mask of a call as a key mask, a query mask or a mask of pairs."""
    if call.mask is None:
        return _Masks()
    if call.mask.shape[2] == 1:
        shape = (*call.mask.shape[:2], call.key.shape[1])
        return _Masks(key_mask=jnp.broadcast_to(call.mask[:, :, 0], shape))
    if call.mask.shape[3] == 1:
        return _Masks(query_mask=call.mask[..., 0])
    return _Masks(mask=call.mask)


def _make_masks(call: AttentionCall) -> _Masks:
    """Pad the masks for the kernels. The key mask also hides the keys beyond `key_lengths`."""
    masks = _split_mask(call)
    queries, keys = (x.shape[1] + -x.shape[1] % LENGTH_MULTIPLE for x in (call.query, call.key))
    if masks.key_mask is not None:
        key_mask = _pad_last(masks.key_mask, keys)
        if call.key_lengths is not None:
            key_mask &= jnp.arange(keys)[None, None, :] < call.key_lengths[:, None, None]
        return masks._replace(key_mask=key_mask)
    if masks.query_mask is not None:
        return masks._replace(query_mask=_pad_last(masks.query_mask, queries))
    if masks.mask is not None:
        padding = [-length % MASK_MULTIPLE for length in masks.mask.shape[2:]]
        widths = ((0, 0), (0, 0), (0, padding[0]), (0, padding[1]))
        return masks._replace(mask=jnp.pad(masks.mask.astype(jnp.int8), widths))
    return masks


def _pad_last(x: Bool[Array, "#B #N L"], length: int) -> Bool[Array, "#B #N {length}"]:
    """Pad the last axis with False."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, length - x.shape[-1])))


def _pad_segments(segments: Int[Array, "B L"] | None) -> Int[Array, "B _"] | None:
    """Pad the segments to a length that the kernels support, by repeating the last segment."""
    if segments is None:
        return None
    return jnp.pad(segments, ((0, 0), (0, -segments.shape[1] % LENGTH_MULTIPLE)), mode="edge")


def _make_window(call: AttentionCall) -> Window:
    """Return the limits of the distance to visible keys, from the window and the causal mask."""
    # A larger limit would overflow when a position is added to it.
    limits = call.options.window or (INFINITE_RADIUS, INFINITE_RADIUS)
    window = Window(*(limit if limit < INFINITE_RADIUS else None for limit in limits))
    return window._replace(right=0) if call.options.is_causal else window


def _make_relation_tables(call: AttentionCall) -> dict[str, Float[Array, "..."]]:
    """Return the tables of relative position attention, as wide as the padded keys and values.

    For the buckets of T5, return one number for each relation.
    """
    variant = call.variant
    if isinstance(variant, DistanceBias) and isinstance(variant.function, T5Buckets):
        distance = variant.function.max_distance
        relative_positions = jnp.arange(distance, -distance - 1, -1)
        bias = jax.vmap(variant.function, (None, 0))(relative_positions, variant.parameters)
        return {"relation_bias": bias / call.options.scale}
    if not isinstance(variant, RelativePosition) or not _clip_distances(variant):
        return {}
    clip_distance = max(1, *_clip_distances(variant))
    tables = {"key_table": variant.keys, "value_table": variant.values}
    resized = {}
    for name, table in tables.items():
        if table is not None:
            padding = _padded_width(table.shape[-1]) - table.shape[-1]
            table = fused.resize_table(table, clip_distance)
            resized[name] = jnp.pad(table, ((0, 0), (0, 0), (0, padding)))
    return resized


def _make_query(call: AttentionCall) -> Float[Array, "B T N H"]:
    """Return the padded queries that are multiplied by keys."""
    if isinstance(call.variant, TransformerXL):
        return _add_bias(call.query, call.variant.content_bias)
    return _pad(call.query)


def _add_bias(query: Float[Array, "B T N H"], bias: Float[Array, "#N H"]) -> Array:
    """Add a vector of each head to the queries, round to their dtype, and pad them."""
    return _pad((query + bias[None, None]).astype(query.dtype))


def _make_positions(call: AttentionCall, queries: int, keys: int) -> dict[str, Array]:
    """Return the position queries and position vectors of Transformer-XL attention.

    Args:
      call: Arguments of attention.
      queries: Number of queries after padding.
      keys: Number of keys after padding.
    """
    variant = call.variant
    if not isinstance(variant, TransformerXL):
        return {}
    relative = call.offset[:, None] + jnp.arange(-keys, queries + 1, dtype=jnp.int32)[None]
    _, width, head_width = variant.projection.shape
    sinusoids = sinusoid(relative.reshape(-1), width, variant.projection.dtype)
    sinusoids = sinusoids.reshape(*relative.shape, width)
    positions = jnp.einsum("bpd,ndh->bpnh", sinusoids, variant.projection)
    return {
        "position_query": _add_bias(call.query, variant.position_bias),
        "positions": gpu_inputs.pad_rows(
            positions.astype(call.query.dtype), length_multiple=1, width=_padded_width(head_width)
        ),
    }


def _make_coefficients(call: AttentionCall) -> Float[Array, "B N C"]:
    """Return the stacked coefficients of the distance function.

    The C = 4 coefficients are slope, shift, height and far value. For the dot product, C is 0.
    """
    batch, queries, heads, _ = call.query.shape
    variant = call.variant
    if isinstance(variant, DistanceBias) and _is_alibi(variant):
        zero = jnp.zeros_like(variant.parameters)
        height = jnp.full_like(zero, fused.LOG2E)
        return _stack(
            fused.Coefficients(-variant.parameters, zero, height, far=zero), (batch, heads)
        )
    if not isinstance(variant, DistanceAware):
        return jnp.zeros((batch, heads, 0), jnp.float32)
    mapping: Any = variant.mapping
    slope, shift, height = KERNEL_MAPPINGS[mapping].coefficients(variant.weight, variant.shape)
    # f at a distance beyond all others, rounded exactly as the mapping rounds it.
    longest = queries + call.key.shape[1]
    far = jax.lax.stop_gradient(mapping(variant.weight * longest, variant.shape) / height)
    factor = fused.LOG2E
    if variant.adjust == early_multiply:
        factor *= call.options.scale
    return _stack(fused.Coefficients(slope, shift, height * factor, far), (batch, heads))


def _make_tables(
    call: AttentionCall, queries: int, keys: int
) -> tuple[Float[Array, "B N C"], tuple[Float[Array, "B N D"], ...]]:
    """Return the parameters and the tables of the function of the relative position.

    Args:
      call: Arguments of attention.
      queries: Number of queries after padding.
      keys: Number of keys after padding.
    """
    coefficients, tables = position_tables.make_tables(call, queries, keys)
    factor = fused.LOG2E  # because the scores of the kernels are to base 2
    if isinstance(call.variant, DistanceAware) and call.variant.adjust == early_multiply:
        factor *= call.options.scale
    return coefficients, tuple(factor * table for table in tables)


def _stack(arrays: tuple[Array, ...], shape: tuple[int, int]) -> Array:
    """Broadcast arrays of at most two axes to (batch, heads), and stack them on a new last axis."""
    broadcast = []
    for array in arrays:
        array = array.reshape((1,) * (2 - array.ndim) + array.shape)
        broadcast.append(jnp.broadcast_to(array, shape))
    return jnp.stack(broadcast, axis=-1)


def _pad(x: Float[Array, "B L N W"]) -> Float[Array, "B _ N _"]:
    """Pad x with zeros to a width and a length that the kernels support."""
    width = _padded_width(x.shape[-1])
    return gpu_inputs.pad_rows(x, length_multiple=LENGTH_MULTIPLE, width=width)


def _padded_width(width: int) -> int:
    """Return the smallest width of the kernels that is at least `width`."""
    return next(supported for supported in WIDTHS if supported >= width)
