"""Random inputs, the variants with their oracles, and the implementations, for all tests here."""

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
    DotProduct,
    RelativePosition,
    TransformerXL,
    Variant,
    attention,
    pallas,
    xla,
)
from tests import oracles

needs_kernels = pytest.mark.skipif(
    jax.__version_info__ < pallas.OLDEST_JAX, reason="the fused kernels need a newer JAX"
)
TOLERANCE = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


class Sizes(NamedTuple):
    batch: int = 2
    queries: int = 5
    keys: int = 7
    heads: int = 3
    width: int = 4
    value_width: int = 6


class Drawn(NamedTuple):
    """A variant, and the arguments that make its oracle."""

    variant: Variant
    oracle: dict[str, Any]


def arrays(seed: int, *shapes: tuple[int, ...], dtype="float64") -> list[jax.Array]:
    generator = np.random.default_rng(seed)
    return [jnp.asarray(generator.normal(size=shape), dtype) for shape in shapes]


def inputs(sizes: Sizes, dtype="float64", seed: int = 0) -> list[jax.Array]:
    B, T, S, N, H, E = sizes
    return arrays(seed, (B, T, N, H), (B, S, N, H), (B, S, N, E), dtype=dtype)


def dot_product(sizes: Sizes, dtype) -> Drawn:
    return Drawn(DotProduct(), oracles.dot_product())


def distance_aware(sizes, dtype, mapping="learnable_sigmoid", adjust="early_multiply") -> Drawn:
    N = sizes.heads
    weight, first, second = arrays(1, (N,), (N,), (N,), dtype=dtype)
    shape = {"learnable_sigmoid": first, "linear": (first, second), "clip": first[:1]}
    shape = shape.get(mapping, ())
    chosen = package.MAPPINGS[mapping], package.ADJUSTMENTS[adjust]
    return Drawn(
        DistanceAware(weight, shape, *chosen),
        oracles.distance_aware(weight, shape, mapping, adjust),
    )


def relative_position(sizes, dtype, k=2, keys=1, values=1) -> Drawn:
    """`keys` and `values`: 1 per head, 0 shared by all, None absent."""
    _, _, _, N, H, E = sizes

    def table(seed, kind, width):
        if kind is None:
            return None
        return arrays(seed, (N if kind else 1, 2 * k + 1, width), dtype=dtype)[0]

    tables = table(2, keys, H), table(3, values, E)
    return Drawn(RelativePosition(*tables), oracles.relative_position(*tables))


def transformer_xl(sizes, dtype, shared=False) -> Drawn:
    N, H = sizes.heads, sizes.width
    biases = (1 if shared else N, H)
    leaves = arrays(4, (N, 6, H), biases, biases, dtype=dtype)
    return Drawn(TransformerXL(*leaves), oracles.transformer_xl(*leaves))


def adapted(sizes, dtype, shared=False) -> Drawn:
    biases = (1 if shared else sizes.heads, sizes.width)
    leaves = arrays(5, biases, biases, dtype=dtype)
    return Drawn(Adapted(*leaves), oracles.adapted(*leaves))


ONE_OF_EACH = {
    "dot_product": dot_product,
    "distance_aware": distance_aware,
    "relative_position": relative_position,
    "transformer_xl": transformer_xl,
    "adapted": adapted,
}

ALL = ONE_OF_EACH | {
    "relative_position_k0": functools.partial(relative_position, k=0),
    "relative_position_k9_shared": functools.partial(relative_position, k=9, keys=0, values=0),
    "relative_position_keys": functools.partial(relative_position, values=None),
    "relative_position_values": functools.partial(relative_position, keys=None),
    "relative_position_none": functools.partial(relative_position, keys=None, values=None),
    "transformer_xl_shared": functools.partial(transformer_xl, shared=True),
    "adapted_shared": functools.partial(adapted, shared=True),
    **{
        f"distance_aware_{mapping}_{adjust}": functools.partial(
            distance_aware, mapping=mapping, adjust=adjust
        )
        for mapping in package.MAPPINGS
        for adjust in package.ADJUSTMENTS
    },
}

IMPLEMENTATIONS = ("reference", "xla", "xla in kept blocks", "xla in recomputed blocks")


@contextlib.contextmanager
def computed_by(name: str, monkeypatch):
    """The implementation's name for `attention`, with blocks of 2 queries where asked for."""
    with monkeypatch.context() as patch:
        if "blocks" in name:
            patch.setattr(xla, "LARGEST_BLOCK", 1)
            patch.setattr(xla, "FEWEST_ROWS", 2)
            largest = 1 if "recomputed" in name else 2**40
            patch.setattr(xla, "LARGEST_MAP", largest)
        yield name.split()[0]


STATIC = ("is_causal", "implementation", "dropout_rate")


def run(variant, query, key, value, **arguments):
    """`attention` with all outputs, compiled once for each choice of what is static."""
    static = tuple((name, arguments.pop(name)) for name in STATIC if name in arguments)
    thresholds = (
        xla.LARGEST_BLOCK,
        xla.FEWEST_ROWS,
        xla.LARGEST_MAP,
    )
    return _compiled(static, thresholds)(query, key, value, variant, **arguments)


@functools.cache
def _compiled(static, thresholds):
    return jax.jit(functools.partial(attention, received=True, weights=True, **dict(static)))
