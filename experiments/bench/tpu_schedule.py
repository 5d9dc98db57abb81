"""Compile the TPU kernels without a TPU, and print the scheduled bundles per tile.

The compiler for TPUs runs on every x86_64 machine with Linux, after `pip install '.[tpu]'`:

    python -m experiments.bench.tpu_schedule distance_aware --generation v5e --tile 512
    python -m experiments.bench.tpu_schedule splash --generation v5e --tile 512

A bundle is one instruction of a TPU, which starts several operations. Each section of tiles is one
loop of a kernel, and one iteration of this loop computes one tile. The printed numbers count the
bundles of one iteration, as the compiler schedules them. They contain neither stalls nor the time
of copies, so that they are no measurement of speed. Compare them with those of splash attention,
the kernel of JAX for dot products, at equal sizes.
"""

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from distattn_jax.attention import (
    DistanceAware,
    DistanceBias,
    DotProduct,
    attention,
    early_multiply,
    learnable_sigmoid,
)
from distattn_jax.attention.fused.tpu import tile_configs

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
CASES = ("dot_product", "distance_aware", "alibi", "kerple_log", "splash")
HEADS = 2
KERNELS = ("forward", "query_gradient", "key_gradient", "received", "attention_given", "splash")
DUMP_FLAGS = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_emit_annotations=true"
BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(LB)?[A-Z ]*:\s*(>*)\s*\{")


def make_variant(case: str, make_array: Callable[..., Any]) -> Any:
    """Return the variant of a case, with arrays or types of arrays.

    Args:
      case: Name of an entry of `CASES`.
      make_array: Returns an array or a type of an array, given its shape and dtype.
    """
    numbers = make_array((HEADS,), jnp.float32)
    return {
        "dot_product": DotProduct(),
        "distance_aware": DistanceAware(
            numbers, numbers, learnable_sigmoid, early_multiply, tolerance=None
        ),
        "alibi": DistanceBias(numbers, "alibi"),
        "kerple_log": DistanceBias((numbers, numbers), "kerple_log"),
    }[case]


def compile_case(case: str, generation: str, width: int, length: int, tile: int) -> Any:
    """Compile the forward and backward pass of one example with two heads in bfloat16.

    Args:
      case: Name of an entry of `CASES`.
      generation: Generation of the TPU, a key of `TOPOLOGIES`.
      width: Width of the heads.
      length: Number of queries and of keys.
      tile: Number of queries and of keys of a tile.
    """
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[generation])
    sharding = SingleDeviceSharding(topology.devices[0])

    def make_type(shape: tuple[int, ...], dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    arguments: tuple[Any, ...]
    if case == "splash":
        attend = _make_splash_attention(length, tile)
        arguments = (make_type((HEADS, length, width)),) * 3
    else:
        tile_configs.LARGEST = tile
        rows = make_type((1, length, HEADS, width))
        arguments = (rows, rows, rows, make_variant(case, make_type))

        def attend(*arguments):
            return attention(*arguments).values

    def loss(*arguments):
        return jnp.sin(attend(*arguments).astype(jnp.float32)).sum()

    gradients = jax.jit(jax.grad(loss, tuple(range(len(arguments)))))
    return gradients.trace(*arguments).lower(lowering_platforms=("tpu",)).compile()


def _make_splash_attention(length: int, tile: int) -> Callable[..., jax.Array]:
    """Return splash attention without a mask, with separate kernels for all gradients."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask

    names = ["block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv"]
    names += ["block_kv_dkv_compute", "block_q_dq", "block_kv_dq"]
    sizes: dict[str, Any] = dict.fromkeys(names, tile)
    return kernel.make_splash_mha_single_device(
        mask.MultiHeadMask([mask.FullMask((length, length))] * HEADS),
        block_sizes=kernel.BlockSizes(**sizes),
    )


def count_bundles(schedule: str) -> list[int]:
    """Return the number of bundles in each innermost loop, from a schedule of the compiler.

    Each line of a schedule is one bundle. It has one ">" for each loop that contains the bundle,
    and a loop begins at the label LB. Empty bundles have no ">": they belong to the loop before.
    """
    loops: list[dict[str, Any]] = []
    open_loops: list[dict[str, Any]] = []
    for line in schedule.splitlines():
        match = BUNDLE.match(line)
        if match is None:
            continue
        is_start, depth = match[1] is not None, len(match[2])
        while open_loops and 0 < depth < open_loops[-1]["depth"] + is_start:
            open_loops.pop()
        if is_start:
            for loop in open_loops:
                loop["is_innermost"] = False
            loops.append({"depth": depth, "bundles": 0, "is_innermost": True})
            open_loops.append(loops[-1])
        if open_loops:
            open_loops[-1]["bundles"] += 1
    return [loop["bundles"] for loop in loops if loop["is_innermost"]]


def read_schedules(folder: Path) -> dict[str, list[int]]:
    """Return the bundles of the innermost loops of each kernel, from the dump of the compiler."""
    counts = {}
    for path in sorted(folder.glob("*-final_bundles.txt")):
        match = re.fullmatch(r"\d+-(.+)-\d+-final_bundles\.txt", path.name)
        if match and match[1].startswith(KERNELS):
            counts[match[1]] = count_bundles(path.read_text())
    return counts


def main() -> None:
    """Compile one case and print the bundles of each loop of its kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--generation", choices=TOPOLOGIES, default="v5e")
    parser.add_argument("--width", type=int, default=128, help="width of the heads")
    parser.add_argument("--length", type=int, default=2048, help="number of queries and keys")
    parser.add_argument("--tile", type=int, default=512, help="queries and keys of a tile")
    options = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as folder:
        flags = (os.environ.get("LIBTPU_INIT_ARGS", ""), DUMP_FLAGS.format(folder))
        os.environ["LIBTPU_INIT_ARGS"] = " ".join(flags)
        start = time.perf_counter()
        compiled = compile_case(**options)
        seconds = time.perf_counter() - start
        counts = read_schedules(Path(folder))
    megabytes = compiled.memory_analysis().temp_size_in_bytes / 2**20
    print(" ".join(f"{name}={value}" for name, value in options.items()))
    print(f"compiled in {seconds:.0f} s; temporary memory {megabytes:.1f} MiB")
    print("Scheduled bundles per tile, one number for each section of tiles:")
    for kernel, bundles in counts.items():
        print(f"  {kernel:20} {', '.join(map(str, bundles))}")


class _Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Formatter that keeps the lines of the description and prints the defaults of the options."""


if __name__ == "__main__":
    main()
