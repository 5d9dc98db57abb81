"""Requirements and input conversions that the GPU implementations share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.arguments import AttentionCall, Head
from distattn_jax.attention.variants import DotProduct
from distattn_jax.attention.vmap_heads import vmap_heads


def unsupported_dtype_reason(call: AttentionCall) -> str | None:
    """Return None if query, key and value have the same 16-bit dtype, otherwise an error text."""
    dtypes = {x.dtype for x in (call.query, call.key, call.value)}
    if dtypes in ({jnp.dtype(jnp.bfloat16)}, {jnp.dtype(jnp.float16)}):
        return None
    return f"query, key and value must all be bfloat16 or float16; got {sorted(map(str, dtypes))}"


def write_as_dot_product(call: AttentionCall) -> AttentionCall:
    """Return a call of dot-product attention with the same scores, and often with wider heads.

    Args:
      call: Arguments of attention, with a variant that defines `as_dot_product`.
    """
    if isinstance(call.variant, DotProduct):
        return call
    query, key = vmap_heads(_as_dot_product, call, head_axes=1)
    key = key[:, :, :: call.group_size]  # equal for all query heads of a group
    dtype = call.value.dtype
    return call._replace(query=query.astype(dtype), key=key.astype(dtype), variant=DotProduct())


def _as_dot_product(head: Head) -> tuple[Array, Array]:
    """Return a query and a key of some width: the scores of the head are scale query · key."""
    assert head.variant.as_dot_product is not None, "unsupported_reason excludes this variant"
    return head.variant.as_dot_product(head.query, head.key, head.offset)


def cuda_capabilities() -> list[float]:
    """Return the compute capability of each local CUDA device, such as 9.0 for Hopper.

    The list is empty on a machine without CUDA devices, where a program can still be lowered for a
    GPU of another machine.
    """
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return []
    return [float(device.compute_capability) for device in devices]


def pad_rows(
    x: Float[Array, "B L N W"], *, length_multiple: int, width: int
) -> Float[Array, "B _ N {width}"]:
    """Pad the length and the width of each head with zeros.

    Args:
      x: Query, key or value.
      length_multiple: The padded length is a multiple of this number.
      width: Padded width, at least W.
    """
    length_padding, width_padding = -x.shape[1] % length_multiple, width - x.shape[-1]
    return jnp.pad(x, ((0, 0), (0, length_padding), (0, 0), (0, width_padding)))


def fill_lengths(
    lengths: Int[Array, " B"] | None, batch: int, length: int
) -> Int[Array, " {batch}"]:
    """Return one length per example, clipped to lie between 0 and the length of the array.

    Args:
      lengths: Number of valid positions of each example. None means that all positions are valid.
      batch: Number of examples.
      length: Length of the array.
    """
    if lengths is None:
        return jnp.full((batch,), length, jnp.int32)
    return jnp.clip(lengths, 0, length)
