"""Temporary memory of attention: no (T, S, H) tensor, and no (T, S) map if it would be large."""

import functools

import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    TransformerXL,
    attention,
)
from tests.attention.cases import VARIANTS, Sizes, inputs
from tests.compiler import AS_USERS_HAVE_IT
from tests.programs import iterate_shapes

HEADS, WIDTH = 16, 64


def make_variants():
    """Return one variant of each kind, with arrays of zeros."""
    tables = jnp.zeros((HEADS, 33, WIDTH)), jnp.zeros((HEADS, 33, WIDTH))
    biases = jnp.zeros((HEADS, WIDTH)), jnp.zeros((HEADS, WIDTH))
    return {
        "dot_product": DotProduct(),
        "distance_aware": DistanceAware(jnp.zeros(HEADS), jnp.zeros(HEADS)),
        "relative_position": RelativePosition(*tables),
        "transformer_xl": TransformerXL(jnp.zeros((HEADS, 1024, WIDTH)), *biases),
        "adapted": Adapted(*biases),
        "distance_bias": DistanceBias(jnp.zeros((HEADS, 32)), "t5_buckets"),
    }


def count_temporary_maps(name, length, backward=True, options=None, **arguments):
    """Return the temporary memory in units of one float32 (T, S) map of all heads.

    The optimizations that the tests leave out follow the assignment of memory. `options` are those
    of the compiler, `arguments` those of `attention`.
    """
    call = functools.partial(attention, implementation="xla", **arguments)

    def forward(query, key, value, variant):
        return call(query, key, value, variant).values.sum()

    program = jax.grad(forward, (0, 1, 2, 3)) if backward else call
    array = jax.ShapeDtypeStruct((1, length, HEADS, WIDTH), jnp.float32)
    lowered = jax.jit(program).lower(array, array, array, make_variants()[name])
    compiled = lowered.compile(compiler_options=options)
    return compiled.memory_analysis().temp_size_in_bytes / (4 * HEADS * length**2)


@pytest.mark.parametrize(
    ("name", "backward", "limit"),
    [(name, True, 6) for name in make_variants()]
    + [("relative_position", False, 4), ("transformer_xl", False, 4)],
)
def test_a_small_map_needs_memory_for_a_few_maps(name, backward, limit):
    assert count_temporary_maps(name, 2048, backward) < limit


@pytest.mark.parametrize("name", make_variants())
def test_a_large_map_needs_memory_for_a_tenth_of_a_map_and_linear_in_length(name):
    single = count_temporary_maps(name, 16384)
    assert single < 0.1
    if name in ("distance_aware", "transformer_xl"):
        # The unit, one map, is four times as large at double length.
        assert 4 * count_temporary_maps(name, 32768) < 2.1 * single


def test_masks_lengths_and_dropout_do_not_allocate_the_map():
    length = 16384
    restrictions = {
        "mask": jnp.ones((1, 1, 1, length), bool),
        "key_lengths": jnp.asarray([length - 5]),
        "query_lengths": jnp.asarray([length - 9]),
        "is_causal": True,
        "query_offset": jnp.asarray([3]),
        "dropout_rate": 0.1,
        "dropout_key": jax.random.key(0),
    }
    options = AS_USERS_HAVE_IT
    assert count_temporary_maps("distance_aware", length, options=options, **restrictions) < 0.1


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("implementation", ["xla", "reference"])
def test_only_the_reference_makes_a_tensor_of_queries_keys_and_width(name, implementation):
    sizes = Sizes(batch=1, queries=11, keys=13, heads=1, width=4, value_width=4)
    variant, _ = VARIANTS[name](sizes, "float32")

    def loss(*arrays):
        return attention(*arrays, implementation=implementation, received=True).values.sum()

    program = jax.make_jaxpr(jax.grad(loss, (0, 1, 2, 3)))(*inputs(sizes, "float32"), variant)
    large = [shape for shape in iterate_shapes(program.jaxpr) if {11, 13, 4} <= set(shape)]
    printed_equation_has_one = name in ("relative_position", "transformer_xl", "adapted")
    assert bool(large) == (implementation == "reference" and printed_equation_has_one)
