"""Distance functions, scores, their derivatives, saturation radii, and heads with small scores."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import DistanceAware, DotProduct, attention
from distattn_jax.attention.fused import small_scores
from distattn_jax.attention.fused.distance_functions import (
    CLIPPED,
    EXPONENTIAL,
    LINEAR,
    LOG2E,
    SIGMOID,
    Coefficients,
    Distances,
    FunctionCotangent,
    select_shift_share,
    unstack_coefficients,
)
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.saturation import find_table_radius
from distattn_jax.attention.fused.scoring import (
    DistanceScoring,
    DotProductScoring,
    TableScoring,
)
from distattn_jax.attention.fused.skipped_tiles import sum_skipped_rows
from distattn_jax.attention.fused.tile_runs import TileSchedule
from distattn_jax.attention.fused.visible_columns import UNBOUNDED, Window
from tests.attention.cases import TOLERANCE, Sizes, inputs, needs_kernels
from tests.evaluation import evaluate, interpreted

pytestmark = needs_kernels
HEIGHT = 0.7

# A distance function, slope and shift of one head, and the same function in NumPy.
RISING = {
    "sigmoid": (SIGMOID, (0.4, -0.7), lambda R, a, b: 1 / (1 + np.exp(-a * R - b))),
    "linear": (LINEAR, (0.1, 0.4), lambda R, a, b: a * R + b),
    "clipped": (CLIPPED, (0.33, 4.0), lambda R, a, b: np.minimum(a * R, b)),
    "exponential": (EXPONENTIAL, (0.37, 2.0), lambda R, a, b: 2 ** np.minimum(a * R, b)),
}
FALLING = {
    f"falling {name}": (function, (-slope, shift), f)
    for name, (function, (slope, shift), f) in RISING.items()
}
CONSTANT = {"constant sigmoid": (SIGMOID, (0.0, -0.7), RISING["sigmoid"][2])}  # w = 0
HEADS = RISING | FALLING | CONSTANT


def make_coefficients(slope, shift, height=HEIGHT, far=0.0, share=0.0) -> Coefficients:
    return Coefficients(*map(jnp.float32, (slope, shift, height, far, share)))


@pytest.mark.parametrize("name", HEADS)
def test_distance_functions_equal_their_formulas(name):
    for nearest in (0, 30, 500):
        assert_values(*HEADS[name], nearest)


@pytest.mark.parametrize("slope", [-8.0, 8.0])
@pytest.mark.parametrize("shift", [-60.0, 60.0])
def test_a_sigmoid_with_extreme_coefficients_is_not_nan(slope, shift):
    function, _, f = RISING["sigmoid"]
    with np.errstate(over="ignore"):
        for nearest in (0, 30, 5000):
            assert_values(function, (slope, shift), f, nearest)


def assert_values(function, slope_and_shift, f, nearest):
    """Compare the values of a distance function with NumPy."""
    distance = nearest + np.arange(64.0)[:, None] + np.arange(63.0, -1, -1)[None, :]

    def compute(distance, coefficients):
        return function.evaluate(Distances(lambda: distance), coefficients)

    coefficients = make_coefficients(*slope_and_shift)
    actual = evaluate(compute, jnp.asarray(distance, jnp.float32), coefficients)
    np.testing.assert_allclose(actual, f(distance, *slope_and_shift), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize("is_additive", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_gradients_are_derivatives_of_the_score(name, is_additive, is_far):
    function, slope_and_shift, _ = HEADS[name]
    scoring = DistanceScoring(0.25, function, is_additive)
    # A sigmoid is far where it has reached 0 or 1, here 1, and then has no share.
    is_one = is_far and function is SIGMOID
    far, share = (1.0, 0.0) if is_one else (0.6, 0.4 if function is SIGMOID else 0.0)
    gradients = assert_derivatives(
        scoring, make_coefficients(*slope_and_shift, far=far, share=share), is_far=is_far
    )
    assert len(gradients) == scoring.summed_gradients == (3 if is_additive else 2)
    assert (gradients[0] is None) == is_far, "far entries do not depend on the slope"


def test_the_gradient_of_the_dot_product_is_its_derivative():
    assert not assert_derivatives(DotProductScoring(0.25), None, is_far=False)


def assert_derivatives(scoring, coefficients, *, is_far):
    """Compare with `jax.vjp`, after applying the multipliers that kernels apply late."""
    generator = np.random.default_rng(0)
    products, cotangent = (
        jnp.asarray(generator.normal(size=(7, 9)), jnp.float32) for _ in range(2)
    )
    entries = jnp.asarray(generator.integers(0, 20, (7, 9)), jnp.float32)
    distances = None if is_far else Distances(lambda: entries)

    def natural_scores(products, coefficients, for_gradient=False):
        multiplier = scoring.score_multiplier(coefficients, is_far=is_far) / LOG2E
        tile_scores = scoring.score(products, distances, coefficients, for_gradient=for_gradient)
        return tile_scores.scores * multiplier

    scores, pull_back = jax.vjp(natural_scores, products, coefficients)
    expected_product_gradient, expected = pull_back(cotangent)
    np.testing.assert_allclose(natural_scores(products, coefficients, True), scores, rtol=1e-6)

    multiplier = scoring.gradient_multiplier(coefficients)
    tile_scores = scoring.score(products, distances, coefficients, for_gradient=True)
    product_gradient = scoring.product_gradient(cotangent, tile_scores, coefficients)
    np.testing.assert_allclose(
        product_gradient * multiplier, expected_product_gradient, rtol=1e-4, atol=1e-5
    )
    gradients = scoring.coefficient_gradients(
        cotangent, product_gradient, distances, tile_scores, coefficients
    )
    if not gradients:
        return gradients
    sums = [None if gradient is None else gradient.sum() * multiplier for gradient in gradients]
    if len(gradients) == 2:  # the sum of q · dq is the gradient of log height
        sums.append((product_gradient * products).sum() * multiplier)
    actual = scoring.combine_gradients([x or 0.0 for x in sums], jnp.stack(coefficients))
    for index, x in enumerate(sums):
        if x is not None or scoring.function is SIGMOID:  # Others may have a constant shift.
            np.testing.assert_allclose(actual[index], expected[index], rtol=1e-4, atol=1e-4)
    return gradients


@pytest.mark.parametrize(
    ("slope", "v"), [(0.005, 1.0), (-0.005, 1.0), (-0.005, -1.0), (0.4, 1.0), (-0.05, -10.0)]
)
def test_an_error_of_the_gradient_of_the_height_hardly_changes_that_of_v(slope, v):
    """The gradient of the height comes from 16-bit numbers. That of v may be much smaller."""
    distance, longest = jnp.arange(20.0), 40
    far = 1 / (1 + np.exp(v - slope * longest))
    share = select_shift_share(jnp.float32(-v), jnp.float32(far))
    coefficients = make_coefficients(slope, -v, 1 + np.exp(v), far, share)
    scoring, distances = DistanceScoring(0.25, SIGMOID, False), Distances(lambda: distance)
    products, cotangent = np.abs(np.random.default_rng(0).normal(size=(2, 20)))
    scores = scoring.score(products, distances, coefficients, for_gradient=True)
    gradient = scoring.product_gradient(cotangent, scores, coefficients)
    arrays = scoring.coefficient_gradients(cotangent, gradient, distances, scores, coefficients)
    sums = [np.sum(x) for x in arrays]

    def differentiate(error):
        of_log_height = (1 + error) * (gradient * products).sum()
        combined = scoring.combine_gradients([*sums, of_log_height], jnp.stack(coefficients))
        of_shift, of_height = combined[1:3]
        return np.exp(v) * of_height - of_shift

    f, nearest = (1 / (1 + np.exp(v - slope * np.asarray(x, float))) for x in (distance, 0))
    terms = np.asarray(gradient * products, float) * (f - nearest)
    np.testing.assert_allclose(differentiate(0.0), terms.sum(), rtol=2e-3)
    assert abs(differentiate(0.01) - differentiate(0.0)) < 0.05 * abs(terms.sum())


@pytest.mark.parametrize("is_additive", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_beyond_the_radius_scores_and_slope_derivatives_are_within_the_tolerance(name, is_additive):
    function, slope_and_shift, f = HEADS[name]
    T, S, tolerance = 130, 70, 2.0**-10
    generator = np.random.default_rng(0)
    query, key = generator.normal(size=(1, T, 1, 16)), generator.normal(size=(1, S, 1, 16))
    far = f(T + S, *slope_and_shift)
    operands = make_operands(query, key, [*slope_and_shift, HEIGHT, far, 0.0])
    scoring = DistanceScoring(0.25, function, is_additive)
    radius, skips = evaluate(lambda operands: scoring.find_radius(operands, tolerance), operands)

    distance, step = np.arange(T + S), 1e-6
    largest = HEIGHT / LOG2E
    if not is_additive:
        largest *= largest_norm(query) * largest_norm(key)
    error = largest * np.abs(f(distance, *slope_and_shift) - far)
    slope, shift = slope_and_shift
    difference = f(distance, slope + step, shift) - f(distance, slope - step, shift)
    slope_derivative = largest * np.abs(difference) / (2 * step)
    reached = min(int(radius[0, 0]), T + S)
    # The factors 1.25 and 0.75 allow for the finite difference and for float32.
    assert (np.maximum(error, slope_derivative)[reached:] <= tolerance * 1.25).all()
    needed = np.maximum(error * np.maximum(distance, 1), slope_derivative)
    assert needed[reached - 1] >= tolerance * 0.75, "the radius is no larger than necessary"
    assert skips[0, 0] == (not is_additive and largest * abs(far) <= tolerance)
    saturates = name not in ("linear", "falling linear", "falling clipped", "constant sigmoid")
    assert saturates == (radius[0, 0] < T + S)
    assert saturates or radius[0, 0] == UNBOUNDED, "offsets allow distances above T + S"


@pytest.mark.parametrize("name", ["sigmoid", "falling sigmoid", "falling exponential"])
def test_with_tolerance_0_nothing_changes_in_float32(name):
    function, slope_and_shift, f = HEADS[name]
    length = 1024
    with np.errstate(over="ignore"):
        far = f(2 * length, *slope_and_shift)
    query = np.random.default_rng(0).normal(size=(1, length, 1, 16))
    operands = make_operands(query, query, [*slope_and_shift, HEIGHT, far, 0.0])
    scoring = DistanceScoring(0.25, function, is_additive=False)
    radius = int(scoring.find_radius(operands, 0.0)[0][0, 0])
    assert 0 < radius < length

    distances = Distances(lambda: jnp.arange(2.0 * length))
    coefficients = unstack_coefficients(operands.coefficients[0, 0])
    value = function.evaluate(distances, coefficients)
    cotangent = FunctionCotangent(lambda: jnp.ones_like(value), lambda: value)
    of_slope, _ = function.gradients(cotangent, distances, value, coefficients)
    is_constant = (value == coefficients.far) & (of_slope == 0)
    assert is_constant[radius:].all()
    assert not is_constant[radius - 1], "the radius is no larger than necessary"


def test_far_weights_that_contain_the_derivative_give_the_gradient_of_the_products():
    scoring = DistanceScoring(0.25, SIGMOID, is_additive=False)
    coefficients = make_coefficients(0.5, 1.0, far=0.75)
    products = jnp.asarray([-2.0, 0.0, 0.5, 3.0])
    plain = scoring.score(products, None, coefficients, for_gradient=True)
    folded = scoring.score_derivatives(products, None, coefficients)
    multiplier = scoring.score_multiplier(coefficients, is_far=True)
    expected = scoring.product_gradient(jnp.exp2(plain.scores * multiplier), plain, coefficients)
    weights = jnp.exp2(folded.scores * multiplier + folded.log_derivative)
    actual = scoring.product_gradient(weights, folded, coefficients)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    linear = DistanceScoring(0.25, LINEAR, is_additive=False)
    assert linear.score_derivatives(products, None, coefficients) is None, "f may be negative"


def test_each_head_has_its_own_radius_and_nan_is_never_far():
    query = np.ones((1, 50, 3, 16))
    query[:, :, 1] = 0
    coefficients = [[-0.5, -0.5, np.nan], [0.3] * 3, [1.0] * 3, [0.0] * 3, [0.0] * 3]
    operands = make_operands(query, query[:, :40], coefficients)
    scoring = DistanceScoring(0.25, SIGMOID, is_additive=False)
    radius, skips = scoring.find_radius(operands, 2.0**-10)
    assert 10 < radius[0, 0] < 40
    assert radius[0, 1] <= 1, "scores of zero have no error"
    assert radius[0, 2] == UNBOUNDED
    assert skips[0, :2].all()


@pytest.mark.parametrize("is_rectified", [False, True])
@pytest.mark.parametrize(("has_factor", "has_bias"), [(True, False), (False, True), (True, True)])
def test_gradients_of_scores_with_tables_are_derivatives(has_factor, has_bias, is_rectified):
    scale, scoring = 0.25, TableScoring(0.25, has_factor, has_bias, is_rectified)
    numbers = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    names = ("products", "factor_table", "bias_table")
    arrays = dict(zip(names, jnp.asarray(numbers), strict=True))

    def natural_score(products, factor_table, bias_table):
        products = jnp.maximum(products, 0) if is_rectified else products
        factor = factor_table / LOG2E if has_factor else scale
        return products * factor + (bias_table / LOG2E if has_bias else 0)

    expected, pull_back = jax.vjp(lambda x: natural_score(**x), arrays)
    cotangent = jnp.cos(jnp.arange(5.0))
    (gradients,) = pull_back(cotangent)
    multiplier = scoring.gradient_multiplier(None)
    for for_gradient in (False, True):
        found = scoring.score(
            arrays["products"], arrays.__getitem__, None, for_gradient=for_gradient
        )
        np.testing.assert_allclose(found.scores / LOG2E, expected, rtol=1e-6)
    tables = scoring.table_gradients(cotangent, found)
    assert tuple(tables) == scoring.table_names
    tables["products"] = scoring.product_gradient(cotangent, found, None)
    for name, gradient in tables.items():
        np.testing.assert_allclose(gradient * multiplier, gradients[name], rtol=1e-6)


def test_a_head_skips_distances_at_which_the_bound_of_its_table_is_small():
    """The bound is that of i - j from -40 to 50, and the first query has the position 7."""
    query = np.ones((1, 50, 3, 16))
    distance = np.abs(np.arange(-40, 51) + 7)
    small, large = np.full(91, 2.0**-15), np.full(91, 2.0**-9)
    f = np.stack([np.where(distance < 20, 1, small), np.where(distance < 20, 1, large), small])
    derivative = np.stack([np.where(distance < 30, 1, small), small, small])
    operands = make_operands(query, query[:, :40], [[0.0] * 3])._replace(
        factor_bound=jnp.asarray(np.maximum(f, derivative)[None], jnp.float32),
        offset=jnp.asarray([7]),
    )
    radius, skips = find_table_radius(operands, 2.0**-10)
    assert skips.tolist() == [[True, False, True]]
    assert radius.tolist() == [[[30, 30], [UNBOUNDED, UNBOUNDED], [0, 0]]]


def make_operands(query, key, coefficients) -> Operands:
    """Operands for `find_radius`; each coefficient is one number, or one number per head."""
    query, key = jnp.asarray(query, jnp.bfloat16), jnp.asarray(key, jnp.bfloat16)
    rows = [np.atleast_1d(coefficient) for coefficient in coefficients]
    coefficients = jnp.asarray(np.stack(rows, axis=-1)[None], jnp.float32)
    lengths = jnp.zeros(1, jnp.int32)
    return Operands(query, key, key, coefficients, lengths, lengths, lengths)


def largest_norm(x) -> float:
    rounded = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)
    return float(np.linalg.norm(rounded, axis=-1).max())


def test_sums_of_skipped_rows_equal_a_loop():
    generator = np.random.default_rng(0)
    B, L, N, W, columns = 3, 21, 2, 4, 8
    rows = generator.normal(size=(B, L, N, W)).astype(np.float32)
    starts, ends = np.sort(generator.integers(0, 4, (2, B, N, 5)), axis=0)
    schedule = TileSchedule((), jnp.zeros((B, N, 5, 0, 2)), jnp.asarray(starts), jnp.asarray(ends))
    skips = np.asarray([[True, False], [True, True], [False, True]])
    for before, after in ((True, True), (True, False), (False, True)):
        sums = sum_skipped_rows(
            jnp.asarray(rows), schedule, jnp.asarray(skips), columns, before=before, after=after
        )
        for b, n, block in np.ndindex(B, N, 5):
            first, last = starts[b, n, block] * columns, ends[b, n, block] * columns
            expected = before * rows[b, :first, n].sum(0) + after * rows[b, last:, n].sum(0)
            expected *= skips[b, n]
            np.testing.assert_allclose(sums[b, n, block], expected, rtol=1e-4, atol=1e-5)


def find_small_scores(query: jax.Array, key: jax.Array):
    """Return the result of the library for the dot product with scale 1."""
    lengths = jnp.zeros(1, jnp.int32)
    operands = Operands(query, key, key, jnp.zeros((1, 2, 0)), lengths, lengths, lengths)
    plan = Plan(DotProductScoring(1.0), Window(), received=False, logsumexp=False, tolerance=None)
    return small_scores.find_small_scores(plan, operands)


@pytest.mark.parametrize(("factor", "is_small"), [(0.99, True), (1.01, False), (np.nan, False)])
def test_norms_bound_the_scores(factor, is_small):
    """The largest score of the first head is `factor` times the limit, that of the second is 0."""
    key = jnp.zeros((1, small_scores.MIN_LENGTH, 2, 4)).at[0, 5, 0, 0].set(8.0)
    largest = small_scores.LIMIT * np.log(2) / 8
    query = jnp.zeros_like(key).at[0, 7, 0].set(factor * largest / 2)  # four equal numbers
    found = find_small_scores(query.astype(jnp.bfloat16), key.astype(jnp.bfloat16))
    np.testing.assert_array_equal(found, [[is_small, True]])


@pytest.mark.parametrize(("dtype", "shorter"), [("float16", 0), ("float32", 0), ("bfloat16", 1)])
def test_other_dtypes_and_short_sequences_have_no_bound(dtype, shorter):
    x = jnp.zeros((1, small_scores.MIN_LENGTH - shorter, 2, 4), dtype)
    assert find_small_scores(x, x) is None


@pytest.mark.parametrize(
    "variant", [DotProduct(), DistanceAware(jnp.asarray([-0.5, 0.5]), jnp.asarray([1.0, -0.5]))]
)
def test_only_heads_with_large_scores_need_a_maximum(variant, monkeypatch):
    """One head has scores around 150, the other one has scores around 1."""
    monkeypatch.setattr(small_scores, "MIN_LENGTH", 1)
    monkeypatch.setattr("distattn_jax.attention.fused.gpu.tile_configs.MIN_LONG_LENGTH", 1)
    sizes = Sizes(batch=1, queries=192, keys=256, heads=2, width=16, value_width=16)
    query, key, value = inputs(sizes, "bfloat16")
    query = query * jnp.asarray([1, 150], query.dtype)[None, None, :, None]
    exact = [x.astype(jnp.float32) for x in (query, key, value)]

    def compute(implementation, *arrays):
        attend = functools.partial(attention, implementation=implementation, logsumexp=True)
        return evaluate(attend, *arrays, variant)

    expected = compute("reference", *exact)
    with interpreted():
        fused = compute("pallas", query, key, value)
    assert fused.logsumexp[0, 1].max() > 300
    for actual, desired in ((fused.values, expected.values), (fused.logsumexp, expected.logsumexp)):
        error = jnp.abs(actual.astype(jnp.float32) - desired).max() / jnp.abs(desired).max()
        assert error <= TOLERANCE["bfloat16"]
