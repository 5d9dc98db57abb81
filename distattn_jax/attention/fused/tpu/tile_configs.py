"""Tile sizes of the TPU kernels for each kind of TPU."""

from typing import NamedTuple

import jax

MULTIPLE = 128  # lanes of a register


class TileConfig(NamedTuple):
    """Number of queries and number of keys in a tile, multiples of 128."""

    queries: int
    keys: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of a tile in registers: keys lie in sublanes and queries lie in lanes."""
        return self.keys, self.queries

    def divide(self, *, is_transposed: bool) -> tuple[int, int]:
        """Return the number of rows of a block and the number of columns of a tile.

        Args:
          is_transposed: True if the rows of the score map are keys, False if they are queries.
        """
        return (self.keys, self.queries) if is_transposed else (self.queries, self.keys)


# `python -m experiments.bench.tpu_compile --groups tiles` compiles other sizes, and marks the best.
# Tiles of 1,024 keys need 4 to 12 % fewer bundles per entry, but local heads would visit more
# entries: they visit whole tiles.
TILES = {
    "TPU v5 lite": TileConfig(512, 512),
    "TPU v5": TileConfig(512, 512),
    "TPU v6 lite": TileConfig(512, 512),
}
DEFAULT = TileConfig(512, 512)  # for other kinds, and for programs lowered without a TPU


def select_tile_config(queries: int, keys: int) -> TileConfig:
    """Return the tile sizes for a call with this number of queries and keys.

    The sizes depend on the kind of the local TPUs. A tile is not larger than the padded call.
    """
    largest = TILES.get(local_kind(), DEFAULT)
    lengths = (queries, keys)
    padded = (length + -length % MULTIPLE for length in lengths)
    return TileConfig(*map(min, largest, padded))


def local_kind() -> str:
    """Return the kind of the local TPUs, such as "TPU v5 lite", or "" without a TPU."""
    devices = jax.local_devices()
    return devices[0].device_kind if devices[0].platform == "tpu" else ""
