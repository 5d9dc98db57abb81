"""Learning rates computed by hand, Adam and AdamW as in optax, and multipliers by path."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from distattn_jax.train import OptimizerConfig
from distattn_jax.train.optimizer import make_optimizer, make_schedule, scale_by_learning_rate
from tests.train import tiny


def first_direction(params, gradient, **config):
    """Return the direction of the first step."""
    optimizer = make_optimizer(OptimizerConfig(**config))
    return jax.jit(optimizer.update)(gradient, optimizer.init(params), params)[0]


@pytest.mark.parametrize(
    ("schedule", "warmup", "fractions"),
    [
        ("constant", 0, {0: 1, 9: 1}),
        ("constant", 4, {0: 1 / 4, 1: 2 / 4, 2: 3 / 4, 3: 1, 4: 1, 9: 1}),
        ("constant", 1, {0: 1, 1: 1, 2: 1}),
        ("linear", 0, {0: 1, 5: 1 / 2, 9: 1 / 10, 10: 0, 11: 0}),
        ("linear", 2, {0: 1 / 2, 1: 1, 2: 1, 6: 1 / 2, 10: 0}),
        ("linear", 1, {0: 1, 1: 1, 4: 2 / 3, 10: 0}),
        ("linear", 10, {i: (i + 1) / 10 for i in range(10)}),  # as long as the run
        ("cosine", 0, {0: 1, 5: 1 / 2, 10: 0}),
        ("cosine", 2, {0: 1 / 2, 2: 1, 4: (1 + np.sqrt(0.5)) / 2, 6: 1 / 2, 10: 0, 11: 0}),
        ("inverse_square_root", 4, {0: 1 / 4, 3: 1, 4: 1, 16: 1 / 2, 36: 1 / 3}),
        ("inverse_square_root", 0, {0: 1, 3: 1 / 2, 8: 1 / 3}),
    ],
)
def test_the_fraction_of_the_peak_learning_rate_by_hand(schedule, warmup, fractions):
    config = OptimizerConfig(schedule=schedule, warmup_steps=warmup)
    actual = jax.jit(jax.vmap(make_schedule(config, 10)))(jnp.asarray(list(fractions)))
    np.testing.assert_allclose(actual, list(fractions.values()), rtol=1e-6, atol=1e-7)
    assert actual.dtype == jnp.float32


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            OptimizerConfig(b1=0.8, b2=0.99, epsilon=1e-3, clip_norm=2.0),
            optax.chain(optax.clip_by_global_norm(2.0), optax.adam(0.1, 0.8, 0.99, 1e-3)),
        ),
        (
            OptimizerConfig(weight_decay=0.3),
            optax.adamw(0.1, weight_decay=0.3, mask={"kernel": True, "bias": False}),
        ),
    ],
    ids=["adam", "adamw"],
)
def test_several_steps_at_a_constant_rate_equal_those_of_optax(config, expected):
    ours, setting = make_optimizer(config), {"learning_rate": jnp.float32(0.1)}

    @jax.jit
    def step(params, states, gradient):
        direction, our_state = ours.update(gradient, states[0], params[0])
        updates, expected_state = expected.update(gradient, states[1], params[1])
        ours_scaled = scale_by_learning_rate(direction, tiny.make_task(), setting, jnp.float32(1))
        return optax.apply_updates(params, (ours_scaled, updates)), (our_state, expected_state)

    draw = np.random.default_rng(0)
    first = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
    params, states = (first, first), (ours.init(first), expected.init(first))
    for _ in range(5):
        gradient = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape)), first)
        params, states = step(params, states, gradient)
    for name in first:
        np.testing.assert_allclose(params[0][name], params[1][name], rtol=1e-6)
        assert (jnp.abs(params[0][name] - 1) > 1e-3).all()


def test_a_gradient_longer_than_clip_norm_is_shortened_to_it():
    # The first direction of Adam is g / (|g| + epsilon).
    arguments = {"epsilon": 1.0, "params": {"a": jnp.zeros(1), "b": jnp.zeros(1)}}
    gradient = {"a": jnp.asarray([3.0]), "b": jnp.asarray([4.0])}
    cases = {0.0: (3 / 4, 4 / 5), 6.0: (3 / 4, 4 / 5), 1.0: (0.6 / 1.6, 0.8 / 1.8)}
    for clip_norm, expected in cases.items():
        actual = first_direction(gradient=gradient, clip_norm=clip_norm, **arguments)
        np.testing.assert_allclose([*actual["a"], *actual["b"]], expected, rtol=1e-5)


def test_weight_decay_excludes_norms_and_biases_also_the_biases_of_heads():
    params = {
        "attention": {
            "query": {"kernel": jnp.full((4, 2, 3), 2.0), "bias": jnp.ones((2, 3))},
            "variant": {"weight": jnp.ones(2), "content_bias": jnp.ones((2, 3))},
        },
        "norm": {"scale": jnp.ones(4), "bias": jnp.ones(4)},
        "embedding": {"embedding": jnp.full((5, 4), -3.0)},
    }
    still = jax.tree.map(jnp.zeros_like, params)
    actual = first_direction(params, still, weight_decay=0.5)
    np.testing.assert_allclose(actual["attention"]["query"].pop("kernel"), 1)
    np.testing.assert_allclose(actual["embedding"].pop("embedding"), -1.5)
    assert len(jax.tree.leaves(actual)) == 5
    assert not any(leaf.any() for leaf in jax.tree.leaves(actual))


def test_the_update_is_the_direction_times_learning_rate_schedule_and_multiplier_of_the_path():
    def multiplier(path, setting):
        assert path in {("layers", "0", "kernel"), ("layers", "0", "bias"), ("out",)}
        return setting["factor"] if path[-1] == "bias" else 1.0

    task = tiny.make_task()
    task.learning_rate_multiplier = multiplier
    direction = {"layers": [{"kernel": jnp.ones(2), "bias": jnp.ones(2)}], "out": jnp.full(2, 3.0)}
    setting = {"learning_rate": jnp.float32(0.5), "factor": jnp.float32(8)}
    updates = scale_by_learning_rate(direction, task, setting, jnp.float32(0.25))
    np.testing.assert_array_equal(updates["layers"][0]["kernel"], [-0.125] * 2)
    np.testing.assert_array_equal(updates["layers"][0]["bias"], [-1] * 2)
    np.testing.assert_array_equal(updates["out"], [-0.375] * 2)


def test_only_w_and_v_of_distance_aware_heads_have_a_learning_rate_of_their_own():
    ones = jnp.ones(2)
    variant = {"weight": ones, "shape": ones, "keys": ones}
    with_several_shapes = {"weight": ones, "shape": (ones, ones)}
    direction = {
        "layers": {0: {"variant": variant}, 1: {"variant": with_several_shapes}},
        "other": {"weight": ones, "shape": ones},
    }
    setting = {"learning_rate": jnp.float32(0.5), "distance_rate": jnp.float32(8)}
    updates = scale_by_learning_rate(direction, tiny.make_task(), setting, jnp.float32(0.25))
    first, second = (updates["layers"][i]["variant"] for i in (0, 1))
    for fast in (first["weight"], first["shape"], second["weight"], *second["shape"]):
        np.testing.assert_array_equal(fast, -1)
    for plain in (first["keys"], *updates["other"].values()):
        np.testing.assert_array_equal(plain, -0.125)


def test_all_parameters_of_two_sided_heads_learn_faster():
    ones = jnp.ones(2)
    variant = {"parameters": {"before": {"weight": ones, "bias": (ones,)}}}
    direction = {"layers": {0: {"variant": variant}}, "other": ones}
    setting = {"learning_rate": jnp.float32(0.5), "distance_rate": jnp.float32(2)}
    task = tiny.make_task(tiny.make_config(methods=("two_sided",)))
    updates = scale_by_learning_rate(direction, task, setting, jnp.float32(0.25))
    before = updates["layers"][0]["variant"]["parameters"]["before"]
    np.testing.assert_array_equal(before["bias"][0], 5 * -0.125)
    np.testing.assert_array_equal(before["weight"], 2 * 5 * -0.125)
    np.testing.assert_array_equal(updates["other"], -0.125)
