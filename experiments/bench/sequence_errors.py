"""Compare attention over a sharded sequence with one device, in float64.

    JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 python -m experiments.bench.sequence_errors

Each variant is computed with each set of options in a ring of 2 x 4 devices (data x sequence) and
on one device. A line has the largest difference of all outputs and of all gradients, relative to
the largest number of the array.
"""

import argparse
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax.attention import ShardedSequence, attention
from experiments.bench.shapes import Shape
from experiments.bench.tpu_programs import VARIANTS
from experiments.bench.variants import two_sided

SIZES = Shape(batch=2, heads=4, length=32, width=8)
KEY_HEADS = 2, 4  # keys travel in the backward pass if they have 2 heads, otherwise queries
BAR = 1e-10
Options = dict[str, Any]


def make_options() -> dict[str, Options]:
    """Return sets of options by name. Together they contain all options of a ring."""
    draw = np.random.default_rng(0)
    batch, length = SIZES.batch, SIZES.length
    segments = np.sort(draw.integers(0, 3, (batch, length)))
    outputs = {"received": True, "logsumexp": True}
    dropout = {"dropout_rate": 0.3, "dropout_key": jax.random.key(1)}
    return {
        "all keys, dropout, received": outputs | dropout,
        "causal, lengths, mask of pairs": {
            "is_causal": True,
            "query_lengths": np.asarray([27, 32]),
            "key_lengths": np.asarray([11, 23]),
            "mask": draw.random((1, SIZES.heads, length, length)) < 0.8,
            "logsumexp": True,
        },
        "window, segments, mask of keys, dropout": {
            "local_window_size": (7, 3),
            "query_segments": segments,
            "key_segments": segments,
            "mask": draw.random((batch, 1, 1, length)) < 0.6,
            **dropout,
        },
        "offset, scale, mask of queries, received": {
            "query_offset": np.asarray([9, -2]),
            "scale": 0.3,
            "mask": draw.random((1, SIZES.heads, length, 1)) < 0.6,
            **outputs,
        },
    }


def measure_error(
    make_variant: Callable[..., Any], key_heads: int, options: Options, mesh: jax.sharding.Mesh
) -> float:
    """Return the largest relative difference of all outputs and gradients."""
    variant = jax.tree.map(lambda x: x.astype(jnp.float64), make_variant(SIZES, jax.random.key(0)))
    heads = SIZES.heads, key_heads, key_heads
    arrays = [
        jax.random.normal(key, (SIZES.batch, SIZES.length, n, SIZES.width), jnp.float64)
        for key, n in zip(jax.random.split(jax.random.key(2), 3), heads, strict=True)
    ]
    place = NamedSharding(mesh, PartitionSpec("data", "sequence"))

    def loss(*inputs: Any, sequence: ShardedSequence | None) -> Any:
        outputs = attention(*inputs, sequence=sequence, **options)
        finite = [jnp.where(jnp.isfinite(x), x, 0) for x in jax.tree.leaves(outputs)]
        return sum(jnp.sin(x).sum() for x in finite), finite

    def run(inputs: Any, sequence: ShardedSequence | None) -> Any:
        program = jax.grad(functools.partial(loss, sequence=sequence), (0, 1, 2, 3), has_aux=True)
        return jax.tree.leaves(jax.device_get(jax.jit(program)(*inputs, variant)))

    expected = run(arrays, None)
    actual = run(jax.device_put(arrays, place), ShardedSequence(strategy="ring"))
    return max(
        np.abs(x - y).max() / max(np.abs(y).max(), 1) for x, y in zip(actual, expected, strict=True)
    )


def main() -> None:
    """Print one line for each variant and set of options."""
    variants = VARIANTS | {"two_sided": two_sided}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=tuple(variants), default=tuple(variants))
    names = parser.parse_args().variants
    axes = ("data", "sequence")
    mesh = jax.make_mesh((2, jax.device_count() // 2), axes, axis_types=(AxisType.Explicit,) * 2)
    errors = []
    with jax.enable_x64(True):
        for name in names:
            for (options, values), count in itertools.product(make_options().items(), KEY_HEADS):
                errors.append(measure_error(variants[name], count, values, mesh))
                print(f"{name}, {options}, {count} key heads: {errors[-1]:.1e}", flush=True)
    verdict = "all at most" if max(errors) <= BAR else "NOT all at most"
    print(f"{len(errors)} comparisons, {verdict} {BAR}; the largest is {max(errors):.1e}")


if __name__ == "__main__":
    main()
