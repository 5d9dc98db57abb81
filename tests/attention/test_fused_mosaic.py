"""Operations on tiles of the fused GPU kernels, each in a kernel of its own."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.attention.cases import needs_kernels
from tests.evaluation import interpreted

pytestmark = needs_kernels
SHAPE = (64, 16)


def interpret_without_gpu():
    """Return a context that interprets the kernels on a machine without a GPU."""
    return contextlib.nullcontext() if jax.default_backend() == "gpu" else interpreted()


def map_tile(function, array):
    """Run a kernel that returns a tile, a function of a reference to the array in shared memory."""
    import jax.experimental.pallas.mosaic_gpu as plgpu

    from distattn_jax.attention.fused.gpu import mosaic

    def kernel(source, output, buffer, tile, barrier):
        lax.axis_index("block")
        plgpu.copy_gmem_to_smem(source, buffer, barrier)
        plgpu.barrier_wait(barrier)
        tile[...] = function(buffer)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tile, output)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(SHAPE, jnp.float32),
        scratch_types=(
            plgpu.SMEM(array.shape, array.dtype),
            plgpu.SMEM(SHAPE, jnp.float32),
            plgpu.Barrier(),
        ),
        grid=(1,),
        grid_names=("block",),
        **mosaic.kernel_options(),
    )(array)


def gather_diagonals(ref):
    """Return the tile whose entry (i, j) is ref[i - j + 15]."""
    from distattn_jax.attention.fused.gpu import mosaic, registers

    rows = mosaic.expand_per_row(mosaic.row_indices(SHAPE[0]), SHAPE)
    columns = mosaic.expand_per_column(mosaic.column_indices(SHAPE[1]), SHAPE)
    return registers.share_diagonals(registers.gather(ref, rows - columns + 15))


def load_diagonals(ref):
    """Return the tile whose entry (i, j) is ref[i - j + 16]."""
    from jax.experimental import pallas as pl

    from distattn_jax.attention.fused.gpu import registers

    return registers.load_diagonals(ref.at[pl.ds(0, sum(SHAPE))], SHAPE)


def gather_entries(ref):
    """Return the tile whose entry (i, j) is ref[i, (i + j) mod 16]."""
    from distattn_jax.attention.fused.gpu import mosaic, registers

    rows = mosaic.expand_per_row(mosaic.row_indices(SHAPE[0]), SHAPE)
    columns = mosaic.expand_per_column(mosaic.column_indices(SHAPE[1]), SHAPE)
    return registers.gather(ref, rows, (rows + columns) & 15)


ROW, COLUMN = np.indices(SHAPE)
# A copy to shared memory must have a multiple of 128 bytes.
GATHERED = {
    "a vector along the diagonals": (gather_diagonals, (96,), "float32", (ROW - COLUMN + 15,)),
    "diagonals": (load_diagonals, (96,), "float32", (ROW - COLUMN + 16,)),
    "a matrix": (gather_entries, (64, 16), "bfloat16", (ROW, (ROW + COLUMN) % 16)),
}


@pytest.mark.parametrize(("function", "shape", "dtype", "index"), GATHERED.values(), ids=GATHERED)
def test_gather_selects_the_entries_of_its_indices(function, shape, dtype, index):
    array = jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape).astype(dtype)
    with interpret_without_gpu():
        gathered = jax.jit(lambda x: map_tile(function, x))(array)
    np.testing.assert_array_equal(gathered, np.asarray(array, np.float32)[index])
    traced = jax.jit(lambda x: map_tile(function, x)).trace(array)
    assert "mosaic_gpu" in traced.lower(lowering_platforms=("cuda",)).as_text()
