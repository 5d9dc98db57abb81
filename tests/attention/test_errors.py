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
    DistanceBias,
    DotProduct,
    RelativePosition,
    T5Buckets,
    TransformerXL,
    attention,
    init_bias_parameters,
)
from distattn_jax.attention.variants import bias_functions
from tests.unchecked import as_users_have_it

QUERY, KEY, VALUE = jnp.ones((2, 5, 3, 4)), jnp.ones((2, 7, 3, 4)), jnp.ones((2, 7, 3, 6))
BIASES = jnp.ones((1, 4)), jnp.ones((3, 4))
ONES = jnp.ones(3)
SEGMENTS = jnp.zeros((2, 5), int), jnp.zeros((2, 7), int)


def return_parameters(x, parameters):
    """Return the parameters instead of one number per distance."""
    return parameters


def with_leaves(variant, *leaves):
    """Return the variant with other arrays, without the shape checks of its constructor."""
    return jax.tree.unflatten(jax.tree.structure(variant), leaves)


def attend(query=QUERY, key=KEY, value=VALUE, variant=None, **arguments):
    """Return a function without arguments that calls `attention`."""
    return functools.partial(attention, query, key, value, variant or DotProduct(), **arguments)


def aware(weight=ONES, shape=ONES, **options):
    """Return a call of distance-aware attention, without the shape checks of its constructor."""
    return attend(variant=with_leaves(DistanceAware(ONES, ONES, **options), weight, shape))


def bias(parameters, function):
    return attend(variant=DistanceBias(parameters, function))


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
    "key_segments must be given.* got None": attend(query_segments=SEGMENTS[0]),
    "key_segments must be one integer per position, shape (2, 7); got shape (2, 5)": attend(
        query_segments=SEGMENTS[0], key_segments=SEGMENTS[0]
    ),
    "DistanceAware uses the distance .* Got 5 queries, 7 keys and query_offset 0": attend(
        variant=DistanceAware(ONES, ONES), query_segments=SEGMENTS[0], key_segments=SEGMENTS[1]
    ),
    "must be packed alike.* differ in example 1 at query 2": attend(
        variant=DistanceAware(ONES, ONES),
        query_segments=SEGMENTS[0].at[1, 2:].set(1),
        key_segments=SEGMENTS[1],
        query_offset=jnp.asarray([1, 2]),
    ),
    "query_lengths must .* integer .* float32": attend(query_lengths=jnp.ones(2)),
    "query_offset must be an integer": attend(query_offset=1.5),
    "query_offset must .* got shape (3,)": attend(query_offset=jnp.ones(3, int)),
    "dropout_key must be given with dropout_rate=0.1": attend(dropout_rate=0.1),
    "dropout_rate must be at least 0 and below 1; got 1.0": attend(
        dropout_rate=1.0, dropout_key=jax.random.key(0)
    ),
    "DistanceAware.weight must be an array of shape (3,).* got shape (2,)": aware(jnp.ones(2)),
    "DistanceAware.shape must be an array of shape (3,).* v of each head; got shape (5,)": aware(
        shape=jnp.ones(5)
    ),
    "DistanceAware.weight must be an array of shape (3,).* got shape (1, 3)": aware(ONES[None]),
    "DistanceAware.shape must be an array of shape (3,).* got shape (3, 1)": aware(
        shape=ONES[:, None]
    ),
    "DistanceAware.weight must be an array of shape (3,).* got 0.5": aware(0.5),
    "DistanceAware.shape must be an array of shape (3,).* got None": aware(shape=None),
    "DistanceAware.shape must be (), without arrays, for the mapping sigmoid; got": aware(
        mapping="sigmoid"
    ),
    "DistanceAware.shape must be (k, b), for the mapping linear; got": aware(mapping="linear"),
    "DistanceAware.shape, the v of each head, must be at most 60 .* got 80.0": aware(
        shape=jnp.full(3, 80.0)
    ),
    "DistanceAware.mapping must return one coefficient per distance, shape .*; got ()": aware(
        mapping=return_parameters
    ),
    "mapping must be one of learnable_sigmoid, sigmoid, .* got 'tanh'": lambda: aware(
        mapping="tanh"
    ),
    "adjust must be one of early_multiply, .* got 'early'": lambda: aware(adjust="early"),
    "tolerance must be None or at least 0; got -1.0": lambda: aware(tolerance=-1.0),
    "score_bias must be None unless adjust is early_multiply": lambda: aware(
        adjust="early_add", score_bias=ONES
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
    "function must be one of alibi, kerple_log, .* got 'sandwich'": lambda: bias(ONES, "sandwich"),
    "function must be a function of .*distance, parameters.* got 3": lambda: as_users_have_it(
        bias_functions
    ).find_bias_function(3),
    "DistanceBias.parameters[1] must .* r₂ of each head; got shape (2,)": bias(
        (ONES, jnp.ones(2)), "kerple_log"
    ),
    "DistanceBias.function must return one number per .* got ()": bias(ONES, return_parameters),
    "DistanceBias.parameters must have .* each of the 32 buckets .* (3, 31)": bias(
        jnp.ones((3, 31)), "t5_buckets"
    ),
    "num_buckets must be even and at least 4; got 7": lambda: T5Buckets(7),
    "num_buckets must be at least 2; got 1": lambda: T5Buckets(1, is_causal=True),
    "max_distance must be larger than .*, 8; got 8": lambda: T5Buckets(max_distance=8),
    "Pass the initial parameters of your own function": lambda: init_bias_parameters(
        return_parameters, 3, key=jax.random.key(0)
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
