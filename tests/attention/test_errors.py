"""Invalid arguments raise errors that name the argument, the expected value and the given one."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
)

QUERY, KEY, VALUE = jnp.ones((2, 5, 3, 4)), jnp.ones((2, 7, 3, 4)), jnp.ones((2, 7, 3, 6))
BIASES = jnp.ones((1, 4)), jnp.ones((3, 4))


def with_leaves(variant, *leaves):
    """Return the variant with other arrays, without the shape checks of its constructor."""
    return jax.tree.unflatten(jax.tree.structure(variant), leaves)


def prepare_call(query=QUERY, key=KEY, value=VALUE, variant=None, **arguments):
    """Return a function without arguments that calls `attention`."""
    return functools.partial(attention, query, key, value, variant or DotProduct(), **arguments)


INVALID = {
    "query of rank 3": (
        prepare_call(query=QUERY[0]),
        "query must .* (batch, length, heads, width); got (5, 3, 4)",
    ),
    "query of integers": (
        prepare_call(query=QUERY.astype(int)),
        "query must be floating point; got dtype int32",
    ),
    "no keys": (prepare_call(key=KEY[:, :0]), "key must not be empty; got shape (2, 0, 3, 4)"),
    "key with other heads": (
        prepare_call(key=KEY[:, :, :2]),
        "key must .* (2, S, 3, 4); got (2, 7, 2, 4)",
    ),
    "key with other width": (
        prepare_call(key=KEY[..., :3]),
        "key must .* (2, S, 3, 4); got (2, 7, 3, 3)",
    ),
    "value with other length": (
        prepare_call(value=VALUE[:, 1:]),
        "value must .* (2, 7, 3, 'E'); got (2, 6, 3, 6)",
    ),
    "variant that is a string": (
        prepare_call(variant="dot"),
        "variant must be a Variant .* got 'dot'",
    ),
    "unknown implementation": (
        prepare_call(implementation="fast"),
        "implementation must .* 'xla'.* got 'fast'",
    ),
    "float mask": (prepare_call(mask=jnp.ones((5, 7))), "mask must be a boolean .* got float32"),
    "mask with other shape": (
        prepare_call(mask=jnp.ones((4, 7), bool)),
        "mask must .* (2, 3, 5, 7); got (4, 7)",
    ),
    "mask of rank 5": (
        prepare_call(mask=jnp.ones((1,) * 5, bool)),
        "mask must .* got (1, 1, 1, 1, 1)",
    ),
    "lengths with other batch": (
        prepare_call(key_lengths=jnp.ones(3, int)),
        "key_lengths must .* (2,); got shape (3,)",
    ),
    "float lengths": (
        prepare_call(query_lengths=jnp.ones(2)),
        "query_lengths must .* integer .* float32",
    ),
    "float offset": (prepare_call(query_offset=1.5), "query_offset must be an integer"),
    "offset with other batch": (
        prepare_call(query_offset=jnp.ones(3, int)),
        "query_offset must .* got shape (3,)",
    ),
    "dropout without a key": (
        prepare_call(dropout_rate=0.1),
        "dropout_key must be given with dropout_rate=0.1",
    ),
    "dropout of everything": (
        prepare_call(dropout_rate=1.0, dropout_key=jax.random.key(0)),
        "dropout_rate must be at least 0 and below 1; got 1.0",
    ),
    "weight with other heads": (
        prepare_call(variant=DistanceAware(jnp.ones(2), jnp.ones(3))),
        "DistanceAware.weight must lead with the head axis, of size 3 .* got shape (2,)",
    ),
    "shape with other heads": (
        prepare_call(variant=DistanceAware(jnp.ones(3), jnp.ones(5))),
        "DistanceAware.shape must lead with the head axis, of size 3 .* got shape (5,)",
    ),
    "negative tolerance": (
        lambda: DistanceAware(jnp.ones(3), jnp.ones(3), tolerance=-1.0),
        "tolerance must be None or at least 0; got -1.0",
    ),
    "table of even length": (
        lambda: RelativePosition(keys=jnp.ones((1, 4, 4))),
        "RelativePosition.keys must .* odd number of relations; got (1, 4, 4)",
    ),
    "table with other width": (
        prepare_call(variant=RelativePosition(values=jnp.ones((1, 3, 4)))),
        "RelativePosition.values must be as wide as the values, 6; got shape (1, 3, 4)",
    ),
    "table with other heads": (
        prepare_call(variant=RelativePosition(keys=jnp.ones((2, 3, 4)))),
        "RelativePosition.keys must lead with the head axis, of size 3 .* got shape (2, 3, 4)",
    ),
    "sinusoids of odd width": (
        lambda: TransformerXL(jnp.ones((3, 5, 4)), *BIASES),
        "TransformerXL.projection must .* D even .* got (3, 5, 4)",
    ),
    "bias with other width": (
        prepare_call(
            variant=with_leaves(
                TransformerXL(jnp.ones((3, 6, 4)), *BIASES),
                jnp.ones((3, 6, 4)),
                jnp.ones((1, 2)),
                BIASES[1],
            )
        ),
        "TransformerXL.content_bias must end in the width of a head, 4; got shape (1, 2)",
    ),
    "adapted with odd head width": (
        prepare_call(
            QUERY[..., :3], KEY[..., :3], VALUE, Adapted(jnp.ones((1, 3)), jnp.ones((1, 3)))
        ),
        "Adapted needs .* even width .* got width 3",
    ),
    "adapted bias with other width": (
        prepare_call(variant=with_leaves(Adapted(*BIASES), jnp.ones((1, 4)), jnp.ones((1, 6)))),
        "Adapted.position_bias must have shape (heads or 1, 4); got (1, 6)",
    ),
}


@pytest.mark.parametrize(("call", "message"), INVALID.values(), ids=INVALID)
def test_an_invalid_argument_raises_an_error_that_names_it(call, message):
    pattern = re.escape(message).replace(r"\.\*", "(.|\n)*")
    with pytest.raises((ValueError, TypeError), match=pattern):
        call()


def test_traced_lengths_and_offsets_are_accepted():
    @jax.jit
    def values(lengths, offset):
        return prepare_call(key_lengths=lengths, query_offset=offset)().values

    assert values(jnp.asarray([3, 7]), jnp.int32(2)).shape == (2, 5, 3, 6)
