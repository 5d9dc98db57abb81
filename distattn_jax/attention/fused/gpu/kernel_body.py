"""Classes for the inputs of a kernel, its computation, and the tile that it computes.

The arrays of a kernel are stored in dicts from name to array. Matrices have shape (B, L, N, W), and
vectors have shape (B, N, L), where L is the number of rows or columns of the score map. A matrix
may have fewer heads than the kernel. Groups of consecutive heads of the kernel then use the same
head of the matrix. If B or N of a vector is 1, all examples or heads share the vector.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.score_map import Scalars, ScoreMap
from distattn_jax.attention.fused.tile_runs import TileKind

TABLE_PADDING = 8  # rows of `KernelInputs.tables`


class GridIndex(NamedTuple):
    """Block of rows of the score map that a thread block computes, with its example and head.

    Attributes:
      example: Index of the example.
      head: Index of the query head.
      block: Index of the block of rows among all blocks of this example and head.
      heads: Number of query heads.
    """

    example: jax.Array
    head: jax.Array
    block: jax.Array
    heads: int


class Tile(NamedTuple):
    """One tile of the score map, and the functions with which a warpgroup reads its inputs.

    The rows of the tile are queries and its columns are keys, or the reverse: see
    `ScoreMap.is_transposed`. The memory warpgroup copies the inputs of the tile to ring buffers in
    shared memory. Each array has its own ring buffer. A slot of a ring buffer holds the part of the
    array that one tile needs.

    Each function below takes the name of an array of `KernelInputs`. The functions `load_...`
    return arrays in registers. The functions `wait...` return references to shared memory. All
    vectors and masks have been copied before the tile begins, except for `KernelBody.late_vectors`.
    Their slots are freed after the tile. The warpgroup must wait for each matrix, and must release
    each matrix.

    Attributes:
      row: Index of the first row of the tile.
      column: Index of the first column of the tile.
      diagonal: Index of the first diagonal of the tile among all diagonals: see `run_tile_loop`.
      kind: Properties of the tile that the schedule guarantees.
      shape: Number of rows and number of columns.
      wait: Waits until a matrix of `KernelInputs.streamed` or `KernelInputs.moving` has been
        copied, and returns a reference to the part of the matrix that belongs to the tile.
      release: Frees the slot of a matrix, so that a later tile can be copied to the slot.
      load_vector: Loads a vector of `KernelInputs.streamed`, one number per column of the tile.
      load_row_vector: Loads a vector of `KernelInputs.moving`, one number per row of the tile.
      load_diagonals: Loads a vector of `KernelInputs.diagonals`, and expands it to a tile that is
        constant along each diagonal.
      wait_diagonals: Waits for a matrix of `KernelInputs.diagonals`, which has one vector per
        diagonal. The tile must be square, with n rows. Entry (row, column) of the tile is on
        diagonal row - column + n. Returns two references: to the vectors of the diagonals 0 to
        n - 1, and to the vectors of the diagonals n to 2n - 1.
      load_entries: Loads the part of an array of `KernelInputs.entries` that belongs to the tile.
      skip: Waits for a matrix that this tile does not use, and releases it.
      ring_names: Names of all arrays that have a ring buffer.
    """

    row: jax.Array
    column: jax.Array
    diagonal: jax.Array
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


@runtime_checkable  # Type checks in tests need it.
class Products(Protocol):
    """Matrix products of a warpgroup, with the matrix instructions of one generation of GPUs."""

    @property
    def is_asynchronous(self) -> bool:
        """True if several products should be started at once."""

    def multiply_transposed(
        self, *pairs: tuple[Any, Any], initial: tuple[jax.Array, ...] | None = None
    ) -> tuple[jax.Array, ...]:
        """Return the matrix product a bᵀ for each pair (a, b), as float32 tiles.

        Args:
          *pairs: Matrix a in shared memory or in registers, and matrix b in shared memory.
          initial: One tile for each pair. Each tile is added to the product of its pair. If None,
            nothing is added.
        """

    def accumulate(
        self, totals: Sequence[jax.Array], *operands: Sequence[tuple[Any, Any]]
    ) -> tuple[jax.Array, ...]:
        """Add matrix products a @ b to each total, and return the new totals.

        Args:
          totals: Float32 tiles in registers.
          *operands: For each total, a sequence of pairs (a, b) whose products are added to the
            total. a is a tile in registers, and b is a matrix in shared memory.
        """


class WarpgroupContext(NamedTuple):
    """Data that a compute warpgroup uses in all tiles of its rows.

    The keys of all dicts are names. An input is resident if it stays in shared memory while the
    warpgroup computes all tiles of its rows.

    Attributes:
      score_map: Describes how scores are computed and masked, and whether the rows are queries or
        keys.
      row: Index of the first row of the warpgroup. In `position_gradient`, index of its first
        diagonal.
      resident: Resident matrices, one row for each row of the warpgroup. Each is a reference to
        shared memory. On a GPU, the matrices named in `TileConfig.held` are arrays in registers
        instead.
      vectors: Resident vectors in registers, one number for each row of the warpgroup.
      scalars: Tuples of numbers that belong to the example and the head.
      skipped_sums: References to precomputed sums in global memory, which replace the tiles that
        the warpgroup skips: see `skipped_tiles`.
      products: Matrix products with the instructions of the chip.
      global_rows: Returns a reference to consecutive rows of an array in global memory. The
        arguments are the name of the array, the index of the first row and the number of rows. The
        array is an input of `KernelInputs.gathered` or an output named in `KernelBody.scattered`.
      scratch: Buffers of the warpgroup in shared memory, as in `KernelBody.scratch`.
      tables: References to the tables of `KernelInputs.tables` in shared memory, one row per
        relation.
      visited_columns: First column of the first tile that the warpgroup visits, and last column of
        its last tile plus 1. None if the kernel has no tables.
      summed: References to the vectors of the warpgroup in global memory that belong to the outputs
        `KernelBody.summed`.
    """

    score_map: ScoreMap
    row: jax.Array
    resident: dict[str, Any]
    vectors: dict[str, jax.Array]
    scalars: Scalars
    skipped_sums: dict[str, Any]
    products: Products
    global_rows: Callable[[str, jax.Array | int, int], Any]
    scratch: dict[str, Any]
    tables: dict[str, Any]
    visited_columns: tuple[jax.Array, jax.Array] | None
    summed: dict[str, Any]


class KernelBody(NamedTuple):
    """Computation of one kernel: three functions that a warpgroup calls for its rows.

    The warpgroup calls `initialize` once, `step` for one tile after the other, and `finish` at the
    end. The functions pass on a state, which consists of arrays in registers.

    Attributes:
      initialize: Returns the state before the first tile.
      step: Returns the state after a tile. The last argument is the state before the tile.
      finish: Returns a dict from name to output. The last argument is the state after the last
        tile.
      scattered: Names of the outputs that `finish` does not return, because `step` writes single
        entries of them to global memory.
      summed: Names of the outputs with one number per diagonal of the score map, to which `step`
        adds. They have the shape (B, N, parts, D). Each part is a vector that belongs to one
        warpgroup. It is 0 before the first tile, and the caller adds up the parts. A thread block
        of a kernel with such outputs computes only blocks of one head: see `BlockOrder`.
      scratch: Buffers in shared memory that each warpgroup needs. The key is the name of the
        buffer, and the value is its shape and its dtype.
      ends_with_product: True if `step` ends with a matrix product that depends on all numbers that
        `step` has loaded. All loads from shared memory are then complete when `step` ends.
      late_vectors: Names of vectors of `KernelInputs.streamed` for which the warpgroup waits when
        `step` loads them. For all other vectors, it waits before `step`. The compiler does not move
        instructions across a wait. `step` loads each late vector at most once.
    """

    initialize: Callable[[WarpgroupContext], Any]
    step: Callable[[WarpgroupContext, Tile, Any], Any]
    finish: Callable[[WarpgroupContext, Any], dict[str, jax.Array]]
    scattered: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    scratch: Mapping[str, tuple[tuple[int, ...], Any]] = MappingProxyType({})
    ends_with_product: bool = True
    late_vectors: tuple[str, ...] = ()


class KernelInputs(NamedTuple):
    """Input arrays of a kernel. Most fields are dicts from name to array.

    Most kernels compute blocks of rows of the score map. Only `position_gradient` computes blocks
    of diagonals. Entry (row, column) of the score map is on diagonal origin + row - column, where
    `origin` is an argument of `run_tile_loop`.

    Attributes:
      resident: Arrays indexed by row of the score map: vectors of shape (B, N, L) and matrices of
        shape (B, L, N, W). In `position_gradient`, they are indexed by diagonal.
      streamed: Arrays indexed by column of the score map, with the same shapes.
      diagonals: Arrays indexed by diagonal, with the same shapes.
      moving: Arrays indexed by row of the score map, in `position_gradient`. Empty in all other
        kernels. In `position_gradient`, the rows of `moving` and `entries` are padded with zeros:
        by `count_leading_rows` rows before row 0, and by one block of rows at the end.
      entries: Arrays with one number for each entry of the score map, shape (B, N, rows, columns).
        If B or N is 1, all examples or heads share the array.
      scalars: A few numbers for each example and head, shape (B, N, count). If B or N is 1, all
        examples or heads share the numbers.
      runs: Runs of tiles that each block visits: see `TileSchedule.runs`.
      skipped_sums: Precomputed sums that replace the tiles that a block skips, shape
        (B, N, blocks * parts, W). See `TileSchedule.parts` and the module `skipped_tiles`.
      gathered: Matrices with one number for each query and relation (see the module `relations`).
        Their shape is (B, T, N, 2k + 1), or that of `relation_rows`. `KernelBody.step` reads single
        numbers of them from global memory. `first_value` of `relation_rows` is also here, and the
        vector of `KernelArrays.weigh_bias`.
      tables: Matrices with one row for each relation, shape (1, relations + `TABLE_PADDING`, N, W):
        see `relation_rows`. The padding is not copied to shared memory. If N is 1, all heads share
        the table. All warpgroups of a thread block use the same copy in shared memory.
      shares: Result of `BlockOrder.divide_work`, or None.
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
    tables: dict[str, jax.Array]
    shares: jax.Array | None = None


def count_leading_rows(config: TileConfig) -> int:
    """Return the number of rows of zeros before row 0 in the arrays of `KernelInputs.moving`.

    The rows of these arrays are keys. In the kernel `position_gradient`, the warpgroups of a thread
    block compute tiles with the same columns and consecutive rows. If the tile of warpgroup 0
    begins at row r, the tile of warpgroup w begins at row r + w * config.rows. The tile of the last
    warpgroup begins at row 0 or later, but r may be negative. The smallest r is the negative of the
    returned number.
    """
    return config.block_rows - config.rows
