"""Kernels with two heads side by side, run by the Pallas interpreter."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench.tpu_layouts import attend_side_by_side
from tests.attention.cases import needs_kernels

pytestmark = needs_kernels


def attend(query, key, value):
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / 8
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), value)


def test_values_and_gradients_are_those_of_a_softmax():
    keys = jax.random.split(jax.random.key(0), 4)
    arrays = [jax.random.normal(key, (2, 256, 4, 64)) for key in keys]
    with jax.default_matmul_precision("highest"):
        values, gradients = attend_side_by_side(*arrays, tile=(128, 128), interpret=True)
        expected, transpose = jax.vjp(attend, *arrays[:3])
        expected_gradients = transpose(arrays[3])
    np.testing.assert_allclose(values, expected, atol=1e-5)
    for name, gradient in zip(("query", "key", "value"), expected_gradients, strict=True):
        np.testing.assert_allclose(gradients[name], gradient, atol=1e-5, err_msg=name)
