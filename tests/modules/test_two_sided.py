"""The module of attention with own functions of the distance for each side."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from distattn_jax import attention
from distattn_jax.modules import TwoSided, as_attention_fn, sign_combinations
from tests.modules.cases import N


def make(heads=N, **arguments):
    return TwoSided(heads, rngs=nnx.Rngs(0), **arguments)


def test_signs_of_w_have_all_combinations_in_groups_of_four_heads():
    weight = np.asarray(sign_combinations()(jax.random.key(0), (8, 2)))
    near, far = -1, 1
    before, after = np.sign(weight[:4].T).tolist()
    assert (before, after) == ([near, far, near, far], [near, near, far, far])
    np.testing.assert_array_equal(np.sign(weight[4:]), np.sign(weight[:4]))
    assert ((np.abs(weight) >= 0.05) & (np.abs(weight) <= 0.15)).all()
    assert len(np.unique(np.abs(weight))) == 16
    shared = sign_combinations(2.0)(jax.random.key(0), (3, 1))
    assert np.sign(shared).tolist() == [[near], [far], [near]]
    assert (np.abs(shared) >= 1).all()


def test_decays_are_drawn_for_each_head_and_side_and_constants_begin_at_zero():
    @jax.jit
    def draw():
        return make(6)().bias_parameters, make(bias=("alibi",))().bias_parameters

    (constants, (scale, rate)), (slopes,) = draw()
    assert not constants.any()
    assert constants.shape == scale.shape == rate.shape == (6, 2)
    assert len(np.unique(np.concatenate((scale, rate)))) == 24
    assert scale.min() >= 0.01
    assert scale.max() <= 2
    np.testing.assert_allclose(slopes, np.repeat(attention.alibi_slopes(N)[:, None], 2, axis=1))


def test_tied_sides_share_one_set_of_parameters():
    module = make(tied=True)
    assert {leaf.shape for leaf in jax.tree.leaves(module)} == {(N,)}
    variant = module()
    for leaf in jax.tree.leaves(variant):
        assert leaf.shape == (N, 2)
        np.testing.assert_array_equal(leaf[:, 0], leaf[:, 1])


def test_initial_values_are_numbers_or_have_one_number_for_each_head_and_side():
    values = np.arange(2.0 * N).reshape(N, 2)
    variant = make(shape=values, bias=("constant", "alibi"), bias_parameters=(values, 0.5))()
    np.testing.assert_array_equal(variant.shape, values)
    np.testing.assert_array_equal(variant.bias_parameters[0], values)
    np.testing.assert_array_equal(variant.bias_parameters[1], np.full((N, 2), 0.5))
    assert make(shape=1.5, bias=())().shape.tolist() == [[1.5, 1.5]] * N
    clipped = make(mapping="clip", shape=3.0, bias=())
    assert (clipped().shape == 3).all()
    assert len(jax.tree.leaves(clipped)) == 2  # w of both sides: the threshold is constant
    table = make(mapping=None, bias=("t5_buckets",), rectify=False)()
    assert table.weight is None
    assert table.bias_parameters[0].shape == (N, 2, 16)


def test_parameters_are_in_the_tree_of_linen():
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x):
            variant = nnx.bridge.to_linen(TwoSided, 2, name="two_sided")()
            return linen.MultiHeadDotProductAttention(2, attention_fn=as_attention_fn(variant))(x)

    variables = jax.eval_shape(Block().init, jax.random.key(0), jnp.ones((1, 3, 4)))
    sides = variables["params"]["two_sided"]["parameters"]
    assert sides.keys() == {"before", "after"}
    assert {leaf.shape for leaf in jax.tree.leaves(sides)} == {(2,)}
    assert len(jax.tree.leaves(sides)) == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": np.ones(N)}, r"shape must contain .*\(4 or 1, 2, \.\.\.\) .*; got .*\(4,\)"),
        ({"shape": 1.0, "mapping": "linear"}, r"shape must be None or like \(1.0, 1.0\), the def"),
        ({"shape": 1.0, "mapping": None}, "shape must be None if mapping is None; got 1.0"),
        ({"mapping": "relu"}, "mapping must be one of .* got 'relu'"),
        ({"mapping": lambda x, shape: x}, "shape must be given for a custom mapping"),
        ({"bias": ("alibi",), "bias_parameters": (np.ones((N, 1)),)}, "bias_parameters must conta"),
        ({"bias": ("alibi",), "bias_parameters": (1.0, 2.0)}, "bias_parameters must be a tuple"),
        ({"bias": (lambda d, p: p,)}, "Pass the initial parameters of your own function"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)
