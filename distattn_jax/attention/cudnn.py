"""Implementation "cudnn": flash attention of cuDNN, for variants with dot-product scores.

A variant qualifies if it can be written as dot-product attention: see `Variant.as_dot_product`.

cuDNN requires 16-bit inputs, even lengths, and the same width for query, key and value. Lengths and
widths are padded with zeros, which does not change the result.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Int

from distattn_jax.attention import devices
from distattn_jax.attention.arguments import Attended, AttentionCall
from distattn_jax.attention.fused.kernel_view import Block
from distattn_jax.attention.fused.variants.dot_product import write_as_dot_product, written_width

MAX_WIDTH = 128
MIN_CAPABILITY = 8.0
WIDTH_MULTIPLE = 8
LENGTH_MULTIPLE = 2
# On an H200, cuDNN was faster than our kernels for dot products of wider heads and longer inputs.
FASTER_ABOVE_WIDTH = 64
FASTER_FROM_LENGTH = 1024


def run(call: AttentionCall) -> Attended:
    """Rewrite the variant as dot-product attention, and compute it with cuDNN."""
    block = Block(call.query, call.key, call.value, call.offset, call.options.scale)
    query, key = write_as_dot_product(call.variant, block)
    queries, value_width = call.query.shape[1], call.value.shape[3]
    width = max(query.shape[-1], value_width)
    width += -width % WIDTH_MULTIPLE

    def pad(x: Array) -> Array:
        length_padding = (0, -x.shape[1] % LENGTH_MULTIPLE)
        return jnp.pad(x, ((0, 0), length_padding, (0, 0), (0, width - x.shape[-1])))

    values = jax.nn.dot_product_attention(
        pad(query),
        pad(key),
        pad(call.value),
        scale=call.options.scale,
        is_causal=call.options.is_causal,
        query_seq_lengths=_sequence_lengths(call.query_lengths, call.query),
        key_value_seq_lengths=_sequence_lengths(call.key_lengths, call.key),
        implementation="cudnn",
    )
    values = values[:, :queries, :, :value_width]
    return Attended(jnp.where(_has_visible_key(call), values, 0))


def unsupported_reason(call: AttentionCall) -> str | None:
    """Return an error text if cuDNN does not support the call, otherwise None."""
    if call.variant.as_dot_product is None:
        return f"{type(call.variant).__name__} cannot be written as dot-product attention"
    if call.options.received or call.options.weights or call.options.logsumexp:
        return "it returns values only: received, weights and logsumexp must be False"
    if call.dropout_rate is not None:
        return "its dropout drops other entries: dropout_rate must be 0"
    if call.mask is not None:
        return (
            "it would expand a mask to (batch, heads, queries, keys): mask must be None "
            "(use query_lengths and key_lengths)"
        )
    if call.query_segments is not None:
        return "it does not support segments: query_segments must be None"
    if call.options.window is not None:
        return "it does not support windows: local_window_size must be None"
    if call.has_symbolic_shape:
        return "it needs shapes of known size"
    if call.options.is_causal and not call.options.aligned:
        return "its causal mask has no offset: query_offset must be 0"
    reason = call.unsupported_dtype_reason("bfloat16", "float16")
    if reason is not None:
        return reason
    width = written_width(call.variant, call.query)
    if max(width, call.value.shape[-1]) > MAX_WIDTH:
        return (
            f"heads written as dot-product attention must be at most {MAX_WIDTH} wide; "
            f"got {width}, values {call.value.shape[-1]}"
        )
    if AxisType.Explicit in jax.typeof(call.query).sharding.mesh.axis_types:
        return "it does not support a mesh with Explicit axes"
    # JAX refuses to trace cuDNN attention on a machine without a suitable GPU.
    capabilities = devices.local_machine().cuda_capabilities
    if not capabilities or min(capabilities) < MIN_CAPABILITY:
        return f"there is no CUDA device of compute capability {MIN_CAPABILITY} or newer"
    return None


def is_faster(call: AttentionCall) -> bool:
    """Return True if cuDNN is probably faster than the implementation "pallas" for this call.

    This is so for dot products of wide heads and long sequences. The caller must check separately
    that cuDNN supports the call.
    """
    is_dot_product = call.variant.as_dot_product is not None and not call.variant.uses_positions
    if not is_dot_product or call.has_symbolic_shape:
        return False
    lengths = (call.query.shape[1], call.key.shape[1])
    return call.query.shape[3] > FASTER_ABOVE_WIDTH and min(lengths) >= FASTER_FROM_LENGTH


def _sequence_lengths(lengths: Array | None, x: Array) -> Int[Array, " B"] | None:
    """Return the sequence length of each example for cuDNN, or None if no sequence is padded.

    A length of 0 is raised to 1, because the result of cuDNN is undefined for a softmax without
    keys. `run` later sets the output of queries without a visible key to 0.

    Args:
      lengths: Number of queries or keys of each example before the padding. None if the caller of
        `attention` passed no lengths.
      x: Query or key array, shape (B, L, N, H). If L is odd, `run` pads it to an even length.
    """
    batch, length = x.shape[:2]
    if lengths is not None:
        return jnp.maximum(lengths, 1)
    return jnp.full((batch,), length, jnp.int32) if length % LENGTH_MULTIPLE else None


def _has_visible_key(call: AttentionCall) -> Bool[Array, "B T 1 1"]:
    """Return a mask that is True for queries that can attend to at least one key.

    The mask is False for padding queries, and for all queries of an example without keys.
    """
    batch, queries, _, _ = call.query.shape
    is_valid = jnp.ones((batch, queries), bool)
    if call.query_lengths is not None:
        is_valid &= jnp.arange(queries, dtype=jnp.int32)[None, :] < call.query_lengths[:, None]
    if call.key_lengths is not None:
        is_valid &= call.key_lengths[:, None] > 0
    return is_valid[:, :, None, None]
