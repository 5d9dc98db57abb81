"""The squared error of maps: by hand, by loops, its gradients, and what must not count."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

from distattn_jax.guiding import Target, following, pattern_loss, shared, target
from tests.guiding import oracles
from tests.guiding.drawn import CLOSE, attended, draw
from tests.unchecked import as_users_have_it

B, L, N, T = 4, 2, 3, 5
LENGTHS = jnp.array([5, 3, 1, 0])
TOKENS = jnp.ones((B, T), jnp.int32)

compiled_loss = jax.jit(pattern_loss, static_argnames=("layers", "heads"))


def drawn_weights():
    return jax.nn.softmax(draw(0, B, L, N, T, T))


def drawn_target():
    """Some rows have none, though their weights are not zero."""
    return Target(draw(2, B, T) > -0.5, jax.nn.softmax(draw(1, B, T, T)))


def gradient_of(weights, target, **arguments):
    gradient = jax.grad(lambda x: pattern_loss(x, target, LENGTHS, **arguments).sum())
    return np.asarray(jax.jit(gradient)(weights))


def test_one_map_by_hand():
    weights = jnp.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]])[None, None, None]
    wanted = following(jnp.ones((1, 3), jnp.int32), jnp.array([3]))
    # Rows 0 and 1 have a target, (0, 1, 0) and (0, 0, 1); the last has none.
    loss = ((0.5**2 + 0.5**2) + (0.2**2 + 0.2**2 + 0.4**2)) / 2
    assert compiled_loss(weights, wanted, jnp.array([3]))[0] == pytest.approx(loss)


@pytest.mark.parametrize(
    ("layers", "heads"), [(None, None), (None, (2,)), ((1,), (0, -1)), ((1, 0), (0, 1, 2))]
)
def test_equation(layers, heads):
    weights, wanted = drawn_weights(), drawn_target()
    found = compiled_loss(weights, wanted, LENGTHS, layers=layers, heads=heads)
    oracle = oracles.pattern_loss(
        weights, wanted.rows, wanted.weights, LENGTHS, layers or (0, 1), heads or (0, 1)
    )
    np.testing.assert_allclose(found, oracle, **CLOSE)
    assert found[-1] == 0


@pytest.mark.parametrize(("count", "half"), [(1, 1), (3, 2), (4, 2)])
def test_the_first_half_of_the_heads_is_guided(count, half):
    weights = jnp.concatenate([drawn_weights(), drawn_weights()], axis=2)[:, :, :count]
    gradient = np.abs(gradient_of(weights, following(TOKENS, LENGTHS)))
    is_guided = gradient[0].max(axis=(0, 2, 3)) > 0
    assert is_guided.tolist() == [head < half for head in range(count)]


def test_a_target_that_is_reached_costs_nothing():
    wanted = following(TOKENS, LENGTHS)
    weights = jnp.broadcast_to(wanted.weights[:, None, None], (B, L, N, T, T))
    assert np.all(compiled_loss(weights, wanted, LENGTHS) == 0)
    missed = jnp.roll(weights, 1, axis=-1)
    assert compiled_loss(missed, wanted, LENGTHS)[0] == 2


def test_rows_without_a_target_and_padding_get_no_gradient():
    wanted = drawn_target()
    valid = np.arange(T)[None, :] < np.asarray(LENGTHS)[:, None]
    counts = (np.asarray(wanted.rows) & valid)[:, :, None] & valid[:, None, :]
    counts = np.broadcast_to(counts[:, None, None], (B, L, N, T, T))
    spoilt = jnp.where(counts, drawn_weights(), jnp.nan)
    chex.assert_trees_all_equal(
        compiled_loss(spoilt, wanted, LENGTHS), compiled_loss(drawn_weights(), wanted, LENGTHS)
    )
    gradient = gradient_of(spoilt, wanted, heads=range(N))
    assert np.array_equal(gradient != 0, counts)


def test_an_example_without_any_target_gives_nothing():
    wanted = drawn_target()._replace(rows=jnp.zeros((B, T), bool))
    assert np.all(compiled_loss(drawn_weights(), wanted, LENGTHS) == 0)
    assert np.all(gradient_of(drawn_weights(), wanted) == 0)


def test_gradients_are_those_of_the_function():
    check_grads(
        jax.jit(lambda x: pattern_loss(x, drawn_target(), LENGTHS)),
        (drawn_weights(),),
        1,
        rtol=2e-2,
        atol=2e-2,
    )


def test_sixteen_bits_are_widened_first():
    narrow = drawn_weights().astype(jnp.bfloat16)
    found = compiled_loss(narrow, drawn_target(), LENGTHS)
    assert found.dtype == jnp.float32
    wide = compiled_loss(narrow.astype(jnp.float32), drawn_target(), LENGTHS)
    chex.assert_trees_all_equal(found, wide)


def test_attention_follows_its_guide():
    query, key = draw(3, L, B, T, N, 4), draw(4, L, B, T, N, 4)
    wanted = following(TOKENS, LENGTHS)

    @jax.jit
    def step(query):
        def total(query):
            weights = attended(query, key, LENGTHS).weights
            return pattern_loss(weights, wanted, LENGTHS, heads=(1,)).sum()

        loss, gradient = jax.value_and_grad(total)(query)
        return loss, query - 5 * gradient, gradient

    losses = []
    for _ in range(10):
        loss, query, gradient = step(query)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2
    assert np.all(gradient[:, :, :, 0::2] == 0)
    assert np.all(np.isfinite(gradient))


def test_strengths_share_a_row():
    strengths = jnp.array([[[1.0, 3.0, 4.0], [0.0, 0.0, 5.0], [1.0, 1.0, 1.0]]])
    found = shared(strengths, jnp.array([2]))
    assert found.rows.tolist() == [[True, False, False]]
    assert found.weights.tolist() == [[[0.25, 0.75, 0], [0, 0, 0], [0, 0, 0]]]


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_heads_may_be_spread_over_devices(kind):
    weights = jnp.concatenate([drawn_weights(), drawn_weights()], axis=2)[:, :, :4]

    @jax.jit
    def gradient(weights, wanted, lengths):
        def total(weights):
            return pattern_loss(weights, wanted, lengths, layers=(1,), heads=(0, 3)).sum()

        return jax.value_and_grad(total)(weights)

    alone = gradient(weights, drawn_target(), LENGTHS)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        examples = NamedSharding(mesh, PartitionSpec("data"))
        heads = NamedSharding(mesh, PartitionSpec("data", None, "model", None, None))
        placed = jax.device_put(weights, heads)
        together = gradient(placed, *jax.device_put((drawn_target(), LENGTHS), examples))
    assert len(together[1].sharding.device_set) == 8
    chex.assert_trees_all_close(jax.device_get(together), alone, **CLOSE)


def test_wrong_use_is_named():
    arguments = (drawn_weights(), drawn_target(), LENGTHS)
    with pytest.raises(ValueError, match=r"heads must lie from -3 to 2; got \[3\]"):
        pattern_loss(*arguments, heads=(3,))
    with pytest.raises(ValueError, match=r"layers must lie from -2 to 1; got \[2\]"):
        pattern_loss(*arguments, layers=(2,))
    with pytest.raises(ValueError, match="heads must name at least one; got none"):
        pattern_loss(*arguments, heads=())


def test_wrong_shapes_are_named():
    loss = as_users_have_it(target).pattern_loss
    weights, wanted = drawn_weights(), drawn_target()
    with pytest.raises(ValueError, match=r"weights .* \(B L N T S\), .* got \(4, 3, 5, 5\)"):
        loss(weights[:, 0], wanted, LENGTHS)
    with pytest.raises(ValueError, match=r"target.rows .* here \(4, 5\); got \(4, 3\)"):
        loss(weights, wanted._replace(rows=wanted.rows[:, :3]), LENGTHS)
    with pytest.raises(ValueError, match=r"target.weights .* here \(4, 5, 5\); got \(4, 5, 3\)"):
        loss(weights, wanted._replace(weights=wanted.weights[:, :, :3]), LENGTHS)
    with pytest.raises(ValueError, match=r"lengths .* here \(4\); got \(3,\)"):
        loss(weights, wanted, LENGTHS[:3])
    with pytest.raises(ValueError, match=r"lengths .* here \(4\); got \(1,\)"):
        as_users_have_it(target).shared(wanted.weights, LENGTHS[:1])
