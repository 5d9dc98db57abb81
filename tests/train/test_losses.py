"""Losses against values computed by hand, and examples of weight 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import train

NAN = float("nan")


def array(*values):
    return jnp.asarray(values, jnp.float32)


def test_cross_entropy_of_known_probabilities():
    # The softmax of (0, log 3) is (1/4, 3/4).
    logits = jnp.log(jnp.asarray([[1.0, 3.0], [1.0, 3.0], [5.0, 5.0]]))
    actual = jax.jit(train.cross_entropy)(logits, jnp.asarray([0, 1, 0]))
    np.testing.assert_allclose(actual, [np.log(4), np.log(4 / 3), np.log(2)], rtol=1e-6)


def test_the_total_is_the_task_loss_plus_the_weighted_losses():
    def task_loss(outputs, batch):
        return outputs - batch["target"]

    weighted_losses = {
        "product": train.WeightedLoss(lambda outputs, batch: outputs * batch["target"], 0.5),
        "square": train.WeightedLoss(lambda outputs, batch: outputs**2, jnp.float32(10)),
    }
    composed_loss = jax.jit(train.compose(task_loss, weighted_losses))
    total, terms = composed_loss(array(1, 3), {"target": array(4, 2)})
    np.testing.assert_array_equal(terms["loss/task"], [-3, 1])
    np.testing.assert_array_equal(terms["loss/product"], [4, 6])  # terms are unweighted
    np.testing.assert_array_equal(terms["loss/square"], [1, 9])
    assert terms.keys() == {"loss/task", "loss/product", "loss/square"}
    np.testing.assert_array_equal(total, [-3 + 2 + 10, 1 + 3 + 90])
    total, terms = train.compose(task_loss, {})(array(1, 3), {"target": array(4, 2)})
    np.testing.assert_array_equal(total, [-3, 1])
    assert terms.keys() == {"loss/task"}


def test_a_loss_that_is_averaged_over_the_batch_raises():
    mean = train.WeightedLoss(lambda outputs, batch: outputs.mean(), 1.0)
    losses = train.compose(lambda outputs, batch: outputs, {"mean": mean})
    with pytest.raises(AssertionError, match="The loss 'mean' must return one number per example"):
        losses(array(1, 3), {})


@pytest.mark.parametrize("ignored", [2.0, NAN, float("inf")])
def test_examples_of_weight_0_contribute_nothing_to_the_sum_or_its_gradients(ignored):
    values, weights = array(1, ignored, 4), array(1, 0, 0.5)
    total, gradients = jax.jit(jax.value_and_grad(train.weighted_sum, argnums=(0, 1)))(
        values, weights
    )
    assert total == 3
    np.testing.assert_array_equal(gradients[0], [1, 0, 0.5])
    np.testing.assert_array_equal(gradients[1], [1, 0, 4])
    assert jnp.isnan(train.weighted_sum(array(1, NAN), array(1, 1)))


def test_logits_of_weight_0_get_a_gradient_of_0():
    def loss(logits):
        return train.weighted_sum(
            train.cross_entropy(logits, jnp.asarray([0, 1, 0])), array(1, 0, 2)
        )

    logits = jnp.zeros((3, 2))
    gradient = jax.jit(jax.grad(loss))(logits)
    np.testing.assert_array_equal(gradient, [[-0.5, 0.5], [0, 0], [-1, 1]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_a_token_is_its_cross_entropy_with_the_smoothed_labels(smoothing):
    draw = np.random.default_rng(0)
    logits = (9 * draw.normal(size=(2, 3, 5))).astype(np.float32)
    labels = np.asarray([[0, 4, 2], [2, 2, 1]])
    cotangent = draw.normal(size=(2, 3)).astype(np.float32)
    expected, gradient = np.zeros((2, 3)), np.zeros((2, 3, 5))
    for place in np.ndindex(2, 3):
        z = logits[place].astype(np.float64)
        target = np.full(5, smoothing / 5)
        target[labels[place]] += 1 - smoothing
        log_probability = z - np.log(np.exp(z).sum())
        expected[place] = -(target * log_probability).sum()
        gradient[place] = cotangent[place] * (np.exp(log_probability) - target)
    losses, derivative = jax.vjp(
        lambda z: train.token_cross_entropy(z, jnp.asarray(labels), smoothing=smoothing),
        jnp.asarray(logits),
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(derivative(jnp.asarray(cotangent))[0], gradient, atol=1e-5)


def test_the_loss_of_tokens_stores_nothing_as_large_as_the_logits(optimised):
    shape = jax.ShapeDtypeStruct((4, 32, 1000), jnp.float32)
    labels = jax.ShapeDtypeStruct((4, 32), jnp.int32)

    def mean(logits, labels):
        return train.token_cross_entropy(logits, labels, smoothing=0.1).mean()

    used = jax.jit(jax.value_and_grad(mean)).lower(shape, labels).compile().memory_analysis()
    logits_bytes = 4 * 32 * 1000 * 4
    assert used.output_size_in_bytes >= logits_bytes  # the gradient of the logits
    assert used.temp_size_in_bytes < logits_bytes / 10
