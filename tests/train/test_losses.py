"""Losses by hand, and examples that must not count."""

import jax
import jax.numpy as jnp
import numpy as np

from distattn_jax.train import Guide, compose, cross_entropy, weighted_sum

NAN = float("nan")


def array(*values):
    return jnp.asarray(values, jnp.float32)


def test_cross_entropy_by_hand():
    # softmax of (0, log 3) is (1/4, 3/4)
    logits = jnp.log(jnp.asarray([[1.0, 3.0], [1.0, 3.0], [5.0, 5.0]]))
    actual = jax.jit(cross_entropy)(logits, jnp.asarray([0, 1, 0]))
    np.testing.assert_allclose(actual, [np.log(4), np.log(4 / 3), np.log(2)], rtol=1e-6)


def test_the_total_is_the_task_and_the_guides_by_their_weights():
    def task(outputs, batch):
        return outputs - batch["target"]

    guides = {
        "near": Guide(lambda outputs, batch: outputs * batch["target"], 0.5),
        "far": Guide(lambda outputs, batch: outputs**2, jnp.float32(10)),
    }
    composed = jax.jit(compose(task, guides))
    total, terms = composed(array(1, 3), {"target": array(4, 2)})
    np.testing.assert_array_equal(terms["loss/task"], [-3, 1])
    np.testing.assert_array_equal(terms["loss/near"], [4, 6])  # before they are weighted
    np.testing.assert_array_equal(terms["loss/far"], [1, 9])
    assert terms.keys() == {"loss/task", "loss/near", "loss/far"}
    np.testing.assert_array_equal(total, [-3 + 2 + 10, 1 + 3 + 90])


def test_without_guides_the_total_is_the_task():
    total, terms = compose(lambda outputs, batch: 2 * outputs, {})(array(1, 3), {})
    np.testing.assert_array_equal(total, [2, 6])
    assert terms.keys() == {"loss/task"}


def test_the_sum_counts_an_example_by_its_weight():
    assert weighted_sum(array(1, 2, 4), array(1, 0, 0.5)) == 3


def test_what_has_no_weight_does_not_count_even_where_it_is_not_a_number():
    values, weights = array(1, NAN, 4, jnp.inf), array(1, 0, 0.5, 0)
    total, gradients = jax.jit(jax.value_and_grad(weighted_sum, argnums=(0, 1)))(values, weights)
    assert total == 3
    np.testing.assert_array_equal(gradients[0], [1, 0, 0.5, 0])
    np.testing.assert_array_equal(gradients[1], [1, 0, 4, 0])


def test_what_has_weight_and_is_not_a_number_is_seen():
    assert jnp.isnan(weighted_sum(array(1, NAN), array(1, 1)))


def test_logits_of_no_weight_get_no_gradient_at_all():
    def loss(logits):
        return weighted_sum(cross_entropy(logits, jnp.asarray([0, 1, 0])), array(1, 0, 2))

    logits = jnp.zeros((3, 2))
    gradient = jax.jit(jax.grad(loss))(logits)
    np.testing.assert_array_equal(gradient, [[-0.5, 0.5], [0, 0], [-1, 1]])
