"""What the compiler sets aside: no (T, S, d) tensor, and no map once it is large."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
)
from tests.attention.cases import ONE_OF_EACH, Sizes, inputs
from tests.compiler import AS_USERS_HAVE_IT

pytestmark = pytest.mark.usefixtures("optimised")
HEADS, WIDTH = 16, 64


def variants():
    tables = jnp.zeros((HEADS, 33, WIDTH)), jnp.zeros((HEADS, 33, WIDTH))
    biases = jnp.zeros((HEADS, WIDTH)), jnp.zeros((HEADS, WIDTH))
    return {
        "dot_product": DotProduct(),
        "distance_aware": DistanceAware(jnp.zeros(HEADS), jnp.zeros(HEADS)),
        "relative_position": RelativePosition(*tables),
        "transformer_xl": TransformerXL(jnp.zeros((HEADS, 1024, WIDTH)), *biases),
        "adapted": Adapted(*biases),
    }


def temporary_maps(variant, length, backward, **arguments):
    """Bytes of temporary memory, as a multiple of one float32 map of all heads."""
    call = functools.partial(attention, implementation="xla", **arguments)

    def forward(query, key, value, variant):
        return call(query, key, value, variant).values.sum()

    program = jax.grad(forward, (0, 1, 2, 3)) if backward else call
    array = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
    lowered = jax.jit(program).lower(array, array, array, variant)
    compiled = lowered.compile(compiler_options=AS_USERS_HAVE_IT)
    return compiled.memory_analysis().temp_size_in_bytes / (4 * HEADS * length**2)


@pytest.mark.parametrize(
    ("name", "backward", "limit"),
    [(name, True, 6) for name in variants()]
    + [("relative_position", False, 4), ("transformer_xl", False, 4)],
)
def test_below_the_switch_a_few_maps_suffice(name, backward, limit):
    assert temporary_maps(variants()[name], 2048, backward) < limit


@pytest.mark.parametrize("name", variants())
def test_above_the_switch_memory_is_a_small_part_of_a_map(name):
    assert temporary_maps(variants()[name], 16384, backward=True) < 0.1


@pytest.mark.parametrize("name", ["distance_aware", "transformer_xl"])
def test_above_the_switch_memory_doubles_with_the_length(name):
    once, twice = (temporary_maps(variants()[name], length, True) for length in (16384, 32768))
    assert 4 * twice < 2.1 * once  # a map of twice the length is four times as large


def test_a_mask_and_all_restrictions_do_not_bring_the_map_back():
    length = 16384
    arguments = {
        "mask": jnp.ones((1, 1, 1, length), bool),
        "key_lengths": jnp.asarray([length - 5]),
        "query_lengths": jnp.asarray([length - 9]),
        "is_causal": True,
        "query_offset": jnp.asarray([3]),
        "dropout_rate": 0.1,
        "dropout_key": jax.random.key(0),
    }
    variant = variants()["distance_aware"]
    assert temporary_maps(variant, length, backward=True, **arguments) < 0.1


def shapes_in(jaxpr):
    """The shapes of all arrays that a program makes, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from shapes_in(inner)


@pytest.mark.parametrize("name", ONE_OF_EACH)
@pytest.mark.parametrize("implementation", ["xla", "reference"])
def test_no_tensor_of_queries_keys_and_width_exists(name, implementation):
    sizes = Sizes(batch=1, queries=11, keys=13, heads=1, width=4, value_width=4)
    variant, _ = ONE_OF_EACH[name](sizes, "float32")

    def loss(*arrays):
        return attention(*arrays, implementation=implementation, received=True).values.sum()

    program = jax.make_jaxpr(jax.grad(loss, (0, 1, 2, 3)))(*inputs(sizes, "float32"), variant)
    large = [shape for shape in shapes_in(program.jaxpr) if {11, 13, 4} <= set(shape)]
    has_one_as_printed = name in ("relative_position", "transformer_xl", "adapted")
    assert bool(large) == (implementation == "reference" and has_one_as_printed)
