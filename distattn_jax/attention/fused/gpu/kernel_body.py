"""Types of a kernel: its inputs, its computation, and a tile as the computation sees it.

The arrays of a kernel are stored in dicts from name to array. Matrices have shape (B, L, N, W), and
vectors have shape (B, N, L), where L is the number of rows or columns of the score map. If a matrix
has fewer heads than the kernel, groups of consecutive heads of the kernel use the same head of the
matrix. If B or N of a vector is 1, all examples or heads share the vector.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.score_map import Scalars, ScoreMap
from distattn_jax.attention.fused.tile_runs import TileKind


class GridIndex(NamedTuple):
    """Example, head and block of rows that a thread block computes.

    Attributes:
      example: Index of the example.
      head: Index of the head.
      block: Index of the block of rows among all blocks of this example and head.
      heads: Number of heads of the kernel.
    """

    example: jax.Array
    head: jax.Array
    block: jax.Array
    heads: int


class Tile(NamedTuple):
    """One tile of the score map, as the warpgroup that computes the tile sees it.

    The memory warpgroup copies the inputs of a tile to a ring buffer in shared memory, one slot for
    each array. Each function below takes the name of an array. A function that loads returns
    registers, and a function that waits returns references to shared memory.

    Attributes:
      row: Index of the first row.
      column: Index of the first column.
      kind: Properties of the tile that the schedule guarantees.
      shape: Number of rows and number of columns.
      wait: Waits until a streamed matrix has been copied, and returns a reference to its slot.
      release: Frees the slot of a streamed matrix, so that a later tile can be copied to the slot.
      load_vector: Loads a streamed vector. All vectors of a tile, and the part of the mask for the
        tile, have been copied before the tile begins, except for `KernelBody.late_vectors`. Their
        slots are freed after the tile.
      load_row_vector: Loads a vector of `KernelInputs.moving`, with one number per row.
      load_diagonals: Loads a vector with one number per diagonal, and expands it to a tile that is
        constant along each diagonal.
      wait_diagonals: Waits for a matrix with one vector per diagonal, in a square tile of n rows.
        Returns two references: to the vectors of the diagonals 0 to n - 1, and to the vectors of
        the diagonals n to 2n - 1. Entry (row, column) of the tile is on diagonal row - column + n.
      load_entries: Loads the part of an array in `KernelInputs.entries` that belongs to the tile.
      skip: Waits for a matrix that this tile does not use, and frees its slot.
      ring_names: Names of all arrays in the ring buffer.
    """

    row: jax.Array
    column: jax.Array
    kind: TileKind
    shape: tuple[int, int]
    wait: Callable[[str], Any]
    release: Callable[[str], None]
    load_vector: Callable[[str], jax.Array]
    load_row_vector: Callable[[str], jax.Array]
    load_diagonals: Callable[[str], jax.Array]
    wait_diagonals: Callable[[str], tuple[Any, Any]]
    load_entries: Callable[[str], jax.Array]
    skip: Callable[[str], None]
    ring_names: Collection[str]


class WarpgroupContext(NamedTuple):
    """Data that a compute warpgroup uses in all tiles of its rows.

    The keys of all dicts are names of arrays. An input is resident if it stays in shared memory
    while the warpgroup computes all tiles of its rows.

    Attributes:
      score_map: Scoring, masking and orientation of the score map.
      row: Index of the first row of the warpgroup.
      resident: References to the resident matrices in shared memory. Matrices in
        `TileConfig.held` are tiles in registers on a GPU.
      vectors: Resident vectors in registers, one number per row.
      scalars: Dict from name to a tuple of numbers of the example and the head.
      skipped_sums: References to sums over the tiles that the warpgroup skips, in global memory:
        see `skipped_tiles`.
      operand_scratch: Buffer that `mosaic.accumulate_products` needs in the CPU interpreter. It is
        None on a GPU.
      global_rows: Returns a reference to consecutive rows of an array in global memory, given the
        name of the array, the first row and the number of rows. The array is an entry of
        `KernelInputs.gathered` or an output in `KernelBody.scattered`.
      scratch: Buffers of the warpgroup in shared memory, as in `KernelBody.scratch`.
    """

    score_map: ScoreMap
    row: jax.Array
    resident: dict[str, Any]
    vectors: dict[str, jax.Array]
    scalars: Scalars
    skipped_sums: dict[str, Any]
    operand_scratch: Any
    global_rows: Callable[[str, jax.Array, int], Any]
    scratch: dict[str, Any]


class KernelBody(NamedTuple):
    """Computation of one kernel: three functions of a loop that updates a state tile by tile.

    Attributes:
      initialize: Returns the state before the first tile.
      step: Returns the state after a tile, computed from the state before the tile.
      finish: Returns a dict from name to output, computed from the state after the last tile.
      scattered: Names of the outputs that `finish` does not return, because `step` writes their
        entries to global memory.
      scratch: Buffers in shared memory that each warpgroup needs: a dict from name to number of
        entries and dtype.
      ends_with_product: True if `step` ends with a matrix product that depends on all numbers that
        `step` has loaded. All loads are then complete when `step` ends.
      late_vectors: Names of streamed vectors for which the warpgroup waits when `step` loads them,
        instead of before the tile. The compiler does not move instructions across this wait. `step`
        loads each of these vectors at most once.
    """

    initialize: Callable[[WarpgroupContext], Any]
    step: Callable[[WarpgroupContext, Tile, Any], Any]
    finish: Callable[[WarpgroupContext, Any], dict[str, jax.Array]]
    scattered: tuple[str, ...] = ()
    scratch: Mapping[str, tuple[int, Any]] = MappingProxyType({})
    ends_with_product: bool = True
    late_vectors: tuple[str, ...] = ()


class KernelInputs(NamedTuple):
    """Input arrays of a kernel. All fields except `runs` are dicts from name to array.

    Most kernels work on blocks of rows of the score map. Only `position_gradient` works on blocks
    of diagonals. Entry (row, column) of the score map is on diagonal origin + row - column, where
    `origin` is an argument of `run_tile_loop`.

    Attributes:
      resident: Arrays indexed by row. In `position_gradient`, arrays indexed by diagonal.
      streamed: Arrays indexed by column.
      diagonals: Arrays indexed by diagonal: vectors of shape (B, N, D) and matrices of shape
        (B, D, N, W).
      moving: Arrays indexed by row in `position_gradient`. Empty in all other kernels. In
        `position_gradient`, `moving` and `entries` are padded with zeros: by `count_leading_rows`
        rows before row 0, and by one block of rows at the end.
      entries: Arrays with one number for each entry of the score map, shape (B, N, rows, columns).
        If B or N is 1, all examples or heads share the array.
      scalars: A few numbers for each example and head, shape (B, N, count).
      runs: Runs of tiles that each block visits: see `TileSchedule.runs`.
      skipped_sums: Sums over the tiles that each part of a block skips, shape
        (B, N, blocks * parts, W). See `TileSchedule.parts`.
      gathered: Matrices of which `KernelBody.step` reads single entries from global memory.
    """

    resident: dict[str, jax.Array]
    streamed: dict[str, jax.Array]
    diagonals: dict[str, jax.Array]
    moving: dict[str, jax.Array]
    entries: dict[str, jax.Array]
    scalars: dict[str, jax.Array]
    runs: jax.Array
    skipped_sums: dict[str, jax.Array]
    gathered: dict[str, jax.Array]


def count_leading_rows(config: TileConfig) -> int:
    """Return the number of rows of zeros before row 0 in the arrays of `KernelInputs.moving`.

    The first tile of a block of diagonals may begin before row 0. The rows of the last warpgroup in
    this tile begin at row 0 or later. The rows of all other warpgroups may be before row 0.
    """
    return config.block_rows - config.rows
