"""Requirements and input conversions that the GPU implementations share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.arguments import AttentionCall


def unsupported_dtype_reason(call: AttentionCall) -> str | None:
    """Return None if query, key and value have the same 16-bit dtype, otherwise an error text."""
    dtypes = {x.dtype for x in (call.query, call.key, call.value)}
    if dtypes in ({jnp.dtype(jnp.bfloat16)}, {jnp.dtype(jnp.float16)}):
        return None
    return f"query, key and value must all be bfloat16 or float16; got {sorted(map(str, dtypes))}"


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
