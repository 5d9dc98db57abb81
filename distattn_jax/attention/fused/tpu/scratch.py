"""Buffers in VMEM and semaphores of a program."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from distattn_jax.attention.fused.tpu.kernel_body import ROW_ARRAYS, KernelBody, KernelInputs
from distattn_jax.attention.fused.tpu.tile_configs import TileConfig

SLOTS = 2  # of each streamed array


class Scratch(NamedTuple):
    """Buffers in VMEM and semaphores of the copies.

    Attributes:
      slots: Two slots for each streamed array.
      arrived: A semaphore for each slot of each streamed array, in the order of `slots`.
      body: Buffers of the kernel body.
      kept: Buffers of the kernel body that keep their contents from block to block.
      sums: Float32 buffers for the summed outputs of 16 bits. Others are summed in place.
    """

    slots: dict[str, Any]
    arrived: Any
    body: dict[str, Any]
    kept: dict[str, Any]
    sums: dict[str, Any]


def scratch_types(
    body: KernelBody,
    inputs: KernelInputs,
    output_types: dict[str, jax.ShapeDtypeStruct],
    config: TileConfig,
    is_transposed: bool,
) -> tuple[Scratch]:
    """Return the types of all buffers and semaphores of a program."""
    _, tile_columns = config.divide(is_transposed=is_transposed)
    shapes: dict[str, tuple[int, int]] = {
        name: (tile_columns, array.shape[3])
        if name in ROW_ARRAYS
        else (array.shape[2], tile_columns)
        for name, array in inputs.streamed.items()
    }
    shapes |= dict.fromkeys(inputs.entries, config.shape)
    shapes |= dict.fromkeys(inputs.diagonals, (1, config.queries + config.keys))
    for name, array in inputs.positions.items():
        shapes[name] = (array.shape[2], config.queries + config.keys)
    arrays = inputs.streamed | inputs.entries | inputs.diagonals | inputs.positions
    slots = {
        name: pltpu.VMEM((SLOTS, *shape), arrays[name].dtype) for name, shape in shapes.items()
    }
    return (
        Scratch(
            slots=slots,
            arrived=pltpu.SemaphoreType.DMA((len(slots), SLOTS)),
            body={
                name: pltpu.VMEM(x, jnp.float32) if isinstance(x, tuple) else x
                for name, x in body.scratch.items()
            },
            kept=dict(body.kept),
            sums={
                name: pltpu.VMEM(output_types[name].shape[2:], jnp.float32)
                for name in body.summed_outputs
                if output_types[name].dtype != jnp.float32
            },
        ),
    )
