"""Random inputs, variants with their oracles, and implementations, shared by these tests."""

import contextlib
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import attention as package
from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    T5Buckets,
    TransformerXL,
    TwoSided,
    Variant,
    attention,
    fused_kernels,
    xla,
)
from tests import oracles

needs_kernels = pytest.mark.skipif(
    jax.__version_info__ < fused_kernels.OLDEST_JAX, reason="the fused kernels need a newer JAX"
)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # two float32 computations of one number
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


class Sizes(NamedTuple):
    """Sizes of the axes of query, key and value. None means as many key heads as query heads."""

    batch: int = 2
    queries: int = 5
    keys: int = 7
    heads: int = 3
    width: int = 4
    value_width: int = 6
    key_heads: int | None = None


class Case(NamedTuple):
    """Variant with random arrays, and the keyword arguments of `oracles.attend` that match it."""

    variant: Variant
    oracle: dict[str, Any]


def random_arrays(seed: int, *shapes: tuple[int, ...], dtype="float64") -> list[jax.Array]:
    """Draw one array of standard normal numbers for each shape."""
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=shape), dtype) for shape in shapes]


def random_like(tree, seed: int, dtype="float64"):
    """Draw standard normal numbers in place of all arrays of a pytree."""
    leaves, structure = jax.tree.flatten(tree)
    return structure.unflatten(random_arrays(seed, *(x.shape for x in leaves), dtype=dtype))


def inputs(sizes: Sizes, dtype="float64", seed: int = 0) -> list[jax.Array]:
    """Draw a random query, key and value."""
    B, T, S, N, H, E, K = sizes
    K = K or N
    return random_arrays(seed, (B, T, N, H), (B, S, K, H), (B, S, K, E), dtype=dtype)


def dot_product(sizes: Sizes, dtype) -> Case:
    return Case(DotProduct(), oracles.dot_product())


def distance_aware(sizes, dtype, mapping="learnable_sigmoid", adjust="early_multiply") -> Case:
    N = sizes.heads
    weight, first, second = random_arrays(1, (N,), (N,), (N,), dtype=dtype)
    shape = {"learnable_sigmoid": first, "linear": (first, second), "clip": first[:1]}
    shape = shape.get(mapping, ())
    chosen = package.MAPPINGS[mapping], package.ADJUSTMENTS[adjust]
    return Case(
        DistanceAware(weight, shape, *chosen),
        oracles.distance_aware(weight, shape, mapping, adjust),
    )


def relative_position(sizes, dtype, k=2, keys="per head", values="per head") -> Case:
    """Draw tables of 2k+1 relations. `keys` and `values` are "per head", "shared" or None."""
    _, _, _, N, H, E, _ = sizes

    def table(seed, kind, width):
        shape = (N if kind == "per head" else 1, 2 * k + 1, width)
        return None if kind is None else random_arrays(seed, shape, dtype=dtype)[0]

    tables = table(2, keys, H), table(3, values, E)
    return Case(RelativePosition(*tables), oracles.relative_position(*tables))


def transformer_xl(sizes, dtype, shared=False) -> Case:
    N, H = sizes.heads, sizes.width
    biases = (1 if shared else N, H)
    leaves = random_arrays(4, (N, 6, H), biases, biases, dtype=dtype)
    return Case(TransformerXL(*leaves), oracles.transformer_xl(*leaves))


def adapted(sizes, dtype, shared=False) -> Case:
    biases = (1 if shared else sizes.heads, sizes.width)
    leaves = random_arrays(5, biases, biases, dtype=dtype)
    return Case(Adapted(*leaves), oracles.adapted(*leaves))


def distance_bias(sizes, dtype, function="kerple_log", shared=False) -> Case:
    """Draw positive parameters of an elementary function. `shared` shares them between heads."""
    heads = 1 if shared else sizes.heads
    first, second = (0.1 + jnp.abs(x) for x in random_arrays(6, (heads,), (heads,), dtype=dtype))
    pair = first, jnp.minimum(second, 1.9)
    parameters = {"alibi": first}.get(function, pair)
    oracle = oracles.distance_bias(getattr(oracles, function), *jax.tree.leaves(parameters))
    return Case(DistanceBias(parameters, function), oracle)


def t5_bias(sizes, dtype, is_causal=False) -> Case:
    (table,) = random_arrays(7, (sizes.heads, 8), dtype=dtype)

    def bias(relative, row):
        return row[oracles.t5_bucket(relative, 8, 6, is_causal)]

    function = T5Buckets(8, 6, is_causal)
    return Case(DistanceBias(table, function), oracles.distance_bias(bias, table))


def two_sided(
    sizes, dtype, mapping="learnable_sigmoid", bias=("constant", "kerple_log"), rectify=True
) -> Case:
    """Draw the parameters of both sides. `mapping` None means no factor."""
    weight, v, k, c, *positive = random_arrays(8, *[(sizes.heads, 2)] * 7, dtype=dtype)
    first, second, slope = (0.1 + jnp.abs(x) for x in positive)
    shape = {"learnable_sigmoid": v, "linear": (k, v)}.get(mapping, ())
    drawn = {"constant": c, "kerple_log": (first, second), "alibi": slope}
    weight = None if mapping is None else 0.3 * weight
    parameters = tuple(drawn[name] for name in bias)
    variant = TwoSided(
        weight, shape, parameters, bias, mapping or "learnable_sigmoid", rectify=rectify
    )
    biases = [(getattr(oracles, name), jax.tree.leaves(drawn[name])) for name in bias]
    oracle = oracles.two_sided(weight, jax.tree.leaves(shape), mapping, biases, rectify)
    return Case(variant, oracle)


VARIANTS = {
    "dot_product": dot_product,
    "distance_aware": distance_aware,
    "relative_position": relative_position,
    "transformer_xl": transformer_xl,
    "adapted": adapted,
    "distance_bias": distance_bias,
    "two_sided": two_sided,
}

ALL_FORMS = VARIANTS | {
    "relative_position_k0": functools.partial(relative_position, k=0),
    "relative_position_k9_shared": functools.partial(
        relative_position, k=9, keys="shared", values="shared"
    ),
    "relative_position_keys": functools.partial(relative_position, values=None),
    "relative_position_values": functools.partial(relative_position, keys=None),
    "relative_position_none": functools.partial(relative_position, keys=None, values=None),
    "transformer_xl_shared": functools.partial(transformer_xl, shared=True),
    "distance_bias_alibi": functools.partial(distance_bias, function="alibi"),
    "distance_bias_shared": functools.partial(distance_bias, function="kerple_power", shared=True),
    "distance_bias_t5": t5_bias,
    "distance_bias_t5_causal": functools.partial(t5_bias, is_causal=True),
    "adapted_shared": functools.partial(adapted, shared=True),
    "two_sided_bias": functools.partial(two_sided, mapping=None, bias=("alibi",), rectify=False),
    "two_sided_factor": functools.partial(two_sided, mapping="linear", bias=(), rectify=False),
    **{
        f"distance_aware_{mapping}_{adjust}": functools.partial(
            distance_aware, mapping=mapping, adjust=adjust
        )
        for mapping in package.MAPPINGS
        for adjust in package.ADJUSTMENTS
    },
}

IMPLEMENTATIONS = ("reference", "xla", "xla in stored blocks", "xla in recomputed blocks")


@contextlib.contextmanager
def select_implementation(name: str, monkeypatch):
    """Yield the value of the argument `implementation`.

    "in stored blocks" and "in recomputed blocks" force `xla` to compute blocks of 2 queries.
    """
    with monkeypatch.context() as patch:
        if "blocks" in name:
            patch.setattr(xla, "LARGEST_BLOCK", 1)
            patch.setattr(xla, "FEWEST_ROWS", 2)
            largest = 1 if "recomputed" in name else 2**40
            patch.setattr(xla, "LARGEST_MAP", largest)
        yield name.split()[0]


STATIC = ("is_causal", "implementation", "dropout_rate", "scale", "local_window_size")


def run_attention(variant, query, key, value, **arguments):
    """Run `attention` with all outputs, compiled once for each choice of static arguments."""
    static = tuple((name, arguments.pop(name)) for name in STATIC if name in arguments)
    thresholds = (xla.LARGEST_BLOCK, xla.FEWEST_ROWS, xla.LARGEST_MAP)
    return _compiled(static, thresholds)(query, key, value, variant, **arguments)


@functools.cache
def _compiled(static, thresholds):
    """Compile `attention`. `thresholds`, the limits of `xla`, are only part of the cache key."""
    return jax.jit(
        functools.partial(attention, received=True, weights=True, logsumexp=True, **dict(static))
    )
