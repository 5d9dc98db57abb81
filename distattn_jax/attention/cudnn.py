"""cuDNN's flash attention, for the variants that are dot-product attention in disguise.

`jax.nn.dot_product_attention` wants 16-bit inputs and one width for query, key and value: the
narrower ones are padded with zeros, which changes nothing.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jaxtyping import Array, Bool

from distattn_jax.attention.head import Attended
from distattn_jax.attention.lift import Call, lift
from distattn_jax.attention.variant import counted

WIDEST = 128
OLDEST = 8.0  # compute capability


def run(call: Call) -> Attended:
    """The variant's plain form through cuDNN."""
    dtype, value_width = call.value.dtype, call.value.shape[-1]
    query, key = lift(lambda h: h.variant.plain(h.query, h.key, h.offset), call, head_axes=1)
    scale = query.shape[-1] ** -0.5
    width = max(query.shape[-1], value_width)
    width += -width % 8
    query, key, value = (
        jnp.pad(x.astype(dtype), ((0, 0), (0, 0), (0, 0), (0, width - x.shape[-1])))
        for x in (query, key, call.value)
    )
    # A softmax over no key is undefined: cuDNN sees one key there, and the row is emptied below.
    values = jax.nn.dot_product_attention(
        query,
        key,
        value,
        scale=scale,
        is_causal=call.options.is_causal,
        query_seq_lengths=_at_least_one(call.query_lengths),
        key_value_seq_lengths=_at_least_one(call.key_lengths),
        implementation="cudnn",
    )
    return Attended(jnp.where(_sees_a_key(call), values[..., :value_width], 0))


def refuses(call: Call) -> str | None:
    """What keeps cuDNN from serving this call, or None."""
    dtypes = {x.dtype for x in (call.query, call.key, call.value)}
    width = max(call.query.shape[-1], call.value.shape[-1])
    if call.variant.plain is None:
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
    if width > WIDEST:
        return f"heads must be at most {WIDEST} wide; got {width}"
    if AxisType.Explicit in jax.typeof(call.query).sharding.mesh.axis_types:
        return "it does not partition itself over a mesh with Explicit axes"
    if not _has_device():
        return f"there is no CUDA device of compute capability {OLDEST} or newer"
    return None


def _has_device() -> bool:
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return False
    return all(float(device.compute_capability) >= OLDEST for device in devices)


def _at_least_one(lengths: Array | None) -> Array | None:
    return None if lengths is None else jnp.maximum(lengths, 1)


def _sees_a_key(call: Call) -> Bool[Array, "B T 1 1"]:
    batch, queries, _, _ = call.query.shape
    seen = jnp.ones((batch, queries), bool)
    if call.query_lengths is not None:
        seen &= counted(queries)[None, :] < call.query_lengths[:, None]
    if call.key_lengths is not None:
        seen &= call.key_lengths[:, None] > 0
    return seen[:, :, None, None]
