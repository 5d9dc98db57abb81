"""MDG and PDG: the printed equations, their gradients, and what must not count."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

from distattn_jax.guiding import map_discrimination, pattern_decorrelation, received
from tests.guiding import oracles
from tests.guiding.drawn import CLOSE, attended, draw
from tests.unchecked import as_users_have_it

STATIC = ("layers", "scaling")
compiled_discrimination = jax.jit(map_discrimination, static_argnames=STATIC)
compiled_decorrelation = jax.jit(pattern_decorrelation, static_argnames=STATIC)
B, L, N, S = 4, 3, 2, 5
LENGTHS = jnp.array([5, 3, 1, 0])

both = pytest.mark.parametrize(
    "loss", [compiled_discrimination, compiled_decorrelation], ids=["mdg", "pdg"]
)


def drawn_received(seed=0):
    return jnp.square(draw(seed, B, L, N, S))


def one_example(*maps):
    """Maps of one example, as heads of one layer, and the example's length."""
    return jnp.array([[maps]], jnp.float32), jnp.array([len(maps[0])])


def total_gradient(loss, lengths=LENGTHS, **arguments):
    gradient = jax.jit(jax.grad(lambda x: loss(x, lengths, **arguments).sum()))
    return lambda maps: np.asarray(gradient(maps))


def test_two_maps_by_hand():
    maps, lengths = one_example([3, 4], [4, 3])  # cosine 24/25
    apart = np.log(1 + np.exp(0.96 - 1))
    arguments = {"scaling": "sum"}
    assert compiled_discrimination(maps, lengths, **arguments)[0] == pytest.approx(2 * apart)
    assert compiled_discrimination(maps, lengths)[0] == pytest.approx(apart)
    warmer = np.log(1 + np.exp((0.96 - 1) / 2))
    assert compiled_discrimination(maps, lengths, temperature=2.0)[0] == pytest.approx(warmer)
    # MᵀM = [[1, 24/25], [24/25, 1]]
    assert compiled_decorrelation(maps, lengths, **arguments)[0] == pytest.approx(2 * 0.96**2)
    assert compiled_decorrelation(maps, lengths)[0] == pytest.approx(0.96**2)


def test_maps_without_overlap_by_hand():
    maps, lengths = one_example([2, 0, 0], [0, 5, 0])
    assert compiled_discrimination(maps, lengths)[0] == pytest.approx(np.log(1 + np.exp(-1)))
    # Nobody attends to the third key: 0 on the diagonal, where 1 is wanted.
    assert compiled_decorrelation(maps, lengths, scaling="sum")[0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("scaling", "layers"), [("mean", None), ("sum", None), ("mean", (2, 0)), ("sum", (-1,))]
)
def test_equations(scaling, layers):
    maps = drawn_received()
    numbers = range(L) if layers is None else layers
    found = compiled_discrimination(maps, LENGTHS, layers=layers, scaling=scaling, temperature=0.5)
    wanted = oracles.map_discrimination(maps, LENGTHS, numbers, scaling, 0.5)
    np.testing.assert_allclose(found, wanted, **CLOSE)
    found = compiled_decorrelation(maps, LENGTHS, layers=layers, scaling=scaling)
    wanted = oracles.pattern_decorrelation(maps, LENGTHS, numbers, scaling)
    np.testing.assert_allclose(found, wanted, **CLOSE)


@both
def test_how_much_a_map_gives_does_not_count(loss):
    maps = drawn_received()
    scale = jnp.exp(draw(1, B, L, N, 1))
    np.testing.assert_allclose(loss(maps * scale, LENGTHS), loss(maps, LENGTHS), **CLOSE)


@both
def test_gradients_are_those_of_the_function(loss):
    lengths = LENGTHS[:3]
    maps = drawn_received()[:3] + 0.5
    check_grads(jax.jit(lambda x: loss(x, lengths)), (maps,), 1, rtol=2e-2, atol=2e-2)


@both
def test_padding_does_not_count_and_gets_no_gradient(loss):
    is_padding = np.arange(S)[None, :] >= np.asarray(LENGTHS)[:, None]
    is_padding = np.broadcast_to(is_padding[:, None, None], (B, L, N, S))
    spoilt = jnp.where(is_padding, jnp.nan, drawn_received())
    chex.assert_trees_all_equal(loss(spoilt, LENGTHS), loss(drawn_received(), LENGTHS))
    gradient = total_gradient(loss)(spoilt)
    assert np.all(np.where(is_padding, gradient == 0, np.isfinite(gradient)))
    assert np.all(np.abs(gradient[:2]).sum(axis=(1, 2, 3)) > 0)


@both
def test_an_empty_example_gives_nothing(loss):
    assert loss(drawn_received(), LENGTHS)[-1] == 0
    assert np.all(total_gradient(loss)(drawn_received())[-1] == 0)


@both
def test_a_map_that_gives_nothing_has_no_gradient(loss):
    maps = drawn_received().at[0, 1, 0].set(0)
    gradient = total_gradient(loss)(maps)
    assert np.all(gradient[0, 1, 0] == 0)
    assert np.all(np.isfinite(gradient))
    assert np.abs(gradient[0, 0]).sum() > 0


@both
def test_layers_not_chosen_get_no_gradient(loss):
    gradient = total_gradient(loss, layers=(0, 2))(drawn_received())
    assert np.all(gradient[:, 1] == 0)
    assert np.all(np.abs(gradient[0, ::2]).sum(axis=(1, 2)) > 0)


@both
def test_sixteen_bits_are_widened_first(loss):
    narrow = drawn_received().astype(jnp.bfloat16)
    found = loss(narrow, LENGTHS)
    assert found.dtype == jnp.float32
    chex.assert_trees_all_equal(found, loss(narrow.astype(jnp.float32), LENGTHS))


@both
def test_examples_are_apart_and_members_too(loss):
    members = jnp.stack([drawn_received(0), drawn_received(1)])
    together = jax.jit(jax.vmap(loss, in_axes=(0, None)))(members, LENGTHS)
    for member, maps in enumerate(members):
        for b in range(B):
            alone = loss(maps[b : b + 1], LENGTHS[b : b + 1])
            np.testing.assert_allclose(together[member, b], alone[0], **CLOSE)


@both
def test_no_matrix_of_keys_by_keys_is_made(loss):
    keys = 37
    maps, lengths = jnp.ones((1, 2, 2, keys)), jnp.array([keys])
    program = jax.make_jaxpr(jax.grad(lambda x: loss(x, lengths).sum()))(maps)
    sizes = [re.findall(r"\d+", shape) for shape in re.findall(r"\[([\d,]+)\]", str(program))]
    assert any(str(keys) in size for size in sizes)
    assert not any(size.count(str(keys)) > 1 for size in sizes)


# What the paper says, and what the code released with it does.


@both
@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_received_attention_has_a_gradient(loss, implementation):
    gradient = _gradient_to_queries(
        lambda out, lengths: loss(out.received, lengths), implementation=implementation
    )
    sizes = np.abs(gradient).max(axis=(0, 2, 3, 4))  # of each example
    assert np.all(sizes[:2] > 1e-4)
    assert np.all(gradient[:, 1, 3:] == 0)  # queries that are padding
    assert sizes[2] == 0  # one token: nothing to choose


@both
def test_the_released_reduction_has_none(loss):
    """It averages over the axis of the softmax: every entry is 1/S, whatever the attention."""
    gradient = _gradient_to_queries(lambda out, lengths: loss(out.weights.mean(axis=-1), lengths))
    assert np.abs(gradient).max() < 1e-6


def test_the_released_reduction_gives_constants():
    maps, lengths = jnp.full((1, 12, 12, 256), 1 / 256), jnp.array([256])
    assert compiled_decorrelation(maps, lengths)[0] == pytest.approx(80.875, rel=1e-5)
    assert compiled_discrimination(maps, lengths)[0] == pytest.approx(np.log(144), rel=1e-5)


def _gradient_to_queries(loss, **arguments):
    query, key, lengths = draw(0, 2, 3, 5, 2, 4), draw(1, 2, 3, 5, 2, 4), jnp.array([5, 3, 1])

    def total(query):
        return loss(attended(query, key, lengths, **arguments), lengths).sum()

    return np.asarray(jax.jit(jax.grad(total))(query))


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_heads_may_be_spread_over_devices(kind):
    @jax.jit
    def gradient(maps, lengths):
        def total(maps):
            arguments = {"layers": (0, 2)}
            return jnp.sum(
                map_discrimination(maps, lengths, **arguments)
                + pattern_decorrelation(maps, lengths, **arguments)
            )

        return jax.value_and_grad(total)(maps)

    alone = gradient(drawn_received(), LENGTHS)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        spec = PartitionSpec("data", None, "model", None)
        maps = jax.device_put(drawn_received(), NamedSharding(mesh, spec))
        lengths = jax.device_put(LENGTHS, NamedSharding(mesh, PartitionSpec("data")))
        together = gradient(maps, lengths)
    assert len(together[1].sharding.device_set) == 8
    chex.assert_trees_all_close(jax.device_get(together), alone, **CLOSE)


@both
def test_wrong_use_is_named(loss):
    call = functools.partial(loss, drawn_received(), LENGTHS)
    with pytest.raises(ValueError, match='scaling must be "mean" or "sum"; got \'max\''):
        call(scaling="max")
    with pytest.raises(ValueError, match=r"layers must lie from -3 to 2; got \[3, -4\]"):
        call(layers=(3, 0, -4))
    with pytest.raises(ValueError, match=r"layers must name each at most once; got \(2, -1\)"):
        call(layers=(2, -1))
    with pytest.raises(ValueError, match="layers must name at least one; got none"):
        call(layers=())


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_a_temperature_is_above_zero(temperature):
    with pytest.raises(ValueError, match=f"temperature must be above 0; got {temperature}"):
        map_discrimination(drawn_received(), LENGTHS, temperature=temperature)


def test_wrong_shapes_are_named():
    plain = as_users_have_it(received)
    for loss in (plain.map_discrimination, plain.pattern_decorrelation):
        with pytest.raises(ValueError, match=r"received .* \(B L N S\), .* got \(4, 2, 5\)"):
            loss(drawn_received()[:, 0], LENGTHS)
        with pytest.raises(ValueError, match=r"lengths .* here \(4\); got \(2,\)"):
            loss(drawn_received(), LENGTHS[:2])
