"""What the fused kernels are told in advance: ranges of tiles, radii, sums, slopes.

All of it is plain JAX, checked entry by entry on maps that are small enough for it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import fused
from distattn_jax.attention.fused import ranges, saturation
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.ranges import FAR, MASKED, Extent
from distattn_jax.attention.fused.scoring import LOG2E
from tests.attention.drawn import needs_kernels

pytestmark = needs_kernels
QUERIES, KEYS = 37, 29


class Drawn(NamedTuple):
    """Many examples at once: what is real of each, and every pair of its map, all (B, N, T, S)."""

    extent: Extent
    asks: np.ndarray
    exists: np.ndarray
    visible: np.ndarray
    near: np.ndarray
    skips: np.ndarray


def drawn(is_causal: bool, seed: int = 0) -> Drawn:
    """Lengths from none to all, offsets to beyond both ends, radii from 0 to more than the map."""
    generator = np.random.default_rng(seed)
    B, N = 400, 3

    def integers(low, high, shape=(B, 1)):
        return generator.integers(low, high + 1, shape).astype(np.int32)

    extent = Extent(
        query_lengths=integers(0, QUERIES),
        key_lengths=integers(0, KEYS),
        offset=integers(-QUERIES - 3, KEYS + 3),
        radius=np.minimum(integers(0, 80, (B, N)), integers(0, 80, (B, N))),
        skips=generator.random((B, N)) < 0.5,
        is_causal=is_causal,
    )
    i, j = np.arange(QUERIES)[:, None], np.arange(KEYS)[None, :]
    queries, keys, offset, radius, skips = (np.asarray(x)[:, :, None, None] for x in extent[:-1])
    gap = i + offset - j
    asks, exists, near, skips = np.broadcast_arrays(
        i < queries, j < keys, np.abs(gap) < radius, skips
    )
    visible = asks & exists & (gap >= 0) if is_causal else asks & exists
    extent = Extent(*map(jnp.asarray, extent[:-1]), is_causal)
    return Drawn(extent, asks, exists, visible, near, skips)


class Placed(NamedTuple):
    """Where each pair lies: which section visits it, or whether before all or after all of them."""

    sections: tuple[ranges.Section, ...]
    number: np.ndarray

    def which(self, **known) -> np.ndarray:
        """The pairs in sections of which so much is known."""
        inside = np.zeros(self.number.shape, bool)
        for number, section in enumerate(self.sections):
            if all(getattr(section, name) == value for name, value in known.items()):
                inside |= self.number == number
        return inside

    @property
    def before(self) -> np.ndarray:
        return self.number < 0

    @property
    def after(self) -> np.ndarray:
        return self.number >= len(self.sections)


def placed(bounds, sections, rows: np.ndarray, columns: np.ndarray, height, width) -> Placed:
    """`rows` and `columns` number those of every pair: (T, S)."""
    bounds = np.asarray(bounds)
    assert (np.diff(bounds) >= 0).all(), "bounds must not go back"
    assert bounds.min() >= 0
    assert bounds.max() <= -(-(columns.max() + 1) // width), "no tile outside of the array"
    assert bounds.shape[-1] == len(sections) + 1
    own = bounds[:, :, rows // height]  # (B N T S bounds)
    number = (own <= (columns // width)[:, :, None]).sum(axis=-1) - 1
    return Placed(sections, number)


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 4), (4, 8), (1, 1)])
def test_a_block_of_queries_meets_every_key_it_sees_once(height, width, is_causal, saturates):
    extent, asks, exists, visible, near, skips = drawn(is_causal)
    i, j = np.indices((QUERIES, KEYS))
    where = placed(
        ranges.ranges_of_queries(extent, QUERIES, height, width, saturates=saturates),
        ranges.sections_of_queries(saturates),
        *(i, j, height, width),
    )
    averaged = skips & (where.before | where.after & (not is_causal)) & saturates
    assert (where.which() | averaged)[visible].all()
    assert visible[where.which(masked=False) & asks].all()
    assert not (near & where.which(far=True)).any()
    assert not (skips & where.which(far=True)).any()
    assert (visible & ~near)[averaged & asks & exists].all()


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 4), (4, 8), (1, 1)])
def test_a_block_of_keys_meets_every_query_that_sees_it_once(height, width, is_causal, saturates):
    """Padding at the end of the queries may be met: it has no weight."""
    extent, asks, exists, visible, near, skips = drawn(is_causal)
    i, j = np.indices((QUERIES, KEYS))
    where = placed(
        ranges.ranges_of_keys(extent, KEYS, height, width, saturates=saturates),
        ranges.sections_of_keys(saturates, is_causal),
        *(j, i, height, width),
    )
    averaged = skips & (where.after | where.before & (not is_causal)) & saturates
    assert (where.which() | averaged)[visible].all()
    assert visible[where.which(masked=False) & asks & exists].all()
    assert not (near & where.which(far=True) & asks & exists).any()
    assert not (skips & where.which(far=True)).any()
    assert (visible & ~near)[averaged & asks & exists].all()


def test_most_tiles_of_a_long_map_are_known_in_advance():
    """A head that looks near sees a band, one that looks far masks the diagonal alone."""
    one = jnp.ones((1, 1), jnp.int32)
    extent = Extent(
        4096 * one, 4096 * one, 0 * one, jnp.asarray([[50, 50]]), jnp.asarray([[True, False]]), True
    )
    of_queries = ranges.ranges_of_queries(extent, 4096, 128, 128, saturates=True)
    of_keys = ranges.ranges_of_keys(extent, 4096, 128, 64, saturates=True)
    for bounds, sections in (
        (of_queries, ranges.sections_of_queries(True)),
        (of_keys, ranges.sections_of_keys(True, True)),
    ):
        tiles = np.diff(np.asarray(bounds)).sum(axis=2)[0]  # of each head and section
        band, all_of_them = tiles.sum(axis=1)
        assert band < all_of_them / 5
        far = [section == FAR for section in sections]
        masked = sections.index(MASKED)
        assert tiles[1, far].sum() > 0.8 * all_of_them
        assert tiles[1, masked] <= 64


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
    "bend": (fused.bend, (0.2, -0.7, 0.3), lambda R, a, b, c: np.exp(c) * (1 + np.tanh(a * R + b))),
    "line": (fused.line, (-0.1, 0.4), lambda R, a, b: a * R + b),
    "limit": (fused.limit, (0.33, 4.0), lambda R, a, b: np.minimum(a * R, b)),
    "power": (fused.power, (0.37, 2.0, 0.7), lambda R, a, b, c: c * 2 ** np.minimum(a * R, b)),
}
# The same with a negative slope: heads that look near.
FALLING = {
    name: (family, (-abs(numbers[0]), *numbers[1:]), f)
    for name, (family, numbers, f) in FAMILIES.items()
}
ALL_HEADS = {**FAMILIES, **{f"falling {name}": head for name, head in FALLING.items()}}


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_from_the_radius_on_no_score_is_off_by_more_than_the_tolerance(name, adds):
    """Nor is a slope: the distance is in the bound."""
    family, numbers, f = ALL_HEADS[name]
    T, S, tolerance = 130, 70, 2.0**-10
    generator = np.random.default_rng(0)
    query, key = generator.normal(size=(1, T, 1, 16)), generator.normal(size=(1, S, 1, 16))
    limit = f(T + S, *numbers)
    scoring = fused.Distance(0.25, family, adds)
    radius, skips = saturation.radius_of(scoring, _operands(query, key, numbers, limit), tolerance)

    distance = np.arange(T + S)
    largest = 1.0 if adds else _longest(query) * _longest(key)
    largest /= LOG2E  # scores of kernels are logarithms to base 2
    off = largest * np.abs(f(distance, *numbers) - limit) * np.maximum(distance, 1)
    reached = int(radius[0, 0])  # computed in float32: what is saved is a difference, hence 1.25
    assert (off[reached:] <= tolerance * 1.25).all()
    assert off[reached - 1] >= tolerance * 0.75, "no larger than it must be"
    assert skips[0, 0] == (not adds and largest * abs(limit) <= tolerance)
    saturates = name not in ("line", "falling line", "falling limit")
    assert saturates == (reached < T + S)


def test_heads_have_radii_of_their_own_and_what_is_not_a_number_is_never_far():
    query = np.ones((1, 50, 3, 16))
    query[:, :, 1] = 0
    numbers = np.stack(([-0.5, -0.5, np.nan], [0.3] * 3, [1.0] * 3))
    operands = _operands(query, query[:, :40], numbers, np.zeros(3))
    scoring = fused.Distance(0.25, fused.bend, adds=False)
    radius, skips = saturation.radius_of(scoring, operands, 2.0**-10)
    assert 10 < radius[0, 0] < 40
    assert radius[0, 1] <= 1, "where there is no score, none is off"
    assert radius[0, 2] == 90
    assert skips[0, :2].all()


def _operands(query, key, numbers, limit) -> Operands:
    """What `radius_of` looks at; the numbers of heads side by side, or of the only one."""
    query, key = jnp.asarray(query, jnp.bfloat16), jnp.asarray(key, jnp.bfloat16)
    columns = [np.atleast_1d(number) for number in (*numbers, limit)]
    coefficients = jnp.asarray(np.stack(columns, axis=-1)[None], jnp.float32)
    lengths = jnp.zeros(1, jnp.int32)
    return Operands(query, key, key, coefficients, lengths, lengths, lengths)


def _longest(x) -> float:
    rounded = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
    return float(np.linalg.norm(rounded, axis=-1).max())


@pytest.mark.parametrize("name", ALL_HEADS)
def test_families_are_the_functions_they_are_said_to_be(name):
    family, numbers, f = ALL_HEADS[name]
    assert len(numbers) == family.numbers
    distance = np.arange(50)
    actual = family.value(jnp.asarray(distance, jnp.float32), tuple(map(jnp.float32, numbers)))
    np.testing.assert_allclose(actual, f(distance, *numbers), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_pull_is_the_derivative_of_score(name, adds, far):
    family, numbers, _ = ALL_HEADS[name]
    parts = assert_pulls(fused.Distance(0.25, family, adds), (*numbers, 0.6), far)
    assert (parts[-1] is not None) == far, "far entries pull at the constant, and at nothing else"
    assert (parts[0] is None) == far


def test_pull_of_the_dot_product_is_its_derivative():
    assert not assert_pulls(fused.Plain(0.25), (), far=False)


def assert_pulls(scoring, numbers, far):
    """Kernels leave `factor` and `unit` for later; a number whose part is None is not trained."""
    generator = np.random.default_rng(0)
    raw, grad = (jnp.asarray(generator.normal(size=(7, 9)), jnp.float32) for _ in range(2))
    gap = jnp.asarray(generator.integers(-20, 20, (7, 9)), jnp.float32)
    numbers = tuple(jnp.float32(number) for number in numbers)

    def natural(raw, numbers):
        return scoring.score(raw, gap, numbers, far=far).scores * (scoring.factor / LOG2E)

    of_raw, of_numbers = jax.vjp(natural, raw, numbers)[1](grad)
    kept = scoring.score(raw, gap, numbers, far=far).kept
    pulled, parts = scoring.pull(grad, gap, kept, numbers, far=far)
    np.testing.assert_allclose(pulled * scoring.unit, of_raw, rtol=1e-4, atol=1e-5)
    assert len(parts) == scoring.coefficients
    for part, wanted in zip(parts, of_numbers, strict=True):
        if part is not None:
            np.testing.assert_allclose(part.sum() * scoring.unit, wanted, rtol=1e-4, atol=1e-4)
    return parts
