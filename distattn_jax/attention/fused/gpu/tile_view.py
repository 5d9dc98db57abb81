"""A tile as the passes see it: its scores, which of them are visible, how far apart its ends are.

Rows may be queries and columns keys, or the other way round (`Map.keys_stay`): here, and nowhere
else, that makes a difference.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distattn_jax import hash
from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.tile_loop import Place, Tile
from distattn_jax.attention.fused.scoring import (
    STRIDE,
    Apart,
    Numbers,
    Parts,
    Scored,
    Scoring,
    Steps,
)

Shape = tuple[int, int]  # of tiles
NOTHING = 1e30  # stands for infinity where that would make a NaN


class Map(NamedTuple):
    """The map that the passes are about.

    Attributes:
      scoring: what makes scores of products.
      is_causal: whether later keys are invisible.
      has_dropout: whether weights are dropped on their way to the values.
      keys_stay: whether it is turned: a row for every key.
    """

    scoring: Scoring
    is_causal: bool
    has_dropout: bool
    keys_stay: bool


class Look(NamedTuple):
    """A tile that was looked at: its scores, where they lie and which are visible."""

    scoring: Scoring
    scored: Scored
    apart: Apart | None
    visible: jax.Array | None
    numbers: Numbers

    @property
    def scores(self) -> jax.Array:
        """All of them; those of what is not visible give no weight."""
        if self.visible is None:
            return self.scored.scores
        return jnp.where(self.visible, self.scored.scores, -NOTHING)

    @property
    def factor(self) -> Any:
        """What they are still to be multiplied by."""
        return self.scoring.factor(self.numbers, far=self.scored.far)

    def pull(self, grad: jax.Array) -> jax.Array:
        """Gradients of the raw products, from those of the scores."""
        return self.scoring.pull(grad, self.scored, self.numbers)

    def parts(self, grad: jax.Array, of_raw: jax.Array) -> Parts:
        """Parts of the gradients of the coefficients, from these and what was pulled."""
        return self.scoring.parts(grad, of_raw, self.apart, self.scored, self.numbers)


def look(map: Map, place: Place, tile: Tile, raw: jax.Array, *, keep: bool = False) -> Look:
    """Scores of a tile of raw products; with `keep`, what their derivative needs as well."""
    numbers = numbers_of(place)
    needs_distance = map.scoring.knows_distance and not tile.section.far
    apart = _apart(map, place, tile) if needs_distance else None
    visible = _visible(map, place, tile) if tile.section.masked else None
    scored = map.scoring.score(raw, apart, numbers, keep=keep)
    return Look(map.scoring, scored, apart, visible, numbers)


def _visible(map: Map, place: Place, tile: Tile) -> jax.Array:
    """Which entries of a masked tile are seen. Queries that ask nothing have no weight anyway."""
    if map.keys_stay:
        return _gap(map, place, tile) >= 0
    columns = mosaic.by_column(mosaic.column_numbers(tile.shape[1]), tile.shape)
    visible = columns < place.scalars["lengths"][1] - tile.column
    return visible & (_gap(map, place, tile) >= 0) if map.is_causal else visible


def _gap(map: Map, place: Place, tile: Tile, side: int = 1) -> jax.Array:
    """Position of the query minus that of the key, a float32: exact up to 2²⁴; or side times it."""
    down, right = _growth(map, side)
    rows = mosaic.row_numbers(tile.shape[0]).astype(jnp.float32) * down
    columns = mosaic.column_numbers(tile.shape[1]).astype(jnp.float32) * right
    rows += _first_gap(map, place, tile) * side
    return mosaic.by_row(rows, tile.shape) + mosaic.by_column(columns, tile.shape)


def _first_gap(map: Map, place: Place, tile: Tile) -> jax.Array:
    """The gap of a tile's first entry."""
    offset = place.scalars["lengths"][2]
    queries, keys = (tile.column, tile.row) if map.keys_stay else (tile.row, tile.column)
    return (queries + offset - keys).astype(jnp.float32)


def _growth(map: Map, side: int) -> tuple[int, int]:
    """By how much side times the gap grows from row to row and from column to column."""
    return (-side, side) if map.keys_stay else (side, -side)


def _apart(map: Map, place: Place, tile: Tile) -> Apart:
    """The distances of a tile, in steps where all keys are on one side of all queries."""
    side = tile.section.side

    def whole():
        gap = _gap(map, place, tile, side) if side else jnp.abs(_gap(map, place, tile))
        return mosaic.toeplitz(gap)

    can_step = side != 0 and not mosaic.is_interpreted()
    return Apart(
        whole=whole,
        steps=_steps(map, place, tile) if can_step else None,
        alike=mosaic.toeplitz,
        inverse=mosaic.inverse,
    )


def _steps(map: Map, place: Place, tile: Tile) -> Steps:
    (rows, columns), side = tile.shape, tile.section.side
    rising = _growth(map, side)[1] > 0
    column = tile.column if rising else tile.column + columns - STRIDE
    edge = tile._replace(column=column, shape=(rows, STRIDE))
    return Steps(
        nearest=lambda: _gap(map, place, edge, side),
        geometric=functools.partial(mosaic.geometric, columns=columns, rising=rising),
    )


def spared(map: Map, place: Place, tile: Tile) -> jax.Array:
    """Which weights dropout spares."""
    query_word, key_word, threshold = place.scalars["words"]
    row_word, column_word = (key_word, query_word) if map.keys_stay else (query_word, key_word)
    rows = hash.combine(row_word, mosaic.row_numbers(tile.shape[0]) + tile.row)
    columns = hash.combine(column_word, mosaic.column_numbers(tile.shape[1]) + tile.column)
    words = mosaic.by_row(rows, tile.shape) ^ mosaic.by_column(columns, tile.shape)
    return hash.mix(words) >= threshold


def numbers_of(place: Place) -> Numbers:
    """The coefficients of the head."""
    return place.scalars.get("coefficients", ())
