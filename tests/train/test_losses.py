"""Losses against values computed by hand, and examples of weight 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.train import WeightedLoss, compose, cross_entropy, weighted_sum

NAN = float("nan")


def array(*values):
    return jnp.asarray(values, jnp.float32)


def test_cross_entropy_of_known_probabilities():
    # The softmax of (0, log 3) is (1/4, 3/4).
    logits = jnp.log(jnp.asarray([[1.0, 3.0], [1.0, 3.0], [5.0, 5.0]]))
    actual = jax.jit(cross_entropy)(logits, jnp.asarray([0, 1, 0]))
    np.testing.assert_allclose(actual, [np.log(4), np.log(4 / 3), np.log(2)], rtol=1e-6)


def test_the_total_is_the_task_loss_plus_the_weighted_losses():
    def task_loss(outputs, batch):
        return outputs - batch["target"]

    weighted_losses = {
        "product": WeightedLoss(lambda outputs, batch: outputs * batch["target"], 0.5),
        "square": WeightedLoss(lambda outputs, batch: outputs**2, jnp.float32(10)),
    }
    composed_loss = jax.jit(compose(task_loss, weighted_losses))
    total, terms = composed_loss(array(1, 3), {"target": array(4, 2)})
    np.testing.assert_array_equal(terms["loss/task"], [-3, 1])
    np.testing.assert_array_equal(terms["loss/product"], [4, 6])  # terms are unweighted
    np.testing.assert_array_equal(terms["loss/square"], [1, 9])
    assert terms.keys() == {"loss/task", "loss/product", "loss/square"}
    np.testing.assert_array_equal(total, [-3 + 2 + 10, 1 + 3 + 90])


def test_a_loss_that_is_averaged_over_the_batch_raises():
    mean = WeightedLoss(lambda outputs, batch: outputs.mean(), 1.0)
    losses = compose(lambda outputs, batch: outputs, {"mean": mean})
    with pytest.raises(AssertionError, match="The loss 'mean' must return one number per example"):
        losses(array(1, 3), {})


def test_without_weighted_losses_the_total_is_the_task_loss():
    total, terms = compose(lambda outputs, batch: 2 * outputs, {})(array(1, 3), {})
    np.testing.assert_array_equal(total, [2, 6])
    assert terms.keys() == {"loss/task"}


@pytest.mark.parametrize("ignored", [2.0, NAN, float("inf")])
def test_examples_of_weight_0_contribute_nothing_to_the_sum_or_its_gradients(ignored):
    values, weights = array(1, ignored, 4), array(1, 0, 0.5)
    total, gradients = jax.jit(jax.value_and_grad(weighted_sum, argnums=(0, 1)))(values, weights)
    assert total == 3
    np.testing.assert_array_equal(gradients[0], [1, 0, 0.5])
    np.testing.assert_array_equal(gradients[1], [1, 0, 4])


def test_a_nan_with_a_weight_makes_the_sum_nan():
    assert jnp.isnan(weighted_sum(array(1, NAN), array(1, 1)))


def test_logits_of_weight_0_get_a_gradient_of_0():
    def loss(logits):
        return weighted_sum(cross_entropy(logits, jnp.asarray([0, 1, 0])), array(1, 0, 2))

    logits = jnp.zeros((3, 2))
    gradient = jax.jit(jax.grad(loss))(logits)
    np.testing.assert_array_equal(gradient, [[-0.5, 0.5], [0, 0], [-1, 1]])
