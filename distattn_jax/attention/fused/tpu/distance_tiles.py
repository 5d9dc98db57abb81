"""Tiles of the distance function f, which stay in VMEM while a head is computed.

f depends on i - j alone, for query i and key j. A diagonal of tiles consists of all tiles of a head
with the same (first query - first key). All of them have the same f, in all examples with the same
offset. A kernel evaluates f in the first of these tiles, and reads the stored f in all others. The
grid visits all examples of a head before the next head.

The tiles of one diagonal share a slot in VMEM. If there are more diagonals than slots, several
diagonals use the same slot and overwrite each other. Usually f becomes constant after a few
diagonals, and needs no slot there. If f is cheap to evaluate, it is stored only if each diagonal
has a slot of its own.
"""

import functools
import operator
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from distattn_jax.attention.fused.distance_functions import Distances
from distattn_jax.attention.fused.score_map import ScoreMap, read_coefficients, read_lengths
from distattn_jax.attention.fused.tpu.kernel_body import BlockContext, KernelBody, Tile
from distattn_jax.attention.fused.tpu.registers import lane_indices, sublane_indices

MOST_TILES = 16  # A tile of 512 queries and 512 keys takes 1 MiB.
ARGUMENTS = 3  # of f in a tile: slope, shift and relative position
LARGEST_DIVISOR = 1e30  # Larger divisors could give inf * 0 = NaN in Newton's method.


def keep_distances(
    body: KernelBody,
    score_map: ScoreMap,
    shape: tuple[int, int],
    diagonals: int,
    *,
    needs_distances: bool,
) -> KernelBody:
    """Return a copy of a kernel body that keeps tiles of the distance function f in VMEM.

    All tiles on one diagonal of tiles have the same f. The new body evaluates f in the first of
    them and stores it in one of a few slots, before it runs the given body. Far tiles, and tiles
    whose scores are treated as 0, do not need f. If f is cheap to evaluate and there are more
    diagonals of tiles than slots, return `body` unchanged.

    Args:
      score_map: Scoring of the kernel, which has a distance function f.
      shape: Number of keys and number of queries of a tile.
      diagonals: Number of diagonals of tiles in the score map.
      needs_distances: True if the kernel computes gradients of the coefficients of f. The new body
        then also stores the distances.
    """
    tiles = ("f", "distances") if needs_distances else ("f",)
    next_power_of_2 = 1 << (diagonals - 1).bit_length()
    slots = min(MOST_TILES // len(tiles), next_power_of_2)
    scoring: Any = score_map.scoring
    if scoring.function.is_cheap and slots < diagonals:
        return body
    kept = {
        **{name: pltpu.VMEM((slots, *shape), jnp.float32) for name in tiles},
        "arguments": pltpu.SMEM((slots, ARGUMENTS), jnp.float32),
    }

    def initialize(context: BlockContext) -> None:
        @pl.when(context.is_first)
        def _() -> None:
            coefficients: Any = read_coefficients(context.scalars)
            for slot in range(slots):  # NaN differs from every slope: the slot is empty.
                context.kept["arguments"][slot, 0] = coefficients.slope + jnp.nan

        body.initialize(context)

    def step(context: BlockContext, tile: Tile) -> None:
        if not (tile.kind.is_far or tile.kind.is_zero):
            _store(context, tile)
        body.step(context, tile)

    return body._replace(initialize=initialize, step=step, kept={**body.kept, **kept})


def read_distances(context: BlockContext, tile: Tile) -> Distances:
    """Return `Distances` whose functions load f and the distances of a tile from VMEM.

    If the kernel does not keep f or the distances in VMEM, the functions compute them. All results
    have the shape (keys, queries).
    """
    distances, kept = view_distances(context, tile), context.kept
    if "f" not in kept:
        return distances
    slot = _find_slot(context, tile)
    distances = distances._replace(stored=lambda: kept["f"][slot])
    if "distances" not in kept:
        return distances
    return distances._replace(entries=lambda: kept["distances"][slot])


def _store(context: BlockContext, tile: Tile) -> None:
    """Evaluate the distance function f for a tile, and store it in a slot of VMEM.

    `_find_slot` returns the slot of the tile. Do nothing if this slot already contains f for the
    same slope, shift and relative position.
    """
    coefficients: Any = read_coefficients(context.scalars)
    slot, stored = _find_slot(context, tile), context.kept["arguments"]
    arguments = (coefficients.slope, coefficients.shift, _relative_position(context, tile))
    is_different = [stored[slot, i] != x for i, x in enumerate(arguments)]

    @pl.when(functools.reduce(operator.or_, is_different))
    def _() -> None:
        scoring: Any = context.score_map.scoring
        distances = view_distances(context, tile)
        context.kept["f"][slot] = scoring.evaluate(distances, coefficients)
        if "distances" in context.kept:
            context.kept["distances"][slot] = distances.entries()
        for i, x in enumerate(arguments):
            stored[slot, i] = x


def _find_slot(context: BlockContext, tile: Tile) -> jax.Array:
    """Return the index of the slot in VMEM for the distance function of a tile.

    All tiles with the same difference (index of the tile of queries - index of the tile of keys)
    have the same slot.
    """
    keys, queries = tile.shape
    slots = context.kept["f"].shape[0]
    diagonal = lax.div(tile.query, queries) - lax.div(tile.key, keys)
    return diagonal & (slots - 1)


def _relative_position(context: BlockContext, tile: Tile) -> jax.Array:
    """Return the position of the first query minus the position of the first key of a tile."""
    position = tile.query + read_lengths(context.scalars).offset - tile.key
    return position.astype(jnp.float32)


def view_distances(context: BlockContext, tile: Tile) -> Distances:
    """Return `Distances` whose functions compute the distances of a tile, and reciprocals 1 / x.

    The distances have the shape (keys, queries). For 16-bit inputs, `_estimate_reciprocal` replaces
    the exact division.
    """

    def compute_distances() -> jax.Array:
        first = _relative_position(context, tile)
        queries, keys = (
            index(tile.shape).astype(jnp.float32) for index in (lane_indices, sublane_indices)
        )
        return jnp.abs((queries + first) - keys)

    if not context.score_map.is_16_bit:
        return Distances(compute_distances)
    return Distances(compute_distances, reciprocal=_estimate_reciprocal)


def _estimate_reciprocal(x: jax.Array) -> jax.Array:
    """Return 1 / x for x >= 1, with an error of a few units in the last place of float32.

    The processor estimates 1 / x, and one step of Newton's method makes the estimate more precise.
    This is faster than an exact division, which also handles zeros, infinities and subnormal
    numbers.
    """
    module: Any = pltpu if hasattr(pltpu, "reciprocal") else pl  # JAX 0.11.2 moved the function.
    x = jnp.minimum(x, LARGEST_DIVISOR)
    estimate = module.reciprocal(x, approx=True)
    return estimate * (2.0 - x * estimate)
