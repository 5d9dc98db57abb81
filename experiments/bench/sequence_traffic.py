"""Count what the devices of a sharded sequence send and compute, for the table in docs/devices.md.

    JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8 python -m experiments.bench.sequence_traffic

Bytes and steps are read from the traced program of a call and its gradients, and tiles are counted
while the schedule of each block is made. No attention is computed, so that a CPU is enough: zeros
take the place of the outputs of kernels. The kernels are those of JAX 0.11 or newer.
"""

import collections
import functools
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from distattn_jax.attention import (
    DotProduct,
    ShardedSequence,
    TwoSided,
    Variant,
    attention,
    explain_implementation,
)
from distattn_jax.attention.fused import derivative
from distattn_jax.attention.fused.schedule import CallSchedules, TileSizes
from experiments.bench import variants
from experiments.bench.cases import make_sequence_mesh
from experiments.bench.shapes import Shape
from experiments.bench.variants import LOCAL
from experiments.papers.formatting import markdown_table

LENGTHS = (8192, 32768)
HEADS, WIDTH = 8, 64
TILE = TileSizes(block_rows=128, columns=128)
SENT = ("ppermute", "all_gather")  # operations that send keys, values, their sums and gradients


class Call(NamedTuple):
    """Attention over a sequence that all devices share.

    Attributes:
      variant: Attention variant.
      options: Further arguments of `attention`.
      branch: Branch of the program that runs, if the parameters of the variant decide: 0 sends the
        fewest near keys (see `attention.near_keys`), and -1 is the ring.
      key_heads: Number of heads of keys and values.
    """

    variant: Variant
    options: dict[str, Any]
    branch: int = -1
    key_heads: int = HEADS


def make_calls(length: int, devices: int) -> dict[str, Call]:
    """Return the calls of the table by name."""
    sizes = Shape(1, HEADS, length, WIDTH)
    local = variants.distance_aware(sizes, jax.random.key(0), weights=(LOCAL, LOCAL))
    falling = TwoSided(None, (), (jnp.ones((HEADS, 2)),), ("alibi",))
    shard = length // devices
    return {
        "all keys": Call(DotProduct(), {}),
        "all keys, 2 key heads": Call(DotProduct(), {}, key_heads=2),
        "causal": Call(DotProduct(), {"is_causal": True}),
        "window of one shard on both sides": Call(DotProduct(), {"local_window_size": shard}),
        "window of one shard before the query": Call(
            DotProduct(), {"local_window_size": shard, "is_causal": True}
        ),
        "all heads local": Call(local, {}, branch=0),
        "all heads forget": Call(falling, {}, branch=0),
    }


def count_steps(call: Call, length: int, mesh: Mesh) -> int:
    """Return the number of blocks of keys that each device attends to."""
    if call.branch >= 0:
        return 1
    query, key, value = _make_types(length, mesh, call.key_heads)
    with jax.set_mesh(mesh):
        explanation = explain_implementation(query, key, value, call.variant, **_options(call))
    plan = explanation.sequence
    assert plan is not None, "the mesh shards the sequence"
    return plan.steps


def count_sent_bytes(call: Call, length: int, mesh: Mesh, *, backward: bool) -> int:
    """Return the bytes that a device sends in the forward pass, or in both passes.

    Args:
      call: Call of attention.
      length: Number of queries, which is also the number of keys.
      mesh: Devices, with the axis `sequence`.
      backward: If True, include the backward pass.
    """

    def attend(query: Any, key: Any, value: Any, variant: Variant) -> Any:
        values = attention(query, key, value, variant, **_options(call)).values
        return values.astype(jnp.float32).sum()

    program = jax.grad(attend, (0, 1, 2, 3)) if backward else attend
    with jax.set_mesh(mesh), mock.patch.object(derivative, "fused_attention", _return_zeros):
        traced = jax.make_jaxpr(program)(*_make_types(length, mesh, call.key_heads), call.variant)
    return _count_bytes(traced.jaxpr, call.branch)


def _count_bytes(jaxpr: Any, branch: int) -> int:
    """Return the bytes that a program sends. `branch` is the branch that runs, if they differ."""
    total = 0
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, _list_jaxprs(equation)
        counts = [_count_bytes(each, branch) for each in inner]
        if name.startswith(SENT):
            total += sum(x.aval.size * x.aval.dtype.itemsize for x in equation.outvars)
        elif name == "cond":
            total += counts[0] if len(set(counts)) == 1 else counts[branch]
        else:
            total += sum(counts) * equation.params.get("length", 1)  # steps of a loop
    return total


def _list_jaxprs(equation: Any) -> list[Any]:
    """Return the programs that an equation calls."""
    found = []
    for parameter in equation.params.values():
        for each in parameter if isinstance(parameter, tuple | list) else (parameter,):
            each = getattr(each, "jaxpr", each)
            found += [each] if hasattr(each, "eqns") else []
    return found


def count_tiles(call: Call, length: int, mesh: Mesh) -> list[int]:
    """Return the number of tiles of the score map that each device computes in the forward pass."""
    counts: collections.Counter[int] = collections.Counter()

    def count(make_kernels: Any, plan: Any, operands: Any) -> derivative.Outputs:
        schedule = CallSchedules(plan, operands).blocks(TILE)
        tiles = (schedule.end - schedule.start)[0, 0].sum()
        jax.debug.callback(
            lambda device, tiles: counts.update({int(device): int(tiles)}),
            lax.axis_index("sequence"),
            tiles,
        )
        return _return_zeros(make_kernels, plan, operands)

    one_head = _make_types(length, mesh, key_heads=1, heads=1)
    arrays = [jnp.zeros(x.shape, x.dtype, device=x.sharding) for x in one_head]
    call = call._replace(options=call.options | {"implementation": "pallas"})
    with jax.set_mesh(mesh), mock.patch.object(derivative, "fused_attention", count):
        outputs = jax.jit(functools.partial(attention, **_options(call)))(*arrays, call.variant)
        jax.block_until_ready(outputs)
        jax.effects_barrier()
    return [counts[device] for device in range(mesh.shape["sequence"])]


def _return_zeros(make_kernels: Any, plan: Any, operands: Any) -> derivative.Outputs:
    """Return outputs of `derivative.fused_attention` in the right shapes, without kernels."""
    batch, queries, heads, _ = operands.query.shape
    values = jnp.zeros((batch, queries, heads, operands.value.shape[-1]), operands.value.dtype)
    return derivative.Outputs(values, None, jnp.zeros((batch, heads, queries)))


def _options(call: Call) -> dict[str, Any]:
    return call.options | {"sequence": ShardedSequence(strategy="ring")}


def _make_types(
    length: int, mesh: Mesh, key_heads: int, heads: int = HEADS
) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes, dtypes and shardings of query, key and value."""
    place = NamedSharding(mesh, PartitionSpec(None, "sequence"))
    return [
        jax.ShapeDtypeStruct((1, length, count, WIDTH), jnp.bfloat16, sharding=place)
        for count in (heads, key_heads, key_heads)
    ]


def main() -> None:
    """Print the table."""
    devices = jax.device_count()
    mesh = make_sequence_mesh()
    rows = []
    for length in LENGTHS:
        for name, call in make_calls(length, devices).items():
            sent = [
                count_sent_bytes(call, length, mesh, backward=backward) / 2**20
                for backward in (False, True)
            ]
            balance = "-"
            if call.branch < 0:
                tiles = count_tiles(call, length, mesh)
                balance = f"{max(tiles) * devices / sum(tiles):.2f}"
            steps = count_steps(call, length, mesh)
            rows.append([f"{name}, {length:,}", str(steps), *(f"{x:.1f}" for x in sent), balance])
    header = ["call, tokens", "steps", "MiB sent, forward", "and backward", "largest / mean tiles"]
    print(markdown_table(header, rows))


if __name__ == "__main__":
    main()
