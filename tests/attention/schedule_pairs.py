"""Random score maps, and the run of a schedule in which each pair of query and key is visited."""

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from distattn_jax.attention.fused.schedule import ScheduleInputs
from distattn_jax.attention.fused.tile_runs import TileSchedule
from distattn_jax.attention.fused.visible_columns import Window

RESTRICTIONS = {
    "no restriction": {},
    "causal": {"window": Window(right=0)},
    "window": {"window": Window(3, 5)},
    "window and causal": {"window": Window(7, 0)},
    "key mask": {"key_mask": True},
    "sorted segments": {"segments": np.sort},
    "mixed segments": {"segments": np.asarray, "window": Window(right=0)},
    "mask": {"mask": True},
}


class Pairs(NamedTuple):
    """Properties of each pair of a query and a key, shape (B, N, T, S), padding included."""

    is_query: np.ndarray
    is_key: np.ndarray
    visible: np.ndarray
    relative_positions: np.ndarray
    near: np.ndarray
    is_zero: np.ndarray


def random_maps(
    restriction: str, saturates: bool, shape: tuple[int, int], multiples: tuple[int, int]
) -> tuple[ScheduleInputs, Pairs]:
    """Random score maps for a number of queries and a number of keys.

    The map is padded to a multiple of the numbers in `multiples`. Lengths are from none to all,
    offsets reach beyond both ends, radii are from 0 to more than the length.
    """
    (query_count, key_count), (B, N) = shape, (50, 3)
    chosen = RESTRICTIONS[restriction]
    generator = np.random.default_rng(0)

    def integers(low, high, *shape):
        return generator.integers(low, high + 1, shape).astype(np.int32)

    queries, keys = integers(0, query_count, B), integers(0, key_count, B)
    offset = integers(-query_count - 3, key_count + 3, B)
    radius = integers(0, 80, B, N, 2) // integers(1, 9, B, N, 2)  # before and after the query
    is_zero = generator.random((B, N)) < 0.5
    T, S = query_count + -query_count % multiples[0], key_count + -key_count % multiples[1]
    i, j = np.arange(T)[:, None], np.arange(S)[None, :]
    relative_positions = i + offset[:, None, None, None] - j
    is_query, is_key = i < queries[:, None, None, None], j < keys[:, None, None, None]
    window = chosen.get("window", Window())
    visible = np.broadcast_to(is_query & is_key, (B, N, T, S))
    if window.left is not None:
        visible = visible & (relative_positions <= window.left)
    if window.right is not None:
        visible = visible & (relative_positions >= -window.right)
    inputs = ScheduleInputs(*map(jnp.asarray, (queries, keys, offset)), window=window)
    if saturates:
        inputs = inputs._replace(
            radius=jnp.asarray(radius), is_zero_beyond_radius=jnp.asarray(is_zero)
        )
    else:
        radius, is_zero = np.full_like(radius, 2**20), is_zero & False
    if "key_mask" in chosen:
        first, end = integers(0, key_count, B, N, 1), integers(0, key_count, B, N, 1)
        mask = (generator.random((B, N, S)) < 0.9) & (j >= first) & (j < end) & (j < key_count)
        visible = visible & mask[:, :, None, :]
        is_key = is_key & mask[:, :, None, :]
        inputs = inputs._replace(key_mask=jnp.asarray(mask[:, :, :key_count]))
    if "segments" in chosen:
        segments = [chosen["segments"](integers(0, 3, B, length)) for length in (T, S)]
        visible = visible & (segments[0][:, None, :, None] == segments[1][:, None, None, :])
        inputs = inputs._replace(
            query_segments=jnp.asarray(segments[0][:, :query_count]),
            key_segments=jnp.asarray(segments[1][:, :key_count]),
        )
    if "mask" in chosen:
        visible = visible & (generator.random((B, N, T, S)) < 0.5)
        inputs = inputs._replace(has_mask=True)
    before, after = np.moveaxis(radius, -1, 0)[..., None, None]
    near = np.abs(relative_positions) < np.where(relative_positions >= 0, before, after)
    properties = np.broadcast_arrays(
        is_query, is_key, visible, relative_positions, near, is_zero[:, :, None, None]
    )
    return inputs, Pairs(*properties)


class ScheduledPairs:
    """Run of the schedule in which each pair of a query and a key is visited."""

    def __init__(self, schedule: TileSchedule, blocks: np.ndarray, tiles: np.ndarray):
        """Locate all pairs; `blocks` and `tiles` are their block and tile indices, (T, S)."""
        self.kinds, runs = schedule.kinds, np.asarray(schedule.runs)
        assert runs.shape[2:] == (blocks.max() + 1, len(self.kinds), 2)
        starts, ends = np.moveaxis(runs, -1, 0)
        is_used = starts < ends
        assert starts[is_used].min(initial=0) >= 0
        assert ends[is_used].max(initial=0) <= tiles.max() + 1, "tiles are inside the array"
        self.run_index = np.full((*runs.shape[:2], *tiles.shape), -1)
        for run in range(len(self.kinds)):
            start, end = starts[..., run][:, :, blocks], ends[..., run][:, :, blocks]
            is_inside = (start <= tiles) & (tiles < end)
            assert (self.run_index[is_inside] == -1).all(), "runs do not overlap"
            self.run_index[is_inside] = run
        if schedule.is_in_column_order:
            np.testing.assert_array_equal(starts[..., 1:], ends[..., :-1])
            np.testing.assert_array_equal(starts[..., 0], schedule.start)
        else:
            assert len(list(itertools.groupby(self.kinds))) == len(set(self.kinds))
        self.before = tiles < np.asarray(schedule.start)[:, :, blocks]
        self.after = tiles >= np.asarray(schedule.end)[:, :, blocks]
        assert (self.before | self.after)[self.run_index == -1].all()

    def in_tiles(self, **properties) -> np.ndarray:
        """Mask of the pairs in tiles with these properties."""
        matching = [
            index
            for index, kind in enumerate(self.kinds)
            if all(getattr(kind, name) == value for name, value in properties.items())
        ]
        return np.isin(self.run_index, matching)


def assert_schedule(
    scheduled: ScheduledPairs, pairs: Pairs, *, summed: np.ndarray, needs_mask: np.ndarray
):
    """Assert that each visible pair counts, and that tiles have their properties.

    Args:
      scheduled: Runs of the pairs.
      pairs: Properties of the pairs.
      summed: Pairs in tiles that are skipped, for heads whose scores beyond the radius are 0.
      needs_mask: Pairs that only the mask of a tile can hide.
    """
    is_query, is_key, visible, relative_positions, near, is_zero = pairs
    summed = summed & is_zero & is_query & is_key
    assert (scheduled.in_tiles() | summed)[visible].all()
    assert not (visible & near)[summed].any()
    assert visible[scheduled.in_tiles(is_masked=False) & needs_mask].all()
    assert not (near | is_zero)[scheduled.in_tiles(is_far=True) & is_query & is_key].any()
    assert (is_zero & ~near)[scheduled.in_tiles(is_zero=True) & is_query & is_key].all()
    for side in (1, -1):
        one_side = np.broadcast_to(scheduled.in_tiles(side=side), near.shape)
        assert (side * relative_positions[one_side] >= 0).all()
