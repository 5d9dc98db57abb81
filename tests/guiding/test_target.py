"""Squared error of attention weights: equation, gradients, padding, sharding and errors."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.test_util import check_grads

from distattn_jax.guiding import Target, make_target, next_token, pattern_loss
from distattn_jax.guiding import target as target_module
from tests.guiding import oracles
from tests.guiding.cases import CLOSE, attend, draw
from tests.unchecked import as_users_have_it

B, L, N, T = 4, 2, 3, 5
LENGTHS = np.array([5, 3, 1, 0])
TOKENS = np.ones((B, T), np.int32)

compiled_loss = jax.jit(pattern_loss, static_argnames=("layers", "heads"))
find_next_token = jax.jit(next_token)


def draw_softmax(seed, *shape):
    exponentials = np.exp(draw(seed, *shape))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def draw_weights(heads=N):
    return draw_softmax(0, B, L, heads, T, T)


def draw_target():
    """Draw a target in which some queries have no target although their weights are not 0."""
    return Target(draw(2, B, T) > -0.5, draw_softmax(1, B, T, T))


@functools.partial(jax.jit, static_argnames=("layers", "heads"))
def differentiate(weights, target, lengths, **arguments):
    def total(weights):
        losses = pattern_loss(weights, target, lengths, **arguments)
        return losses.sum(), losses

    (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(weights)
    return losses, gradient


def test_one_map_equals_the_loss_computed_by_hand():
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]])[None, None, None]
    target = find_next_token(np.ones((1, 3), int), np.array([3]))
    # Queries 0 and 1 have the targets (0, 1, 0) and (0, 0, 1), query 2 has none.
    loss = ((0.5**2 + 0.5**2) + (0.2**2 + 0.2**2 + 0.4**2)) / 2
    assert compiled_loss(weights, target, np.array([3]))[0] == pytest.approx(loss)


@pytest.mark.parametrize(("layers", "heads"), [(None, None), ((1,), (0, -1)), ((1, 0), (0, 1, 2))])
def test_the_loss_equals_the_printed_equation(layers, heads):
    weights, target = draw_weights(), draw_target()
    found = compiled_loss(weights, target, LENGTHS, layers=layers, heads=heads)
    expected = oracles.pattern_loss(
        weights, target.rows, target.weights, LENGTHS, layers or (0, 1), heads or (0, 1)
    )
    np.testing.assert_allclose(found, expected, **CLOSE)
    assert found[-1] == 0


@pytest.mark.parametrize(("count", "half"), [(1, 1), (3, 2), (4, 2)])
def test_by_default_the_first_half_of_the_heads_contributes(count, half):
    target = find_next_token(TOKENS, LENGTHS)
    _, gradient = differentiate(draw_weights(count), target, LENGTHS)
    contributes = np.abs(gradient[0]).max(axis=(0, 2, 3)) > 0
    assert contributes.tolist() == [head < half for head in range(count)]


def test_the_loss_is_zero_at_the_target_and_two_at_disjoint_weights():
    target = find_next_token(TOKENS, LENGTHS)
    weights = np.broadcast_to(target.weights[:, None, None], (B, L, N, T, T))
    assert np.all(compiled_loss(weights, target, LENGTHS) == 0)
    disjoint = np.roll(weights, 1, axis=-1)
    assert compiled_loss(disjoint, target, LENGTHS)[0] == 2


def test_queries_without_a_target_and_padding_have_zero_gradient():
    target = draw_target()
    valid = np.arange(T)[None, :] < LENGTHS[:, None]
    counts = (target.rows & valid)[:, :, None] & valid[:, None, :]
    counts = np.broadcast_to(counts[:, None, None], (B, L, N, T, T))
    spoiled = np.where(counts, draw_weights(), np.nan)
    expected, _ = differentiate(draw_weights(), target, LENGTHS, heads=tuple(range(N)))
    losses, gradient = differentiate(spoiled, target, LENGTHS, heads=tuple(range(N)))
    chex.assert_trees_all_equal(losses, expected)
    assert np.array_equal(gradient != 0, counts)


def test_an_example_without_targets_has_zero_loss_and_gradient():
    target = draw_target()._replace(rows=np.zeros((B, T), bool))
    assert not any(np.any(array) for array in differentiate(draw_weights(), target, LENGTHS))


def test_gradients_equal_finite_differences():
    def loss(weights):
        return compiled_loss(weights, draw_target(), LENGTHS)

    check_grads(loss, (draw_weights(),), 1, rtol=2e-2, atol=2e-2)


def test_bfloat16_is_promoted_to_float32():
    narrow = draw_weights().astype(jnp.bfloat16)
    found = compiled_loss(narrow, draw_target(), LENGTHS)
    assert found.dtype == jnp.float32
    promoted = compiled_loss(narrow.astype(jnp.float32), draw_target(), LENGTHS)
    chex.assert_trees_all_equal(found, promoted)


def test_gradient_descent_moves_attention_towards_the_target():
    query, key = draw(3, L, B, T, N, 4), draw(4, L, B, T, N, 4)
    target = find_next_token(TOKENS, LENGTHS)

    @jax.jit
    def step(query, key, lengths):
        def total(query):
            weights = attend(query, key, lengths).weights
            return pattern_loss(weights, target, lengths, heads=(1,)).sum()

        loss, gradient = jax.value_and_grad(total)(query)
        return loss, query - 5 * gradient, gradient

    losses = []
    for _ in range(10):
        loss, query, gradient = step(query, key, LENGTHS)
        losses.append(float(loss))
    assert losses[-1] < losses[0] / 2
    assert np.all(gradient[:, :, :, 0::2] == 0)
    assert np.all(np.isfinite(gradient))


def test_scores_are_normalized_over_the_valid_keys():
    scores = jnp.array([[[1.0, 3.0, 4.0], [0.0, 0.0, 5.0], [1.0, 1.0, 1.0]]])
    found = make_target(scores, jnp.array([2]))
    assert found.rows.tolist() == [[True, False, False]]
    assert found.weights.tolist() == [[[0.25, 0.75, 0], [0, 0, 0], [0, 0, 0]]]


@pytest.mark.usefixtures("eight_devices")
def test_sharded_heads_equal_one_device():
    weights, selected = draw_weights(heads=4), {"layers": (1,), "heads": (0, 3)}
    alone = differentiate(weights, draw_target(), LENGTHS, **selected)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        placed = jax.device_put(weights, NamedSharding(mesh, jax.P("data", None, "model")))
        examples = NamedSharding(mesh, jax.P("data"))
        rest = jax.device_put((draw_target(), LENGTHS), examples)
        together = differentiate(placed, *rest, **selected)
    assert len(together[1].sharding.device_set) == 8
    chex.assert_trees_all_close(jax.device_get(together), alone, **CLOSE)


def test_errors_name_the_invalid_argument():
    arguments = (draw_weights(), draw_target(), LENGTHS)
    with pytest.raises(ValueError, match=r"heads must lie from -3 to 2; got \[3\]"):
        compiled_loss(*arguments, heads=(3,))
    with pytest.raises(ValueError, match=r"layers must lie from -2 to 1; got \[2\]"):
        compiled_loss(*arguments, layers=(2,))
    with pytest.raises(ValueError, match="heads must contain at least one number; got none"):
        compiled_loss(*arguments, heads=())


def test_errors_name_the_array_with_a_wrong_shape():
    unchecked = as_users_have_it(target_module)
    loss = jax.jit(unchecked.pattern_loss)
    weights, target = draw_weights(), draw_target()
    with pytest.raises(ValueError, match=r"weights .* \(B L N T S\), .* got \(4, 3, 5, 5\)"):
        loss(weights[:, 0], target, LENGTHS)
    with pytest.raises(ValueError, match=r"target.rows .* here \(4, 5\); got \(4, 3\)"):
        loss(weights, target._replace(rows=target.rows[:, :3]), LENGTHS)
    with pytest.raises(ValueError, match=r"target.weights .* here \(4, 5, 5\); got \(4, 5, 3\)"):
        loss(weights, target._replace(weights=target.weights[:, :, :3]), LENGTHS)
    with pytest.raises(ValueError, match=r"lengths .* shape \(4,\); got shape \(3,\)"):
        loss(weights, target, LENGTHS[:3])
    with pytest.raises(ValueError, match=r"lengths .* shape \(4,\); got shape \(1,\)"):
        jax.jit(unchecked.make_target)(target.weights, LENGTHS[:1])
