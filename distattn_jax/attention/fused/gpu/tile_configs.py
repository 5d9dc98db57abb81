"""Classes for the tile sizes, number of warpgroups and number of pipeline stages of a kernel.

The module `tile_selection` selects these numbers.
"""

import math
from typing import NamedTuple

import jax

H200_PROCESSORS = 132
MAX_NARROW_WIDTH = 32  # of queries, keys and values
MAX_WIDTH = 64  # of queries, keys and values
MAX_WIDE_WIDTH = 128  # of queries and keys: wider keys have a part without gradient
MIN_LONG_LENGTH = 1024  # of queries and of keys


class TileConfig(NamedTuple):
    """Tile sizes, number of warpgroups and number of pipeline stages of one kernel.

    The rows and columns are those of the score map, whose rows are queries or keys.

    Attributes:
      rows: Number of rows of a tile. Each compute warpgroup of a thread block has its own rows.
      columns: Number of columns of a tile.
      warpgroups: Number of compute warpgroups of a thread block. One additional warpgroup copies
        the inputs of the columns into shared memory.
      stages: Number of tiles whose inputs are in shared memory at the same time.
      is_persistent: If True, there are at most as many thread blocks as processors (SMs) of the
        GPU, and a thread block may compute several blocks of rows, one after the other. If False,
        there is one thread block for each block of rows. A kernel that sums along diagonals has
        another number of thread blocks (see `BlockOrder`). For this kernel, True means that the
        rows of the next block are copied while the current block is computed.
      held: Names of the resident matrices (inputs of the rows) that are kept in registers. A matrix
        product then reads only its other operand from shared memory.
      single: Names of the matrices of which shared memory contains only one tile at a time, instead
        of `stages` tiles. This suits matrices that a kernel needs only at the beginning of a tile:
        the next tile is copied during the rest of the tile.
      shares_scratch: If True, the functions `skew` and `unskew` share one buffer, which has half of
        the usual size if possible. Only the portable form has this option.
    """

    rows: int = 64
    columns: int = 64
    warpgroups: int = 2
    stages: int = 2
    is_persistent: bool = False
    held: tuple[str, ...] = ()
    single: tuple[str, ...] = ()
    shares_scratch: bool = False

    def count_slots(self, name: str) -> int:
        """Number of tiles of an array that are in shared memory at the same time."""
        return 1 if name in self.single else self.stages

    @property
    def tile_shape(self) -> tuple[int, int]:
        """Number of rows and number of columns of a tile, which one warpgroup computes."""
        return self.rows, self.columns

    @property
    def block_rows(self) -> int:
        """Number of rows that all compute warpgroups of a thread block have together."""
        return self.rows * self.warpgroups


def count_processors() -> int:
    """Return the number of processors (streaming multiprocessors) of the local GPU.

    Without a local GPU, return the number of processors of an H200.
    """
    gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
    return getattr(gpus[0], "core_count", H200_PROCESSORS) if gpus else H200_PROCESSORS


class TileConfigs(NamedTuple):
    """Tile sizes, warpgroups and pipeline stages of each of the six kernels."""

    forward: TileConfig
    query_gradient: TileConfig
    key_gradient: TileConfig
    received: TileConfig
    attention_given: TileConfig
    position_gradient: TileConfig = TileConfig()

    @property
    def vector_multiple(self) -> int:
        """Least common multiple of the block sizes and tile sizes of all kernels.

        The length of each vector is padded to a multiple of this number.
        """
        return math.lcm(*(size for config in self for size in (config.block_rows, config.columns)))
