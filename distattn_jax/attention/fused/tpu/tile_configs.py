"""Sizes of the tiles of the TPU kernels."""

from typing import NamedTuple

LARGEST = 512  # queries or keys of a tile
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


def select_tile_config(queries: int, keys: int) -> TileConfig:
    """Return the tile sizes for a number of queries and a number of keys."""
    return TileConfig(*(min(LARGEST, length + -length % MULTIPLE) for length in (queries, keys)))
