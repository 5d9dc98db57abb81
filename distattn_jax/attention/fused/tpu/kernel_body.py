"""Types of a TPU kernel: its inputs, its computation, and a tile as the computation sees it.

Queries and keys lie along the last axis, in the lanes: matrices have shape (B, N, W, L) and vectors
(B, N, 1, L), where L is the number of queries or keys. Only arrays named in `ROW_ARRAYS` have shape
(B, N, L, W), with one key per sublane. The arrays of a kernel are stored in dicts from name to
array. If an array has fewer heads than the kernel, groups of consecutive heads of the kernel use
the same head of the array. If B or N is 1, all examples or heads share the array.

The rows of a score map are queries and the columns are keys, or the rows are keys and the columns
are queries. A program owns one block of rows. In registers, a tile has the shape (keys, queries) in
both cases.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from distattn_jax.attention.fused.score_map import Scalars, ScoreMap
from distattn_jax.attention.fused.tile_runs import TileKind

ROW_ARRAYS = ("key_rows",)
Shape = tuple[int, int]  # keys and queries of a tile


class Tile(NamedTuple):
    """One tile of the score map. Matrices of a tile have the shape (keys, queries) in registers.

    Attributes:
      query: Index of the first query.
      key: Index of the first key.
      kind: Properties of the tile that the schedule guarantees.
      shape: Number of keys and number of queries.
      load: Returns the part of an array that was copied to VMEM for the tile, given the name of the
        array.
    """

    query: jax.Array
    key: jax.Array
    kind: TileKind
    shape: tuple[int, int]
    load: Callable[[str], jax.Array]


class BlockContext(NamedTuple):
    """Data that a program of the grid uses in all of its tiles.

    A program computes one block of rows of the score map, for one head of one example. The rows are
    queries or keys.

    Attributes:
      score_map: Scoring, masks and orientation of the score map.
      start: Index of the first row of the block, a query or a key.
      load: Returns the block of a resident array, shape (W, block) or (1, block), given its name.
      scalars: Dict from name to a tuple of numbers of the example and the head.
      skipped_sums: Sums over the tiles that the block skips, shape (W, 1): see `skipped_tiles`.
      scratch: References to the buffers that `KernelBody.scratch` declares.
      kept: References to the buffers that `KernelBody.kept` declares.
      is_first: True in the first program of a head.
      sums: References to the float32 sums of the outputs that `KernelBody.summed_outputs` names.
    """

    score_map: ScoreMap
    start: jax.Array
    load: Callable[[str], jax.Array]
    scalars: Scalars
    skipped_sums: dict[str, jax.Array]
    scratch: dict[str, Any]
    kept: dict[str, Any]
    is_first: jax.Array
    sums: dict[str, Any]


class KernelBody(NamedTuple):
    """Computation of one kernel: functions to call before, in and after the loop over tiles.

    A program of the grid computes one block of rows of a score map, tile by tile.

    Attributes:
      scratch: Buffers of a program: a dict from name to the shape of a float32 buffer in VMEM, or
        to a Pallas memory type.
      initialize: Fills the buffers before the first tile.
      step: Updates the buffers with one tile.
      finish: Returns a dict from name to output of the block, computed from the buffers.
      summed_outputs: Names of the outputs that are summed over all blocks of a head, and over all
        examples that share the output.
      kept: Buffers that keep their contents from block to block: a dict from name to Pallas memory
        type. All examples and blocks of a head use the same buffers, one after the other.
    """

    scratch: Mapping[str, Any]
    initialize: Callable[[BlockContext], None]
    step: Callable[[BlockContext, Tile], None]
    finish: Callable[[BlockContext], dict[str, jax.Array]]
    summed_outputs: tuple[str, ...] = ()
    kept: Mapping[str, Any] = MappingProxyType({})


class KernelInputs(NamedTuple):
    """Input arrays of a kernel. All fields except `runs` are dicts from name to array.

    The rows of the score map are queries or keys, and its columns are the other of the two.

    Attributes:
      resident: Matrices (B, N, W, L) and vectors (B, N, 1, L) of the L rows of the score map.
      streamed: Matrices and vectors of the columns of the score map, in the same layout. Only
        `key_rows` has the shape (B, N, L, W).
      entries: Arrays with one number for each key and query, shape (B, N, S, T).
      diagonals: Arrays with one number for each diagonal, shape (B, N, 1, D). Query i and key j use
        element origin + i - j, where `origin` is an argument of `run_tile_loop`.
      positions: Position vectors with one column for each diagonal, shape (B, N, W, D). Query i and
        key j use column D - origin + j - i.
      scalars: A few numbers for each example and head, shape (B, N, count).
      skipped_sums: Sums over the tiles that each block skips, shape (B, N, blocks, W).
      runs: Index of the first tile of each run of the schedule, and index of its last tile plus 1,
        shape (B, N, blocks, runs, 2). Examples and heads do not share it: its shape tells how many
        examples and heads the kernel computes.
    """

    resident: dict[str, jax.Array]
    streamed: dict[str, jax.Array]
    entries: dict[str, jax.Array]
    diagonals: dict[str, jax.Array]
    positions: dict[str, jax.Array]
    scalars: dict[str, jax.Array]
    skipped_sums: dict[str, jax.Array]
    runs: jax.Array
