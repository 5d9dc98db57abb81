"""What the fused kernels are told in advance: ranges of tiles, radii, sums, slopes.

All of it is plain JAX, checked entry by entry on maps that are small enough for it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import fused
from distattn_jax.attention.fused import saturation
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.schedule import NEVER, Extent, Walk, walk_of_keys, walk_of_queries
from distattn_jax.attention.fused.scoring import LOG2E, STRIDE, Apart, Steps
from tests.attention.cases import needs_kernels

pytestmark = needs_kernels
QUERIES, KEYS = 37, 29
BLOCKS = [(8, 8), (8, 4), (4, 8), (1, 1)]  # heights and columns


class Pairs(NamedTuple):
    """Of every pair of many maps, tails of blocks and tiles included: (B, N, T, S)."""

    asks: np.ndarray
    exists: np.ndarray
    visible: np.ndarray
    gap: np.ndarray
    near: np.ndarray
    skips: np.ndarray


def drawn(is_causal: bool, saturates: bool, grain: tuple[int, int]) -> tuple[Extent, Pairs]:
    """Maps of whole tiles of `grain` queries and keys.

    Lengths from none to all, offsets to beyond both ends, radii from 0 to more than the map.
    """
    generator = np.random.default_rng(0)
    B, N = 300, 3

    def integers(low, high, *shape):
        return generator.integers(low, high + 1, shape).astype(np.int32)

    queries, keys = integers(0, QUERIES, B), integers(0, KEYS, B)
    offset = integers(-QUERIES - 3, KEYS + 3, B)
    radius, skips = integers(0, 80, B, N) // integers(1, 9, B, N), generator.random((B, N)) < 0.5
    extent = Extent(*map(jnp.asarray, (queries, keys, offset, radius, skips)))
    if not saturates:
        extent, skips = extent._replace(radius=None, skips=None), skips & False
        radius = np.full_like(radius, 2**20)

    T, S = QUERIES + -QUERIES % grain[0], KEYS + -KEYS % grain[1]
    i, j = np.arange(T)[:, None], np.arange(S)[None, :]
    gap = i + offset[:, None, None, None] - j
    asks, exists = i < queries[:, None, None, None], j < keys[:, None, None, None]
    visible = asks & exists & ((gap >= 0) | (not is_causal))
    near = np.abs(gap) < radius[:, :, None, None]
    shaped = np.broadcast_arrays(asks, exists, visible, gap, near, skips[:, :, None, None])
    return extent, Pairs(*shaped)


class Places:
    """Where each pair lies: in which section of its block's walk, before it or after it."""

    def __init__(self, walk: Walk, blocks: np.ndarray, tiles: np.ndarray):
        """`blocks` and `tiles` number those of every pair: (T, S)."""
        bounds = np.asarray(walk.bounds)
        assert bounds.shape[2:] == (blocks.max() + 1, len(walk.sections) + 1)
        assert (np.diff(bounds) >= 0).all(), "a walk never goes back"
        assert bounds.min() >= 0
        assert bounds.max() <= tiles.max() + 1, "a walk stays inside of the array"
        begun = bounds[:, :, blocks] <= tiles[:, :, None]
        self.sections, self.number = walk.sections, begun.sum(axis=-1) - 1
        self.before, self.after = self.number < 0, self.number >= len(walk.sections)

    def known(self, **what) -> np.ndarray:
        """The pairs in sections of which this is known."""
        fitting = [
            number
            for number, section in enumerate(self.sections)
            if all(getattr(section, name) == value for name, value in what.items())
        ]
        return np.isin(self.number, fitting)


def assert_walked(places: Places, pairs: Pairs, *, averaged: np.ndarray, unmasked: np.ndarray):
    """That every visible pair counts, and that what is said of the sections is so.

    Args:
      averaged: pairs outside of the walk for which a sum stands, if the head skips them.
      unmasked: pairs that only a masked tile can hide.
    """
    asks, exists, visible, gap, near, skips = pairs
    averaged = averaged & skips & asks & exists
    assert (places.known() | averaged)[visible].all()
    assert (visible & ~near)[averaged].all()
    assert visible[places.known(masked=False) & unmasked].all()
    assert not (near | skips)[places.known(far=True) & asks & exists].any()
    assert (gap[np.broadcast_to(places.known(side=1), gap.shape)] >= 0).all()
    assert (gap[np.broadcast_to(places.known(side=-1), gap.shape)] <= 0).all()


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("height", "columns"), BLOCKS)
def test_a_block_of_queries_meets_every_key_it_sees(height, columns, is_causal, saturates):
    extent, pairs = drawn(is_causal, saturates, (height, columns))
    i, j = np.indices(pairs.gap.shape[2:])
    for distance in (True, False)[: 1 if saturates else 2]:
        walk = walk_of_queries(
            extent, QUERIES, height, columns, is_causal=is_causal, distance=distance
        )
        places = Places(walk, i // height, j // columns)
        averaged = places.before | (places.after & (not is_causal))
        assert_walked(places, pairs, averaged=averaged, unmasked=pairs.asks)


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("height", "columns"), BLOCKS)
def test_a_block_of_keys_meets_every_query_that_sees_it(height, columns, is_causal, saturates):
    """Padding at the end of the queries may be met: it has no weight. That of keys is cut off."""
    extent, pairs = drawn(is_causal, saturates, (columns, height))
    i, j = np.indices(pairs.gap.shape[2:])
    for distance in (True, False)[: 1 if saturates else 2]:
        walk = walk_of_keys(extent, KEYS, height, columns, is_causal=is_causal, distance=distance)
        places = Places(walk, j // height, i // columns)
        averaged = places.after | (places.before & (not is_causal))
        assert_walked(places, pairs, averaged=averaged, unmasked=pairs.asks & pairs.exists)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("walk_of", [walk_of_queries, walk_of_keys])
def test_of_a_long_map_little_is_looked_at_closely(walk_of, is_causal):
    """A head that looks near sees a band; to one that looks far, most tiles are far."""
    length = jnp.asarray([4096])
    extent = Extent(
        length, length, 0 * length, jnp.asarray([[50] * 2]), jnp.asarray([[True, False]])
    )
    walk = walk_of(extent, 4096, 128, 64, is_causal=is_causal, distance=True)
    tiles = np.diff(np.asarray(walk.bounds)).sum(axis=2)[0]  # (heads, sections)
    band, everything = tiles.sum(axis=1)
    assert band < 0.2 * everything
    far = [section.far for section in walk.sections]
    assert tiles[1, far].sum() > 0.8 * everything


def test_sums_outside_are_sums_of_rows():
    generator = np.random.default_rng(0)
    B, L, N, W, columns = 3, 21, 2, 4, 8
    rows = generator.normal(size=(B, L, N, W)).astype(np.float32)
    bounds = np.sort(generator.integers(0, 4, (B, N, 5, 3)))
    for before, after in ((True, True), (True, False), (False, True)):
        sums = saturation.outside(
            jnp.asarray(rows), jnp.asarray(bounds), columns, before=before, after=after
        )
        for b, n, block in np.ndindex(B, N, 5):
            first, last = bounds[b, n, block, 0] * columns, bounds[b, n, block, -1] * columns
            expected = before * rows[b, :first, n].sum(0) + after * rows[b, last:, n].sum(0)
            np.testing.assert_allclose(sums[b, n, block], expected, rtol=1e-4, atol=1e-5)


# A family, its numbers for one head, and the same f in NumPy.
FAMILIES = {
    "bend": (fused.bend, (0.4, -0.7), lambda R, a, b: 1 / (1 + np.exp(-a * R - b))),
    "line": (fused.line, (0.1, 0.4), lambda R, a, b: a * R + b),
    "limit": (fused.limit, (0.33, 4.0), lambda R, a, b: np.minimum(a * R, b)),
    "power": (fused.power, (0.37, 2.0), lambda R, a, b: 2 ** np.minimum(a * R, b)),
}
# The same with a negative slope: heads that look near.
FALLING = {
    f"falling {name}": (family, (-slope, second), f)
    for name, (family, (slope, second), f) in FAMILIES.items()
}
LEVEL = {"level bend": (fused.bend, (0.0, -0.7), FAMILIES["bend"][2])}  # w = 0, where some begin
HEADS = FAMILIES | FALLING | LEVEL
HEIGHT = 0.7


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_from_the_radius_on_no_score_and_no_slope_matters(name, adds):
    """Far entries have no part in the gradients of f's numbers: it must be within the tolerance."""
    family, numbers, f = HEADS[name]
    T, S, tolerance = 130, 70, 2.0**-10
    generator = np.random.default_rng(0)
    query, key = generator.normal(size=(1, T, 1, 16)), generator.normal(size=(1, S, 1, 16))
    limit = f(T + S, *numbers)
    operands = operands_of(query, key, [*numbers, HEIGHT, limit])
    radius, skips = saturation.radius_of(fused.Distance(0.25, family, adds), operands, tolerance)

    distance, step = np.arange(T + S), 1e-6
    largest = HEIGHT / LOG2E * (1.0 if adds else longest(query) * longest(key))
    off = largest * np.abs(f(distance, *numbers) - limit)
    ahead, behind = (f(distance, numbers[0] + change, numbers[1]) for change in (step, -step))
    slope = largest * np.abs(ahead - behind) / (2 * step)
    reached = min(int(radius[0, 0]), T + S)  # from differences in float32: hence 1.25 and 0.75
    assert (np.maximum(off, slope)[reached:] <= tolerance * 1.25).all()
    needed = np.maximum(off * np.maximum(distance, 1), slope)
    assert needed[reached - 1] >= tolerance * 0.75, "no larger than it must be"
    assert skips[0, 0] == (not adds and largest * abs(limit) <= tolerance)
    saturates = name not in ("line", "falling line", "falling limit", "level bend")
    assert saturates == (radius[0, 0] < T + S)
    assert saturates or radius[0, 0] == NEVER, "an offset may make distances larger than T + S"


def test_heads_have_radii_of_their_own_and_what_is_not_a_number_is_never_far():
    query = np.ones((1, 50, 3, 16))
    query[:, :, 1] = 0
    numbers = [[-0.5, -0.5, np.nan], [0.3] * 3, [1.0] * 3, [0.0] * 3]
    operands = operands_of(query, query[:, :40], numbers)
    scoring = fused.Distance(0.25, fused.bend, adds=False)
    radius, skips = saturation.radius_of(scoring, operands, 2.0**-10)
    assert 10 < radius[0, 0] < 40
    assert radius[0, 1] <= 1, "where there is no score, none is off"
    assert radius[0, 2] == NEVER
    assert skips[0, :2].all()


def operands_of(query, key, coefficients) -> Operands:
    """What `radius_of` looks at; each coefficient of all heads, or of the only one."""
    query, key = jnp.asarray(query, jnp.bfloat16), jnp.asarray(key, jnp.bfloat16)
    rows = [np.atleast_1d(number) for number in coefficients]
    coefficients = jnp.asarray(np.stack(rows, axis=-1)[None], jnp.float32)
    lengths = jnp.zeros(1, jnp.int32)
    return Operands(query, key, key, coefficients, lengths, lengths, lengths)


def longest(x) -> float:
    rounded = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
    return float(np.linalg.norm(rounded, axis=-1).max())


@pytest.mark.parametrize("name", HEADS)
def test_families_are_the_functions_they_are_said_to_be(name):
    for nearest in (0, 30, 500):
        assert_values(*HEADS[name], nearest)


@pytest.mark.parametrize("slope", [-8.0, 8.0])
@pytest.mark.parametrize("shift", [-60.0, 60.0])
def test_no_factor_of_a_bend_makes_it_nan(slope, shift):
    family, _, f = FAMILIES["bend"]
    with np.errstate(over="ignore"):
        for nearest in (0, 30, 5000):
            assert_values(family, (slope, shift), f, nearest)


def assert_values(family, numbers, f, nearest):
    """Distances as they are, and in steps from the last columns on."""
    distance = nearest + np.arange(64.0)[:, None] + np.arange(63.0, -1, -1)[None, :]
    whole = jnp.asarray(distance, jnp.float32)

    def geometric(edge, step):
        groups = [edge]
        while len(groups) < 64 // STRIDE:
            groups.insert(0, groups[0] * step)
        return jnp.concatenate(groups, axis=1)

    steps = Steps(lambda: whole[:, -STRIDE:], geometric)
    numbers32 = tuple(jnp.float32(number) for number in numbers)
    for apart in (Apart(lambda: whole), Apart(lambda: whole, steps)):
        actual = family.value(apart, numbers32)
        np.testing.assert_allclose(actual, f(distance, *numbers), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_pulls_and_parts_are_derivatives_of_the_score(name, adds, far):
    family, numbers, _ = HEADS[name]
    scoring = fused.Distance(0.25, family, adds)
    parts = assert_derivatives(scoring, (*numbers, HEIGHT, 0.6), far)
    assert len(parts) == scoring.summed == (3 if adds else 2)
    assert (parts[0] is None) == far, "far entries have no part in the numbers of f"


def test_the_pull_of_the_dot_product_is_its_derivative():
    assert not assert_derivatives(fused.Plain(0.25), (), far=False)


def assert_derivatives(scoring, numbers, far):
    """Kernels leave `factor` and `unit` for later; a number whose part is None is not trained."""
    generator = np.random.default_rng(0)
    raw, grad = (jnp.asarray(generator.normal(size=(7, 9)), jnp.float32) for _ in range(2))
    distance = jnp.asarray(generator.integers(0, 20, (7, 9)), jnp.float32)
    apart = None if far else Apart(lambda: distance)
    numbers = tuple(jnp.float32(number) for number in numbers)

    def natural(raw, numbers):
        factor = scoring.factor(numbers, far=far) / LOG2E
        return scoring.score(raw, apart, numbers, keep=False).scores * factor

    scores, of_both = jax.vjp(natural, raw, numbers)
    of_raw, of_numbers = of_both(grad)
    again = scoring.score(raw, apart, numbers, keep=True)
    factor = scoring.factor(numbers, far=far) / LOG2E
    np.testing.assert_allclose(again.scores * factor, scores, rtol=1e-6)
    unit, pulled = scoring.unit(numbers), scoring.pull(grad, again, numbers)
    np.testing.assert_allclose(pulled * unit, of_raw, rtol=1e-4, atol=1e-5)
    parts = scoring.parts(grad, pulled, apart, again, numbers)
    sums = [None if part is None else part.sum() * unit for part in parts]
    if len(parts) == 2:  # the height: q · dq is the sum of these
        sums.append((pulled * raw).sum() * unit)
    for place, (actual, wanted) in enumerate(zip(sums, of_numbers, strict=False)):
        if actual is not None:
            by_logarithm = numbers[2] if place == 2 else 1.0  # d / d log h = h d / dh
            np.testing.assert_allclose(actual, wanted * by_logarithm, rtol=1e-4, atol=1e-4)
    return parts
