"""Invalid arguments raise errors that name the argument, the expected value and the given one."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax import modules
from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
    linear,
    sigmoid,
)

QUERY, KEY, VALUE = jnp.ones((2, 5, 3, 4)), jnp.ones((2, 7, 3, 4)), jnp.ones((2, 7, 3, 6))
BIASES = jnp.ones((1, 4)), jnp.ones((3, 4))
AWARE = DistanceAware(jnp.ones(3), jnp.ones(3))


def return_shape(x, shape):
    """Return the parameters of the mapping instead of one coefficient per distance."""
    return shape


def with_leaves(variant, *leaves):
    """Return the variant with other arrays, without the shape checks of its constructor."""
    return jax.tree.unflatten(jax.tree.structure(variant), leaves)


def attend(query=QUERY, key=KEY, value=VALUE, variant=None, **arguments):
    """Return a function without arguments that calls `attention`."""
    return functools.partial(attention, query, key, value, variant or DotProduct(), **arguments)


# Calls by their error messages, in which .* stands for any text.
INVALID = {
    "query must .* (batch, length, heads, width); got (5, 3, 4)": attend(query=QUERY[0]),
    "query must be floating point; got dtype int32": attend(query=QUERY.astype(int)),
    "key must not be empty; got shape (2, 0, 3, 4)": attend(key=KEY[:, :0]),
    "key must .* a divisor of them, (2, S, 3, 4); got (2, 7, 2, 4)": attend(key=KEY[:, :, :2]),
    "key must .* (2, S, 3, 4); got (2, 7, 3, 3)": attend(key=KEY[..., :3]),
    "value must .* (2, 7, 3, 'E'); got (2, 6, 3, 6)": attend(value=VALUE[:, 1:]),
    "variant must be a Variant .* got 'dot'": attend(variant="dot"),
    "variant must be an instance of DotProduct; got the class itself": attend(variant=DotProduct),
    "variant must be a Variant .* Call the module: variant=module().": attend(
        variant=modules.DistanceAware(3, rngs=nnx.Rngs(0))
    ),
    "is_causal must be True or False; got 'no'": attend(is_causal="no"),
    "scale must be None or a positive Python number; got Array(1., dtype=float32)": attend(
        scale=jnp.ones(())
    ),
    "local_window_size must .* (left, right) .* got (2, -1)": attend(local_window_size=(2, -1)),
    "implementation must .* 'xla'.* got 'fast'": attend(implementation="fast"),
    "mask must be a boolean .* got float32": attend(mask=jnp.ones((1, 1, 5, 7))),
    "mask must .* (2, 3, 5, 7); got (1, 1, 4, 7)": attend(mask=jnp.ones((1, 1, 4, 7), bool)),
    "mask must have four axes .* got (5, 7). Write mask[None, None]": attend(
        mask=jnp.ones((5, 7), bool)
    ),
    "mask must .* got (1, 1, 1, 1, 1)": attend(mask=jnp.ones((1,) * 5, bool)),
    "key_lengths must .* (2,); got shape (3,)": attend(key_lengths=jnp.ones(3, int)),
    "key_lengths must .* (2,); got [3, 4]. Pass an array": attend(key_lengths=[3, 4]),
    "key_lengths must lie between -2³¹ and 2³¹": attend(key_lengths=np.asarray([3, 2**32 + 1])),
    "query_offset must be an integer, or one per example, shape (2,); got [0, 1]": attend(
        query_offset=[0, 1]
    ),
    "key_segments must be given.* got None": attend(query_segments=jnp.zeros((2, 5), int)),
    "key_segments must be one integer per position, shape (2, 7); got shape (2, 5)": attend(
        query_segments=jnp.zeros((2, 5), int), key_segments=jnp.zeros((2, 5), int)
    ),
    "DistanceAware uses the distance .* Got 5 queries, 7 keys and query_offset 0": attend(
        variant=DistanceAware(jnp.ones(3), jnp.ones(3)),
        query_segments=jnp.zeros((2, 5), int),
        key_segments=jnp.zeros((2, 7), int),
    ),
    "must be packed alike.* differ in example 1 at query 2": attend(
        variant=DistanceAware(jnp.ones(3), jnp.ones(3)),
        query_segments=jnp.asarray([[0] * 5, [0, 0, 1, 1, 1]]),
        key_segments=jnp.zeros((2, 7), int),
        query_offset=jnp.asarray([1, 2]),
    ),
    "query_lengths must .* integer .* float32": attend(query_lengths=jnp.ones(2)),
    "query_offset must be an integer": attend(query_offset=1.5),
    "query_offset must .* got shape (3,)": attend(query_offset=jnp.ones(3, int)),
    "dropout_key must be given with dropout_rate=0.1": attend(dropout_rate=0.1),
    "dropout_rate must be at least 0 and below 1; got 1.0": attend(
        dropout_rate=1.0, dropout_key=jax.random.key(0)
    ),
    "DistanceAware.weight must be an array of shape (3,).* got shape (2,)": attend(
        variant=DistanceAware(jnp.ones(2), jnp.ones(3))
    ),
    "DistanceAware.shape must be an array of shape (3,).* v of each head; got shape (5,)": attend(
        variant=DistanceAware(jnp.ones(3), jnp.ones(5))
    ),
    "DistanceAware.weight must be an array of shape (3,).* got shape (1, 3)": attend(
        variant=with_leaves(AWARE, jnp.ones((1, 3)), jnp.ones(3))
    ),
    "DistanceAware.shape must be an array of shape (3,).* got shape (3, 1)": attend(
        variant=with_leaves(AWARE, jnp.ones(3), jnp.ones((3, 1)))
    ),
    "DistanceAware.weight must be an array of shape (3,).* got 0.5": attend(
        variant=with_leaves(AWARE, 0.5, jnp.ones(3))
    ),
    "DistanceAware.shape must be an array of shape (3,).* got None": attend(
        variant=with_leaves(AWARE, jnp.ones(3), None)
    ),
    "DistanceAware.shape must be (), without arrays, for the mapping sigmoid; got": attend(
        variant=DistanceAware(jnp.ones(3), jnp.ones(3), mapping=sigmoid)
    ),
    "DistanceAware.shape must be (k, b), for the mapping linear; got": attend(
        variant=DistanceAware(jnp.ones(3), jnp.ones(3), mapping=linear)
    ),
    "DistanceAware.shape, the v of each head, must be at most 60 .* got 80.0": attend(
        variant=DistanceAware(jnp.ones(3), jnp.full(3, 80.0))
    ),
    "DistanceAware.mapping must return one coefficient per distance, shape .*; got ()": attend(
        variant=DistanceAware(jnp.ones(3), jnp.ones(3), mapping=return_shape)
    ),
    "mapping must be one of learnable_sigmoid, sigmoid, .* got 'tanh'": lambda: DistanceAware(
        jnp.ones(3), jnp.ones(3), mapping="tanh"
    ),
    "adjust must be one of early_multiply, .* got 'early'": lambda: DistanceAware(
        jnp.ones(3), jnp.ones(3), adjust="early"
    ),
    "tolerance must be None or at least 0; got -1.0": lambda: DistanceAware(
        jnp.ones(3), jnp.ones(3), tolerance=-1.0
    ),
    "RelativePosition.keys must .* odd number of relations; got (1, 4, 4)": lambda: (
        RelativePosition(keys=jnp.ones((1, 4, 4)))
    ),
    "RelativePosition.values must be as wide as the values, 6; got shape (1, 3, 4)": attend(
        variant=RelativePosition(values=jnp.ones((1, 3, 4)))
    ),
    "RelativePosition.keys must .* the head axis, of size 3 .* got shape (2, 3, 4)": attend(
        variant=RelativePosition(keys=jnp.ones((2, 3, 4)))
    ),
    "TransformerXL.projection must .* D even .* got (3, 5, 4)": lambda: TransformerXL(
        jnp.ones((3, 5, 4)), *BIASES
    ),
    "TransformerXL.content_bias must end in the width of a head, 4; got shape (1, 2)": attend(
        variant=with_leaves(
            TransformerXL(jnp.ones((3, 6, 4)), *BIASES),
            jnp.ones((3, 6, 4)),
            jnp.ones((1, 2)),
            BIASES[1],
        )
    ),
    "Adapted needs .* even width .* got width 3": attend(
        QUERY[..., :3], KEY[..., :3], VALUE, Adapted(jnp.ones((1, 3)), jnp.ones((1, 3)))
    ),
    "Adapted.position_bias must have shape (heads or 1, 4); got (1, 6)": attend(
        variant=with_leaves(Adapted(*BIASES), jnp.ones((1, 4)), jnp.ones((1, 6)))
    ),
}


@pytest.mark.parametrize(("message", "call"), INVALID.items(), ids=INVALID)
def test_an_invalid_argument_raises_an_error_that_names_it(message, call):
    pattern = re.escape(message).replace(r"\.\*", "(.|\n)*")
    with pytest.raises((ValueError, TypeError), match=pattern):
        call()


def test_traced_lengths_and_offsets_are_accepted():
    @jax.jit
    def values(lengths, offset):
        return attend(key_lengths=lengths, query_offset=offset)().values

    assert values(jnp.asarray([3, 7]), jnp.int32(2)).shape == (2, 5, 3, 6)
