"""Relations of the entries of one tile, and the arrays that are indexed by relation.

The relation of query i and key j is r = clip(j - i - offset, -k, k) + k: see `relations`. An array
by relation has one number for each query and relation, shape (B, T, N, 2k + 1). Kernels read and
write single entries of such an array in global memory, because the array may be too large for the
shared memory. The numbers of the end relations 0 and 2k are also passed as vectors, named after the
array with the suffix "_before" or "_after". If there is no such vector, the numbers are 0.
"""

from typing import Any, NamedTuple

import jax

from distattn_jax.attention.fused.gpu import bands, mosaic
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.relations import AFTER, BEFORE
from distattn_jax.attention.fused.score_map import read_lengths

SUFFIXES = {BEFORE: "_before", AFTER: "_after"}


class RelationTile(NamedTuple):
    """Functions that read and write arrays by relation for the entries of one tile.

    An array by relation has one number for each query and relation: see the top of this module.

    Attributes:
      context: Data of the warpgroup.
      tile: Position and properties of the tile.
    """

    context: WarpgroupContext
    tile: Tile

    @property
    def is_transposed(self) -> bool:
        """True if the rows are keys and the columns are queries."""
        return self.context.score_map.is_transposed

    def read(self, name: str) -> jax.Array:
        """Load array[i, r] for each entry of the tile, where i is its query and r its relation.

        Args:
          name: Name of the array, which has one number for each query and relation.
        """
        ends = {side: self._read_end(name + suffix) for side, suffix in SUFFIXES.items()}
        if self.tile.kind.is_far:
            return ends[self.tile.kind.side]
        return bands.gather_band(
            self._locate(name), self._band(), before=ends[BEFORE], after=ends[AFTER]
        )

    def write(self, name: str, entries: jax.Array) -> None:
        """Write the entries of the tile to an array by relation in global memory.

        Entries of the relations 0 and 2k are not written. Many keys of a query have one of these
        relations, so that their entries are summed: see `add_ends`.

        Args:
          name: Name of the array by relation.
          entries: Tile with one number for each entry.
        """
        if not self.tile.kind.is_far:
            bands.scatter_band(self._locate(name), self._band(), entries)

    def add_ends(
        self,
        sums: list[jax.Array],
        sides: tuple[int, ...],
        entries: jax.Array,
        row_sum: jax.Array | None = None,
    ) -> list[jax.Array]:
        """Add the entries of relation 0 and of relation 2k to separate sums of each row.

        Return the new sums.

        Args:
          sums: Sums before this tile: one per-row vector for each of `sides`.
          sides: BEFORE for the sums of relation 0, AFTER for the sums of relation 2k.
          entries: Tile with one number for each entry.
          row_sum: Sum of each row of `entries`. If None, it is computed if required.
        """
        if self.tile.kind.is_far:
            return [
                x + (mosaic.sum_rows(entries) if row_sum is None else row_sum)
                if side == self.tile.kind.side
                else x
                for x, side in zip(sums, sides, strict=True)
            ]
        band = self._band()
        return [
            x + mosaic.sum_rows(bands.select_outside_band(entries, band, before=side == BEFORE))
            for x, side in zip(sums, sides, strict=True)
        ]

    def _read_end(self, name: str) -> jax.Array:
        """Load a vector with one number per query, and expand it to a tile.

        Return a tile of zeros if there is no vector with this name.
        """
        if self.is_transposed:
            vector = self.tile.load_vector(name) if name in self.tile.ring_names else None
        else:
            vector = self.context.vectors.get(name)
        if vector is None:
            return mosaic.full(self.tile.shape, 0.0)
        expand = mosaic.expand_per_column if self.is_transposed else mosaic.expand_per_row
        return expand(vector, self.tile.shape)

    def _locate(self, name: str) -> Any:
        """Return a reference to an array by relation in global memory.

        The reference contains only the rows that belong to the queries of the tile.
        """
        axis = 1 if self.is_transposed else 0
        start = (self.tile.row, self.tile.column)[axis]
        return self.context.global_rows(name, start, self.tile.shape[axis])

    def _band(self) -> bands.Band:
        """Return the `Band` of the tile: the entries of the relations 1 to 2k - 1."""
        clip_distance = self.context.score_map.scoring.clip_distance
        first = clip_distance - read_lengths(self.context.scalars).offset
        if self.is_transposed:
            first += self.tile.row - self.tile.column
        else:
            first += self.tile.column - self.tile.row
        return bands.Band(first, 2 * clip_distance, self.is_transposed)


def initial_products(
    context: WarpgroupContext,
    tile: Tile,
    *,
    with_cotangent: bool = False,
    initial_gradient: jax.Array | None = None,
) -> tuple[jax.Array, ...] | None:
    """Return the initial accumulators of the matrix products, or None if they all start at 0.

    Args:
      with_cotangent: If False, return one tile: the relation products, to which the kernel adds
        q · k. If True, also return a second tile: the cotangent of the relation weights, to which
        the kernel adds dO · v.
      initial_gradient: Tile to add to the second tile, or None. It requires `with_cotangent`.
    """
    scoring = context.score_map.scoring
    is_present = {"relation_products": scoring.has_relation_products}
    if with_cotangent:
        is_present["relation_cotangent"] = scoring.has_relation_weights
    initial: dict[str, Any] = {
        name: RelationTile(context, tile).read(name) if present else None
        for name, present in is_present.items()
    }
    if initial_gradient is not None:
        cotangent = initial["relation_cotangent"]
        initial["relation_cotangent"] = (
            initial_gradient if cotangent is None else initial_gradient + cotangent
        )
    if all(x is None for x in initial.values()):
        return None
    return tuple(mosaic.full(tile.shape, 0.0) if x is None else x for x in initial.values())


def name_ends(stem: str, sides: tuple[int, ...], ends: list[jax.Array]) -> dict[str, jax.Array]:
    """Return {stem + "_before": vector, stem + "_after": vector} for the vectors in `ends`.

    Args:
      stem: First part of the names.
      sides: Side of each vector: BEFORE or AFTER.
      ends: Vectors with one number per query, for relation 0 (BEFORE) or relation 2k (AFTER).
    """
    return {stem + SUFFIXES[side]: end for side, end in zip(sides, ends, strict=True)}
