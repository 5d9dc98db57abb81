"""Access to arrays with one number for each query and relation, for the entries of one tile.

The relation of query i and key j is r = clip(j - i - offset, -k, k) + k, from 0 to 2k: see
`relations`. An array by relation has one number for each query and relation, shape
(B, T, N, 2k + 1). Kernels read and write single numbers of such an array in global memory, because
the array may be too large for shared memory. If the kernels multiply the tables of relations, the
rows of a warpgroup are in shared memory instead: see `relation_rows`. Many keys of a query have one
of the end relations 0 and 2k. The numbers of these two relations are therefore also inputs of their
own: vectors with one number per query. The name of such a vector is the name of the array with the
suffix "_before" (relation 0) or "_after" (relation 2k). If there is no vector with this name, the
numbers are 0.
"""

from typing import Any, NamedTuple

import jax

from distattn_jax.attention.fused.gpu import bands, mosaic
from distattn_jax.attention.fused.gpu.kernel_body import Tile, WarpgroupContext
from distattn_jax.attention.fused.kernel_calls import RELATION_MATRICES
from distattn_jax.attention.fused.relations import AFTER, BEFORE
from distattn_jax.attention.fused.score_map import read_lengths

SUFFIXES = {BEFORE: "_before", AFTER: "_after"}


class RelationTile(NamedTuple):
    """Methods that read and write arrays by relation for the entries of one tile.

    An array by relation has one number for each query and relation. A relation is a clipped
    relative position, numbered from 0 to 2k. The end relations 0 and 2k are those of keys that are
    at least k positions before or after the query.

    Attributes:
      context: Data of the warpgroup.
      tile: Position and properties of the tile.
    """

    context: WarpgroupContext
    tile: Tile

    @property
    def is_transposed(self) -> bool:
        """True if the rows of the tile are keys and its columns are queries."""
        return self.context.score_map.is_transposed

    def read(self, name: str) -> jax.Array:
        """Load a tile of numbers from an array with one number for each query and relation.

        For query i and key j, the entry of the tile is array[i, r], where r is the relation of i
        and j. The rows of the tile are queries, or keys if `is_transposed` is True.

        Args:
          name: Name of the array.
        """
        ends = {side: self._read_end(name + suffix) for side, suffix in SUFFIXES.items()}
        if self.tile.kind.is_far:
            return ends[self.tile.kind.side]
        return bands.gather_band(
            self._locate(name), self._band(name), before=ends[BEFORE], after=ends[AFTER]
        )

    def read_ends(self, name: str) -> jax.Array:
        """Return a tile like `read`, but with undefined entries in the relations 1 to 2k - 1."""
        ends = {side: self._read_end(name + suffix) for side, suffix in SUFFIXES.items()}
        if self.tile.kind.is_far:
            return ends[self.tile.kind.side]
        return bands.gather_ends(self._band(name), before=ends[BEFORE], after=ends[AFTER])

    def load_band(self, name: str) -> jax.Array | None:
        """Load the entries of a band tile that have a relation from 1 to 2k - 1.

        The result is only for `replace_band`. It is None for a far tile. The loads begin before all
        matrix products that follow in the program.

        Args:
          name: Name of an array with one 16-bit number for each query and relation.
        """
        if self.tile.kind.is_far:
            return None
        return bands.load_band(self._locate(name), self._band(name), self.tile.shape)

    def replace_band(self, name: str, entries: jax.Array, inside: jax.Array | None) -> jax.Array:
        """Return `entries` with those in the relations 1 to 2k - 1 replaced by those of `inside`.

        Args:
          name: Name of the array.
          entries: One number for each entry of the tile.
          inside: Result of `load_band` for this array.
        """
        if inside is None:
            return entries
        return bands.replace_band(entries, self._band(name), inside, self._locate(name).dtype)

    def write(self, name: str, entries: jax.Array) -> None:
        """Write the entries of a tile to an array by relation in global memory.

        For query i and key j, the entry is written to array[i, r], where r is the relation of i and
        j. Entries of the relations 0 and 2k are not written: a query can have many keys in these
        relations, so that `add_ends` sums them instead.

        Args:
          name: Name of the array.
          entries: Tile of the numbers to write. Its rows are queries, or keys if `is_transposed` is
            True.
        """
        if not self.tile.kind.is_far:
            bands.scatter_band(self._locate(name), self._band(name), entries)

    def add_ends(
        self,
        sums: list[jax.Array],
        sides: tuple[int, ...],
        entries: jax.Array,
        row_sum: jax.Array | None = None,
    ) -> list[jax.Array]:
        """Sum the entries of a tile whose query and key have the relation 0 or 2k, for each row.

        Return `sums` plus these sums, separately for each of the two relations. The rows of the
        tile must be queries.

        Args:
          sums: Sums before this tile, one vector for each of `sides`. A vector has one number per
            row.
          sides: End relations to sum: BEFORE for relation 0, AFTER for relation 2k.
          entries: Tile of the numbers to sum.
          row_sum: Sum of all entries in each row. If None, this function computes it when it needs
            it.
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

        All keys of a query get the same number. If there is no vector with this name, return a tile
        of zeros.

        Args:
          name: Name of the vector, which ends with "_before" or "_after".
        """
        if not self._has_end(name):
            return mosaic.full(self.tile.shape, 0.0)
        vector = self.tile.load_vector(name) if self.is_transposed else self.context.vectors[name]
        expand = mosaic.expand_per_column if self.is_transposed else mosaic.expand_per_row
        return expand(vector, self.tile.shape)

    def _has_end(self, name: str) -> bool:
        """Return True if there is a vector with this name."""
        return name in (self.tile.ring_names if self.is_transposed else self.context.vectors)

    def _locate(self, name: str) -> Any:
        """Return a reference to the part of an array by relation that belongs to the tile.

        The part has one row for each query of the tile, and one column for each relation.

        Args:
          name: Name of the array, or of a buffer in shared memory.
        """
        if name in self.context.scratch:
            return self.context.scratch[name]
        axis = 1 if self.is_transposed else 0
        start = (self.tile.row, self.tile.column)[axis]
        return self.context.global_rows(name, start, self.tile.shape[axis])

    def _band(self, name: str = "") -> bands.Band:
        """Return the `Band` of the tile: the entries with a relation from 1 to 2k - 1.

        Args:
          name: Name of the array by relation to access, if there is one.
        """
        clip_distance = self.context.score_map.scoring.clip_distance
        first = clip_distance - read_lengths(self.context.scalars).offset
        if self.is_transposed:
            first += self.tile.row - self.tile.column
        else:
            first += self.tile.column - self.tile.row
        # The arrays of `relation_rows` have no column for relation 0.
        is_inner = name in self.context.scratch or name in RELATION_MATRICES
        return bands.Band(first, 2 * clip_distance, self.is_transposed, absent=int(is_inner))


def initial_products(
    context: WarpgroupContext,
    tile: Tile,
    *,
    with_cotangent: bool = False,
    initial_gradient: jax.Array | None = None,
) -> tuple[jax.Array, ...] | None:
    """Return the initial values of the accumulators of the matrix products of a tile.

    The first accumulator is for the products q · k. It starts at the relation products. If
    `with_cotangent` is True, there is a second accumulator for dO · v, where dO is the cotangent of
    the attention output. It starts at the cotangent of the relation weights plus
    `initial_gradient`. A term that the scoring does not have is 0. Return None if all accumulators
    start at 0.

    Args:
      with_cotangent: If True, return two tiles. If False, return only the first.
      initial_gradient: Tile to add to the second accumulator. None adds nothing. It must be None if
        `with_cotangent` is False.
    """
    scoring = context.score_map.scoring
    is_present = {"relation_products": scoring.has_relation_products}
    if with_cotangent:
        is_present["relation_cotangent"] = scoring.has_relation_weights
    relations = RelationTile(context, tile)
    # The kernel `key_gradient` replaces the entries of the band later.
    replaces_band = scoring.multiplies_tables and with_cotangent and relations.is_transposed
    read = relations.read_ends if replaces_band else relations.read
    initial: dict[str, Any] = {
        name: read(name) if present else None for name, present in is_present.items()
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
    """Return a dict that contains the vectors in `ends` under the names stem + suffix.

    The suffix is "_before" for the side BEFORE and "_after" for the side AFTER. For example, the
    stem "weight" yields the names "weight_before" and "weight_after".

    Args:
      stem: First part of the names.
      sides: Side of each vector: BEFORE or AFTER.
      ends: Vectors with one number per query, for relation 0 (BEFORE) or relation 2k (AFTER).
    """
    return {stem + SUFFIXES[side]: end for side, end in zip(sides, ends, strict=True)}
