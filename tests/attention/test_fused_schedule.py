"""Schedule of the fused kernels, checked pair by pair on small score maps."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention.fused.gpu.block_order import BlockOrder, Share
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.schedule import (
    ScheduleInputs,
    schedule_blocks,
    schedule_diagonal_blocks,
)
from distattn_jax.attention.fused.tile_runs import Distinctions, TileKind, TileSchedule, join_parts
from distattn_jax.attention.fused.visible_columns import Window
from tests.attention.cases import needs_kernels
from tests.attention.schedule_pairs import (
    RESTRICTIONS,
    ScheduledPairs,
    assert_schedule,
    random_maps,
)
from tests.evaluation import evaluate

pytestmark = needs_kernels
# Rows of a block, columns of a tile, rows of the score map.
TILES = [(8, 4, 77), (4, 8, 37), (1, 1, 10)]
COLUMNS = 29


def evaluate_schedule(inputs: ScheduleInputs, *sizes: int, **options) -> TileSchedule:
    """Return the schedule of `schedule_blocks`, computed without compilation."""
    schedules = []

    def compute(arrays):
        schedules.append(schedule_blocks(inputs._replace(**arrays), *sizes, **options))
        return schedules[0].runs, schedules[0].start, schedules[0].end

    arrays = {name: x for name, x in inputs._asdict().items() if isinstance(x, jax.Array)}
    runs, start, end = evaluate(compute, arrays)
    return schedules[0]._replace(runs=runs, start=start, end=end)


schedule_query_blocks = functools.partial(evaluate_schedule, is_transposed=False)
schedule_key_blocks = functools.partial(evaluate_schedule, is_transposed=True)

BOTH = [schedule_query_blocks, schedule_key_blocks]
DOT_PRODUCT = Distinctions()
DISTANCE = Distinctions(far=True)
RELATIONS = Distinctions(far=True, far_sides=True)
# Two heads with a radius of 50: the scores of the first one are 0 beyond it.
SATURATING = {
    "radius": jnp.asarray([[50] * 2]),
    "is_zero_beyond_radius": jnp.asarray([[True, False]]),
}
SUMMED = ("no restriction", "causal", "key mask")  # Prefix sums may replace skipped tiles.
# Combinations of `saturates`, `distinctions` and `visits_zero_tiles`.
OPTIONS = [
    (False, DOT_PRODUCT, False),
    (False, DISTANCE, False),
    (True, DOT_PRODUCT, True),
    (True, DISTANCE, False),
    (True, DISTANCE, True),
    (True, RELATIONS, False),
]


@pytest.mark.parametrize("make_schedule", BOTH)
@pytest.mark.parametrize("restriction", RESTRICTIONS)
@pytest.mark.parametrize(("block_rows", "tile_columns", "rows"), TILES)
def test_blocks_cover_every_visible_pair(
    block_rows, tile_columns, rows, restriction, make_schedule
):
    """Key blocks may visit padded queries, whose weights are 0, and set padded keys to 0."""
    has_query_rows = make_schedule is schedule_query_blocks
    order = slice(None, None, 1 if has_query_rows else -1)  # from rows and columns to (T, S)
    shape, multiples = (rows, COLUMNS)[order], (block_rows, tile_columns)[order]
    for saturates, distinctions, visits_zero_tiles in OPTIONS:
        inputs, pairs = random_maps(restriction, saturates, shape, multiples)
        row, column = np.indices(pairs.near.shape[2:])[order]
        schedule = make_schedule(
            inputs,
            rows,
            block_rows,
            tile_columns,
            distinctions=distinctions,
            visits_zero_tiles=visits_zero_tiles,
        )
        scheduled = ScheduledPairs(schedule, row // block_rows, column // tile_columns)
        past, future = (scheduled.before, scheduled.after)[order]
        summed = (past | (future & (not inputs.window.is_causal))) & (not visits_zero_tiles)
        needs_mask = pairs.is_query if has_query_rows else pairs.is_query & pairs.is_key
        assert_schedule(scheduled, pairs, summed=summed, needs_mask=needs_mask)
        if restriction in SUMMED:
            skipped = summed & pairs.is_zero & pairs.is_query & pairs.is_key
            assert pairs.visible[skipped].all(), "a prefix sum contains visible pairs only"


@pytest.mark.parametrize("make_schedule", BOTH)
def test_blocks_visit_the_tiles_within_reach_and_few_others(make_schedule):
    block_rows, tile_columns, rows = TILES[0]
    has_query_rows = make_schedule is schedule_query_blocks
    order = slice(None, None, 1 if has_query_rows else -1)
    shape, multiples = (rows, COLUMNS)[order], (block_rows, tile_columns)[order]
    for restriction in ("no restriction", "window and causal", "sorted segments"):
        inputs, pairs = random_maps(restriction, False, shape, multiples)
        reach = np.random.default_rng(1).integers(0, 20, (*pairs.near.shape[:2], 2))
        inputs = inputs._replace(reach=jnp.asarray(reach, jnp.int32))
        schedule = make_schedule(inputs, rows, block_rows, tile_columns, distinctions=DOT_PRODUCT)
        row, column = np.indices(pairs.near.shape[2:])[order]
        scheduled = ScheduledPairs(schedule, row // block_rows, column // tile_columns)
        before, after = np.moveaxis(reach, -1, 0)[..., None, None]
        beyond = np.maximum(pairs.relative_positions - before, -pairs.relative_positions - after)
        assert scheduled.in_tiles()[pairs.visible & (beyond <= 0)].all()
        assert not scheduled.in_tiles()[beyond > block_rows + tile_columns].any()
        needs_mask = pairs.is_query if has_query_rows else pairs.is_query & pairs.is_key
        assert pairs.visible[scheduled.in_tiles(is_masked=False) & needs_mask].all()


def square_maps(length: int, **restrictions) -> ScheduleInputs:
    """Return the inputs of one score map of as many queries as keys, without an offset."""
    lengths = jnp.asarray([length])
    return ScheduleInputs(lengths, lengths, 0 * lengths, **restrictions)


def count_tiles(schedule: TileSchedule) -> np.ndarray:
    """Return the number of tiles of each run, summed over all blocks: (B, N, runs)."""
    return np.diff(np.asarray(schedule.runs))[..., 0].sum(axis=2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("make_schedule", BOTH)
def test_most_tiles_of_a_long_map_are_skipped_or_far(make_schedule, is_causal):
    """One head skips far tiles and visits a band; most tiles of the other head are far."""
    inputs = square_maps(4096, window=Window(right=0 if is_causal else None), **SATURATING)
    schedule = make_schedule(inputs, 4096, 128, 64, distinctions=DISTANCE)
    tiles = count_tiles(schedule)[0]  # (heads, runs)
    band, everything = tiles.sum(axis=1)
    assert band < 0.2 * everything
    is_far = [kind.is_far for kind in schedule.kinds]
    assert tiles[1, is_far].sum() > 0.8 * everything


@pytest.mark.parametrize("make_schedule", BOTH)
def test_tiles_of_other_segments_are_skipped_and_most_others_are_plain(make_schedule):
    segments = jnp.arange(4096)[None] // 512
    inputs = square_maps(4096, query_segments=segments, key_segments=segments)
    schedule = make_schedule(inputs, 4096, 128, 64, distinctions=DOT_PRODUCT)
    tiles = count_tiles(schedule)[0, 0]
    assert tiles.sum() == 32 * 8, "each block of 128 rows visits the 8 tiles of its segment"
    assert tiles[[not kind.is_masked for kind in schedule.kinds]].sum() == tiles.sum()


@pytest.mark.parametrize("padding", ["after", "before"])
def test_a_mask_of_padding_costs_no_more_than_lengths(padding):
    is_key = jnp.arange(4096)[None, None] < 1024
    mask = is_key if padding == "after" else is_key[..., ::-1]
    inputs = square_maps(4096, key_mask=mask)
    schedule = schedule_query_blocks(inputs, 4096, 128, 64, distinctions=DOT_PRODUCT)
    tiles = count_tiles(schedule)[0, 0]
    assert tiles.sum() == 32 * 16
    assert tiles[[kind.is_masked for kind in schedule.kinds]].sum() == 0


@pytest.mark.parametrize("make_schedule", BOTH)
@pytest.mark.parametrize("restriction", ["mask", "segments", "window"])
def test_far_tiles_under_every_restriction(restriction, make_schedule):
    """Most tiles of one head are tiles of zeros; most tiles of the other head are far."""
    segments = jnp.arange(4096)[None] // 1800
    restrictions = {
        "mask": {"has_mask": True},
        "segments": {"query_segments": segments, "key_segments": segments},
        "window": {"window": Window(1000, 1000)},
    }
    inputs = square_maps(4096, **SATURATING, **restrictions[restriction])
    schedule = make_schedule(inputs, 4096, 128, 64, distinctions=DISTANCE, visits_zero_tiles=True)
    tiles = count_tiles(schedule)[0]
    for head, name in enumerate(("is_zero", "is_far")):
        is_far = [getattr(kind, name) for kind in schedule.kinds]
        assert tiles[head, is_far].sum() > 0.7 * tiles[head].sum()


SEGMENTS = jnp.arange(640)[None] // 300
LOOPS = {  # number of loops of a kernel with blocks of queries
    "no restriction": ({}, 4),  # FAR, PLAIN, FAR, MASKED
    "no padded keys": ({"full_keys": 640}, 3),  # FAR, PLAIN, FAR
    "a last tile with fewer keys": ({"full_keys": 600}, 4),
    "no padded keys, causal": ({"full_keys": 640, "window": Window(right=0)}, 3),
    "causal": ({"window": Window(right=0)}, 3),  # FAR, PLAIN, MASKED
    "mask": ({"has_mask": True}, 2),  # MASKED FAR, MASKED
    "segments": (
        dict.fromkeys(("query_segments", "key_segments"), SEGMENTS),
        4,
    ),  # MASKED FAR, MASKED, FAR, PLAIN
}


@pytest.mark.parametrize("restriction", LOOPS)
def test_a_schedule_has_only_the_kinds_of_tiles_that_it_needs(restriction):
    restrictions, count = LOOPS[restriction]
    inputs = square_maps(640, radius=jnp.asarray([[20]]), **restrictions)
    schedule = schedule_query_blocks(inputs, 640, 128, 64, distinctions=DISTANCE)
    assert len(list(itertools.groupby(schedule.kinds))) == count


@pytest.mark.parametrize("make_schedule", BOTH)
def test_tiles_in_the_order_of_their_columns(make_schedule):
    inputs = square_maps(600, window=Window(200, 100))
    schedule = make_schedule(
        inputs, 600, 128, 64, distinctions=DOT_PRODUCT, keeps_column_order=True
    )
    runs = np.asarray(schedule.runs)
    np.testing.assert_array_equal(runs[..., 1:, 0], runs[..., :-1, 1])
    np.testing.assert_array_equal(runs[..., 0, 0], schedule.start)
    np.testing.assert_array_equal(runs[..., -1, 1], schedule.end)


@pytest.mark.parametrize("restriction", ["no restriction", "causal", "window"])
def test_parts_of_a_block_visit_their_own_tiles(restriction):
    (part_rows, tile_columns, rows), parts = TILES[0], 3
    inputs, _ = random_maps(restriction, True, (rows, COLUMNS), (part_rows, tile_columns))
    alone = schedule_query_blocks(inputs, rows, part_rows, tile_columns, distinctions=DISTANCE)
    joined = join_parts(alone, parts)
    missing = joined.blocks * parts - alone.start.shape[2]
    assert (joined.blocks, missing) == (4, 2)
    *runs, bounds = np.moveaxis(np.asarray(joined.runs), 3, 0)
    first, last = np.moveaxis(bounds, -1, 0)
    tiles = np.arange(-(-COLUMNS // tile_columns))

    def find_tiles(runs):
        return (runs[..., :1] <= tiles) & (tiles < runs[..., 1:])

    for run, expected in zip(runs, np.moveaxis(np.asarray(alone.runs), 3, 0), strict=True):
        found = find_tiles(run)
        np.testing.assert_array_equal(found[:, :, :-missing], find_tiles(expected))
        assert not found[:, :, -missing:].any()
        assert ((first[..., None] <= run) & (run <= last[..., None])).all()
    visited = sum(map(find_tiles, runs)).reshape(*first.shape[:2], joined.blocks, parts, -1)
    expected = visited.any(axis=3)
    in_bounds = find_tiles(bounds[:, :, ::parts])
    assert in_bounds[expected].all()
    is_used = expected.any(axis=-1)
    np.testing.assert_array_equal(first[:, :, ::parts][is_used], expected.argmax(-1)[is_used])
    backwards = expected[..., ::-1].argmax(-1)
    np.testing.assert_array_equal(last[:, :, ::parts][is_used], len(tiles) - backwards[is_used])
    assert (first == last)[:, :, ::parts][~is_used].all()


@pytest.mark.parametrize("distinctions", [DOT_PRODUCT, DISTANCE])
def test_heads_with_small_scores_have_kinds_of_their_own(distinctions):
    inputs = square_maps(
        640,
        window=Window(right=0),
        radius=jnp.asarray([[20, 20]]),
        has_small_scores=jnp.asarray([[True, False]]),
    )
    schedule = schedule_query_blocks(inputs, 640, 128, 64, distinctions=distinctions)
    small, others = count_tiles(schedule)[0]
    is_small = np.asarray([kind.has_small_scores for kind in schedule.kinds])
    assert small[is_small].sum() == others[~is_small].sum() - small[~is_small].sum() > 0
    assert not others[is_small].any()
    masked = [kind for kind in schedule.kinds if kind.has_small_scores and kind.is_masked]
    assert not masked


@pytest.mark.parametrize("window", [Window(), Window(right=0), Window(5, 3)])
@pytest.mark.parametrize("block_rows", [4, 8, 12])
def test_diagonal_blocks_cover_every_visible_pair(block_rows, window):
    """In a plain tile, all pairs of a key and a query before the padding are visible."""
    size, origin, length = 4, 24, 48
    lengths = np.asarray([[20, 17], [24, 24], [1, 9], [0, 5], [7, 0]])
    offset = np.asarray([0, -3, 6, 2, 0])
    inputs = ScheduleInputs(*map(jnp.asarray, (*lengths.T, offset)), window=window)
    blocks = length // block_rows
    kinds, runs, *_ = schedule_diagonal_blocks(inputs, blocks, block_rows, size, origin)
    runs = np.broadcast_to(runs, (len(offset), 1, *runs.shape[2:]))[:, 0]
    assert (runs[..., 1:, 0] == runs[..., :-1, 1]).all(), "tiles are in the order of their columns"
    left, right = (np.inf if limit is None else limit for limit in window)
    for example, diagonal in np.ndindex(len(offset), length // size):
        block, tile_row = divmod(diagonal * size, block_rows)
        start = block * block_rows + tile_row - origin
        for tile in range(origin // size):
            i, j = (x.ravel() for x in np.indices((size, size)))
            i, j = i + tile * size, j + tile * size + start
            is_pair = (i < lengths[example, 0]) & (j >= 0) & (j < lengths[example, 1])
            distance = i + offset[example] - j
            visible = is_pair & (distance <= left) & (distance >= -right)
            starts, ends = runs[example, block].T
            run = np.flatnonzero((starts <= tile) & (tile < ends))
            if not run.size:
                assert not visible.any(), "a visible pair is not visited"
            elif not kinds[run.item()].is_masked:
                assert visible[i < lengths[example, 0]].all(), "a hidden pair is not masked"
            elif example == 0:
                assert tile * size < lengths[example, 0], "a tile beyond the queries is visited"


@pytest.mark.parametrize(("blocks", "expected"), [(1, 6), (999, 132)])
def test_persistent_kernels_have_at_most_one_thread_block_per_processor(
    blocks, expected, monkeypatch
):
    module = "distattn_jax.attention.fused.gpu.tile_configs"
    monkeypatch.setattr(f"{module}.count_processors", lambda: 132)
    order = BlockOrder(TileConfig(is_persistent=True), 2, 3, blocks, is_within_head=False)
    assert order.thread_blocks == expected
    order = order._replace(config=TileConfig(is_persistent=False))
    assert order.thread_blocks == 6 * blocks


@pytest.mark.parametrize(
    ("heads", "blocks", "parts"), [(768, 2, 1), (128, 16, 1), (64, 64, 2), (64, 43, 2), (16, 9, 5)]
)
def test_few_thread_blocks_share_a_head(heads, blocks, parts, monkeypatch):
    """A thread block within one head needs memory for one number per relative position."""
    module = "distattn_jax.attention.fused.gpu.tile_configs"
    monkeypatch.setattr(f"{module}.count_processors", lambda: 132)
    order = BlockOrder(TileConfig(), 1, heads, blocks, is_within_head=True)
    assert order.parts == parts


@pytest.mark.parametrize(("processors", "parts"), [(8, [1, 3]), (3, [1, 2]), (1, [1, 1])])
def test_heads_with_more_work_get_more_thread_blocks(processors, parts, monkeypatch):
    """Head 0 visits tiles whose products are treated as 0. It has about a third of the work."""
    module = "distattn_jax.attention.fused.gpu.tile_configs"
    monkeypatch.setattr(f"{module}.count_processors", lambda: processors)
    order = BlockOrder(TileConfig(), 2, 2, 6, is_within_head=True, is_uneven=True)
    runs = jnp.asarray([[[0, 9], [9, 9]], [[0, 0], [0, 9]]])[None, :, None]
    start, end = jnp.zeros((2, 2, 6), int), jnp.full((2, 2, 6), 9)
    kinds = TileKind(is_zero=True), TileKind()
    schedule = TileSchedule(kinds, jnp.broadcast_to(runs, (2, 2, 6, 2, 2)), start, end)
    visited = []
    for i, share in enumerate(order.divide_work(schedule)):
        own = order._replace(share=Share(*share))
        visits = [own.locate(jnp.int32(i), k) for k in range(int(own.count_rounds(jnp.int32(i))))]
        assert len({(int(x.example), int(x.head)) for x in visits}) == 1
        assert share[2] == parts[int(visits[0].head)]
        visited += [(int(x.example), int(x.head), int(x.block)) for x in visits]
    assert sorted(visited) == [*itertools.product(range(2), range(2), range(6))]


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("is_within_head", [False, True])
@pytest.mark.parametrize("blocks", [1, 4, 7])
def test_thread_blocks_compute_each_block_of_rows_once(
    is_persistent, is_within_head, blocks, monkeypatch
):
    """Five processors divide neither the blocks nor the heads evenly."""
    module = "distattn_jax.attention.fused.gpu.tile_configs"
    monkeypatch.setattr(f"{module}.count_processors", lambda: 5)
    order = BlockOrder(TileConfig(is_persistent=is_persistent), 2, 3, blocks, is_within_head)
    visited = []
    for thread_block in range(order.thread_blocks):
        visits = [
            order.locate(jnp.int32(thread_block), i)
            for i in range(int(order.count_rounds(jnp.int32(thread_block))))
        ]
        if is_within_head:
            assert len({(int(x.example), int(x.head)) for x in visits}) == 1
        visited += [(int(x.example), int(x.head), int(x.block)) for x in visits]
    assert sorted(visited) == [*itertools.product(range(2), range(3), range(blocks))]
