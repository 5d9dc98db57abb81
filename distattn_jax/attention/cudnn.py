"""cuDNN's flash attention, for the variants that are dot-product attention in disguise.

`jax.nn.dot_product_attention` wants 16-bit inputs, even lengths, and one width for query, key and
value: what is short or narrow is padded, which changes nothing.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jaxtyping import Array, Bool, Float

from distattn_jax.attention.arguments import Attended, AttentionCall, Head
from distattn_jax.attention.vmap_heads import vmap_heads

WIDEST = 128
OLDEST = 8.0  # compute capability


def run(call: AttentionCall) -> Attended:
    """The variant's plain form through cuDNN."""
    queries, value_width = call.query.shape[1], call.value.shape[3]
    query, key = vmap_heads(_plain, call, head_axes=1)
    scale = query.shape[-1] ** -0.5
    width = max(query.shape[-1], value_width)
    query, key, value = (
        _padded(x.astype(call.value.dtype), width) for x in (query, key, call.value)
    )
    values = jax.nn.dot_product_attention(
        query,
        key,
        value,
        scale=scale,
        is_causal=call.options.is_causal,
        query_seq_lengths=_lengths(call.query_lengths, call.query, query),
        key_value_seq_lengths=_lengths(call.key_lengths, call.key, key),
        implementation="cudnn",
    )
    return Attended(jnp.where(_sees_a_key(call), values[:, :queries, :, :value_width], 0))


def unsupported_reason(call: AttentionCall) -> str | None:
    """What keeps cuDNN from serving this call, or None."""
    dtypes = {x.dtype for x in (call.query, call.key, call.value)}
    if call.variant.as_dot_product is None:
        return f"{type(call.variant).__name__} is not dot-product attention in disguise"
    if call.options.received or call.options.weights:
        return "it gives values only: received and weights must be False"
    if call.dropout_rate is not None:
        return "its dropout is not ours: dropout_rate must be 0"
    if call.mask is not None:
        return "a mask would be expanded: mask must be None (use query_lengths and key_lengths)"
    if call.options.is_causal and not call.options.aligned:
        return "its causal mask begins at the first key: query_offset must be 0"
    if dtypes not in ({jnp.dtype(jnp.bfloat16)}, {jnp.dtype(jnp.float16)}):
        return (
            f"query, key and value must all be bfloat16 or float16; got {sorted(map(str, dtypes))}"
        )
    query, _ = jax.eval_shape(functools.partial(vmap_heads, _plain, call, head_axes=1))
    if max(query.shape[-1], call.value.shape[-1]) > WIDEST:
        return (
            f"heads must be at most {WIDEST} wide in their plain form; "
            f"got {query.shape[-1]}, values {call.value.shape[-1]}"
        )
    if AxisType.Explicit in jax.typeof(call.query).sharding.mesh.axis_types:
        return "it does not partition itself over a mesh with Explicit axes"
    if not _has_device():
        return f"there is no CUDA device of compute capability {OLDEST} or newer"
    return None


def _plain(head: Head) -> tuple[Array, Array]:
    assert head.variant.as_dot_product is not None, "refused above"
    return head.variant.as_dot_product(head.query, head.key, head.offset)


def _has_device() -> bool:
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return False
    return all(float(device.compute_capability) >= OLDEST for device in devices)


def _padded(x: Float[Array, "B L N W"], width: int) -> Float[Array, "B _ N _"]:
    """x with an even length and a width that is a multiple of 8, at least `width`."""
    wider = width + -width % 8 - x.shape[-1]
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, wider)))


def _lengths(lengths: Array | None, before: Array, after: Array) -> Array | None:
    """The lengths cuDNN must know of: those given, or those from before the padding.

    A softmax over no key is undefined: cuDNN sees one key there, and the row is emptied afterwards.
    """
    if lengths is not None:
        return jnp.maximum(lengths, 1)
    batch, length = before.shape[:2]
    return None if after.shape[1] == length else jnp.full(batch, length, jnp.int32)


def _sees_a_key(call: AttentionCall) -> Bool[Array, "B T 1 1"]:
    batch, queries, _, _ = call.query.shape
    seen = jnp.ones((batch, queries), bool)
    if call.query_lengths is not None:
        seen &= jnp.arange(queries, dtype=jnp.int32)[None, :] < call.query_lengths[:, None]
    if call.key_lengths is not None:
        seen &= call.key_lengths[:, None] > 0
    return seen[:, :, None, None]
