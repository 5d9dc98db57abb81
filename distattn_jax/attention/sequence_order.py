"""Order of a causal sequence that gives every device the same work.

Under a causal mask, late queries see more keys than early ones. If each of P devices had one piece
of consecutive positions, the last device would compute almost twice the mean. In the balanced
order, the sequence has 2P chunks, and device r has an early one and a late one, r and 2P - 1 - r:

    4 devices, 8 chunks    contiguous  01 23 45 67    balanced  07 16 25 34
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int, Shaped


def to_balanced_order(x: Shaped[Array, "..."], shards: int, axis: int = 1) -> Shaped[Array, "..."]:
    """Reorder one axis of an array, from the order of the sequence to the balanced order.

    Shard the result over `shards` devices, and pass it to `attention` with
    `sequence=ShardedSequence(order="balanced")`. The balanced order of `jnp.arange(T)` are the
    positions of the reordered tokens.

    Args:
      x: Array, such as token ids, labels or positions.
      shards: Number of devices that share a sequence.
      axis: Axis of the sequence. Its size is a multiple of 2 * shards.
    """
    return _take_chunks(x, list_chunks(shards), axis)


def from_balanced_order(
    x: Shaped[Array, "..."], shards: int, axis: int = 1
) -> Shaped[Array, "..."]:
    """Reorder one axis of an array, from the balanced order to the order of the sequence.

    Args:
      x: Array in the balanced order.
      shards: Number of devices that share a sequence.
      axis: Axis of the sequence.
    """
    return _take_chunks(x, np.argsort(list_chunks(shards)), axis)


def list_chunks(shards: int) -> np.ndarray:
    """Return the chunks of device 0, of device 1, and so on, in the balanced order."""
    early = np.arange(shards)
    return np.stack((early, 2 * shards - 1 - early), axis=1).reshape(-1)


def chunk_start(
    device: Int[Array, ""], chunk: Any, length: int, shards: int, *, is_balanced: bool
) -> Int[Array, ""]:
    """Return the index of the first position of a chunk in the sequence.

    Args:
      device: Index of the device that has the chunk.
      chunk: Index of the chunk on this device: 0, or also 1 in the balanced order.
      length: Number of positions of a chunk.
      shards: Number of devices that share a sequence.
      is_balanced: True for the balanced order. Otherwise a device has one chunk.
    """
    if not is_balanced:
        return device * length
    return jnp.where(chunk == 0, device, 2 * shards - 1 - device) * length


def balance_shard(
    x: Shaped[Array, "..."], names: tuple[str, ...], size: int, axis: int
) -> Shaped[Array, "..."]:
    """Exchange chunks between devices, from the order of the sequence to the balanced order.

    Call it inside a `shard_map`.

    Args:
      x: Shard of this device, two consecutive chunks.
      names: Mesh axes that shard the sequence.
      size: Number of devices that share a sequence.
      axis: Axis of the sequence. It has an even size.
    """
    even, odd = (
        lax.ppermute(chunk, names, list(enumerate(owners)))
        for chunk, owners in zip(jnp.split(x, 2, axis), _list_owners(size), strict=True)
    )
    return jnp.concatenate(_swap_on_odd_devices(even, odd, names), axis)


def restore_shard(
    x: Shaped[Array, "..."], names: tuple[str, ...], size: int, axis: int
) -> Shaped[Array, "..."]:
    """Exchange chunks between devices, from the balanced order to the order of the sequence.

    This is the inverse of `balance_shard`, with the same arguments.
    """
    early, late = jnp.split(x, 2, axis)
    chunks = [
        lax.ppermute(chunk, names, [(owner, home) for home, owner in enumerate(owners)])
        for chunk, owners in zip(
            _swap_on_odd_devices(early, late, names), _list_owners(size), strict=True
        )
    ]
    return jnp.concatenate(chunks, axis)


def _list_owners(size: int) -> list[list[int]]:
    """Return the device that owns the even chunk 2r and the odd chunk 2r + 1 of each device r.

    Device r has both chunks in the order of the sequence. The owner has one in the balanced order.
    """
    return [[min(c, 2 * size - 1 - c) for c in range(first, 2 * size, 2)] for first in (0, 1)]


def _swap_on_odd_devices(first: Array, second: Array, names: tuple[str, ...]) -> list[Array]:
    """Exchange two chunks on devices with an odd index.

    The early chunk of device r has the number r: it is the even chunk if r is even. The late chunk
    is the other one.
    """
    is_odd = lax.axis_index(names) % 2 == 1
    return [jnp.where(is_odd, second, first), jnp.where(is_odd, first, second)]


def _take_chunks(x: Array, chunks: np.ndarray, axis: int) -> Array:
    """Divide an axis into as many chunks as there are indices, and reorder the chunks."""
    count = len(chunks)
    if x.shape[axis] % count:
        raise ValueError(
            f"axis {axis} must be a multiple of 2 * shards, {count}; got shape {x.shape}."
        )
    pieces = jnp.split(jnp.asarray(x), count, axis)
    return jnp.concatenate([pieces[chunk] for chunk in chunks], axis)
