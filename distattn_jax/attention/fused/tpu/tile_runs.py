"""Runs of consecutive tiles, in the form in which a TPU kernel reads them."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int


class TileRun(NamedTuple):
    """Run of consecutive tiles, as a kernel reads it.

    Attributes:
      start: Index of the first tile.
      end: Index of the last tile plus 1.
      shift: Number of tiles in all runs before this run, minus `start`.
      next_tile: First tile of the next run that is not empty, or -1 after the last run.
    """

    start: Array
    end: Array
    shift: Array
    next_tile: Array


def list_runs(runs: Int[Array, "B N blocks R 2"]) -> Int[Array, "B N blocks _"]:
    """Return the first tile of each block, or -1, followed by the numbers of each `TileRun`."""
    start, end = runs[..., 0], runs[..., 1]
    count, index = runs.shape[3], jnp.arange(runs.shape[3], dtype=jnp.int32)
    is_empty = start >= end
    lengths = jnp.where(is_empty, 0, end - start)
    shift = jnp.cumsum(lengths, axis=-1) - lengths - start
    # Index of the first non-empty run at or after each run, or `count`.
    following = lax.cummin(jnp.where(is_empty, count, index), axis=3, reverse=True)
    following = jnp.pad(following, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=count)
    starts = jnp.pad(start, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=-1)
    first_tiles = jnp.take_along_axis(starts, following, axis=3)
    numbers = jnp.stack(TileRun(start, end, shift, first_tiles[..., 1:]), axis=-1)
    flat = numbers.reshape(*runs.shape[:3], -1)
    return jnp.concatenate((first_tiles[..., :1], flat), axis=-1).astype(jnp.int32)
