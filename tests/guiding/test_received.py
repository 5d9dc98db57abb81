"""Losses on received attention: equations, gradients, padding, sharding and errors."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jax.test_util import check_grads

from distattn_jax.guiding import map_discrimination, pattern_decorrelation, received
from tests.guiding import oracles
from tests.guiding.cases import CLOSE, attend, draw
from tests.unchecked import as_users_have_it

STATIC = ("layers", "scaling")
compiled_discrimination = jax.jit(map_discrimination, static_argnames=STATIC)
compiled_decorrelation = jax.jit(pattern_decorrelation, static_argnames=STATIC)
LOSSES = (compiled_discrimination, compiled_decorrelation)
B, L, N, S = 4, 3, 2, 5
LENGTHS = np.array([5, 3, 1, 0])

both = pytest.mark.parametrize("loss", LOSSES, ids=["mdg", "pdg"])


def draw_received(seed=0):
    return np.square(draw(seed, B, L, N, S))


def one_example(*maps):
    """Return maps as received attention of one layer of one example, and the example's length."""
    return np.array([[maps]], np.float32), np.array([len(maps[0])])


@functools.partial(jax.jit, static_argnames="loss")
def total_gradient(maps, loss):
    return jax.grad(lambda maps: loss(maps, jnp.asarray(LENGTHS)).sum())(maps)


def test_two_maps_equal_the_losses_computed_by_hand():
    maps, lengths = one_example([3, 4], [4, 3])  # cosine 24/25
    expected = np.log(1 + np.exp(0.96 - 1))
    found = compiled_discrimination(maps, lengths, scaling="sum")
    assert found[0] == pytest.approx(2 * expected)
    assert compiled_discrimination(maps, lengths)[0] == pytest.approx(expected)
    at_temperature_two = np.log(1 + np.exp((0.96 - 1) / 2))
    found = compiled_discrimination(maps, lengths, temperature=2.0)
    assert found[0] == pytest.approx(at_temperature_two)
    # MᵀM = [[1, 24/25], [24/25, 1]]
    found = compiled_decorrelation(maps, lengths, scaling="sum")
    assert found[0] == pytest.approx(2 * 0.96**2)
    assert compiled_decorrelation(maps, lengths)[0] == pytest.approx(0.96**2)


def test_disjoint_maps_equal_the_losses_computed_by_hand():
    maps, lengths = one_example([2, 0, 0], [0, 5, 0])
    assert compiled_discrimination(maps, lengths)[0] == pytest.approx(np.log(1 + np.exp(-1)))
    # The third key receives nothing: its diagonal entry of MᵀM is 0 instead of 1.
    assert compiled_decorrelation(maps, lengths, scaling="sum")[0] == pytest.approx(1)


@pytest.mark.parametrize(("scaling", "layers"), [("mean", None), ("mean", (2, 0)), ("sum", (-1,))])
def test_losses_equal_the_printed_equations(scaling, layers):
    maps = draw_received()
    indices = range(L) if layers is None else layers
    found = compiled_discrimination(maps, LENGTHS, layers=layers, scaling=scaling, temperature=0.5)
    expected = oracles.map_discrimination(maps, LENGTHS, indices, scaling, 0.5)
    np.testing.assert_allclose(found, expected, **CLOSE)
    found = compiled_decorrelation(maps, LENGTHS, layers=layers, scaling=scaling)
    expected = oracles.pattern_decorrelation(maps, LENGTHS, indices, scaling)
    np.testing.assert_allclose(found, expected, **CLOSE)


@both
def test_gradients_equal_finite_differences(loss):
    maps, lengths = draw_received()[:3] + 0.5, jnp.asarray(LENGTHS[:3])
    check_grads(jax.jit(lambda x: loss(x, lengths)), (maps,), 1, rtol=2e-2, atol=2e-2)


@both
def test_padding_and_empty_examples_do_not_contribute_and_have_zero_gradient(loss):
    is_padding = np.arange(S) >= LENGTHS[:, None, None, None]
    spoiled = np.where(is_padding, np.nan, draw_received())
    found = loss(spoiled, LENGTHS)
    chex.assert_trees_all_equal(found, loss(draw_received(), LENGTHS))
    assert found[-1] == 0
    gradient = np.asarray(total_gradient(spoiled, loss))
    assert np.all(np.where(is_padding, gradient == 0, np.isfinite(gradient)))
    assert np.all(np.abs(gradient[:2]).sum(axis=(1, 2, 3)) > 0)


@both
def test_a_map_of_zeros_has_zero_gradient(loss):
    maps = draw_received()
    maps[0, 1, 0] = 0
    gradient = np.asarray(total_gradient(maps, loss))
    assert np.all(gradient[0, 1, 0] == 0)
    assert np.all(np.isfinite(gradient))
    assert np.abs(gradient[0, 0]).sum() > 0


@both
def test_bfloat16_is_promoted_to_float32(loss):
    narrow = draw_received().astype(jnp.bfloat16)
    found = loss(narrow, LENGTHS)
    assert found.dtype == jnp.float32
    chex.assert_trees_all_equal(found, loss(narrow.astype(jnp.float32), LENGTHS))


@both
def test_members_are_independent(loss):
    members = np.stack([draw_received(0), draw_received(1)])
    together = jax.jit(jax.vmap(loss, in_axes=(0, None)))(members, LENGTHS)
    np.testing.assert_allclose(together, [loss(maps, LENGTHS) for maps in members], **CLOSE)


@both
def test_no_matrix_of_keys_by_keys_is_formed(loss):
    keys = 37
    maps, lengths = jnp.ones((1, 2, 2, keys)), jnp.array([keys])
    program = jax.make_jaxpr(jax.grad(lambda x: loss(x, lengths).sum()))(maps)
    sizes = [re.findall(r"\d+", shape) for shape in re.findall(r"\[([\d,]+)\]", str(program))]
    assert any(str(keys) in size for size in sizes)
    assert not any(size.count(str(keys)) > 1 for size in sizes)


# The equations of the paper against the code that was released with it.


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_received_attention_has_a_nonzero_gradient(implementation):
    gradients = _gradients_to_queries(lambda out: out.received, implementation=implementation)
    sizes = np.abs(gradients).max(axis=(1, 3, 4, 5))  # one for each loss and example
    assert np.all(sizes[:, :2] > 1e-4)
    assert np.all(gradients[:, :, 1, 3:] == 0)  # padding queries
    assert np.all(sizes[:, 2] == 0)  # a single token always attends to itself


def test_the_mean_over_the_softmax_axis_has_no_gradient():
    """The released code averages over the softmax axis, where every mean is 1/S."""
    gradients = _gradients_to_queries(lambda out: out.weights.mean(axis=-1))
    assert np.abs(gradients).max() < 1e-6


def test_the_mean_over_the_softmax_axis_gives_constant_losses():
    maps, lengths = np.full((1, 12, 12, 256), 1 / 256, np.float32), np.array([256])
    assert compiled_decorrelation(maps, lengths)[0] == pytest.approx(80.875, rel=1e-5)
    assert compiled_discrimination(maps, lengths)[0] == pytest.approx(np.log(144), rel=1e-5)


def _gradients_to_queries(find_maps, **arguments):
    """Return the gradient of each loss to the queries of attention."""

    def totals(query, key, lengths):
        maps = find_maps(attend(query, key, lengths, **arguments))
        return jnp.stack([loss(maps, lengths).sum() for loss in LOSSES])

    arrays = (draw(0, 2, 3, 5, 2, 4), draw(1, 2, 3, 5, 2, 4), np.array([5, 3, 1]))
    return np.asarray(jax.jit(jax.jacrev(totals))(*arrays))


@pytest.mark.usefixtures("eight_devices")
def test_sharded_heads_equal_one_device():
    @jax.jit
    def gradient(maps, lengths):
        def total(maps):
            return sum(loss(maps, lengths, layers=(0, 2)) for loss in LOSSES).sum()

        return jax.value_and_grad(total)(maps)

    alone = gradient(draw_received(), LENGTHS)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        spec = PartitionSpec("data", None, "model", None)
        maps = jax.device_put(draw_received(), NamedSharding(mesh, spec))
        lengths = jax.device_put(LENGTHS, NamedSharding(mesh, PartitionSpec("data")))
        together = gradient(maps, lengths)
    assert len(together[1].sharding.device_set) == 8
    chex.assert_trees_all_close(jax.device_get(together), alone, **CLOSE)


@both
def test_errors_name_the_invalid_argument(loss):
    call = functools.partial(loss, draw_received(), LENGTHS)
    with pytest.raises(ValueError, match='scaling must be "mean" or "sum"; got \'max\''):
        call(scaling="max")
    with pytest.raises(ValueError, match=r"layers must lie from -3 to 2; got \[3, -4\]"):
        call(layers=(3, 0, -4))
    with pytest.raises(ValueError, match=r"layers must not repeat a number; got \(2, -1\)"):
        call(layers=(2, -1))
    with pytest.raises(ValueError, match="layers must contain at least one number; got none"):
        call(layers=())


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_the_temperature_must_be_above_zero(temperature):
    with pytest.raises(ValueError, match=f"temperature must be above 0; got {temperature}"):
        map_discrimination(*map(jnp.asarray, (draw_received(), LENGTHS)), temperature=temperature)


def test_errors_name_the_array_with_a_wrong_shape():
    unchecked = as_users_have_it(received)
    for loss in map(jax.jit, (unchecked.map_discrimination, unchecked.pattern_decorrelation)):
        with pytest.raises(ValueError, match=r"received .* \(B L N S\), .* got \(4, 2, 5\)"):
            loss(draw_received()[:, 0], LENGTHS)
        with pytest.raises(ValueError, match=r"lengths .* shape \(4,\); got shape \(2,\)"):
            loss(draw_received(), LENGTHS[:2])
