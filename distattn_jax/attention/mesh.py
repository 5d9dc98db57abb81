"""Fused kernels on a mesh of devices: a `shard_map` over batch and heads.

XLA cannot partition a Pallas kernel, so each device runs the kernels on its own examples and heads.
With Explicit axes, the sharding of the query names the mesh axes of batch and heads. With Auto
axes, the sharding of the query is unknown while tracing. The axes named in `HEAD_AXES` then shard
the heads, and all other axes shard the batch. If the query is in fact sharded differently, data
move between devices, but the result is correct.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array

from distattn_jax.attention.fused import Operands, varying
from distattn_jax.attention.fused.derivative import Outputs

HEAD_AXES = ("model", "heads", "tensor", "tp")
AxisNames = tuple[str, ...] | None


def run_sharded(attend: Callable[[Operands], Outputs], operands: Operands) -> Outputs:
    """Run `attend` on each device with its own shard of the operands, and return its outputs.

    Args:
      attend: Computes fused attention.
      operands: Arrays of the call.
    """
    mesh = jax.typeof(operands.query).sharding.mesh
    if mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or set(mesh.axis_types) == {AxisType.Manual}:
        return attend(varying.mark_varying(operands, varying.varying_axes(operands)))
    specs = operand_specs(mesh, operands)
    axes = specs.query[2] or ()
    shards = math.prod(mesh.shape[name] for name in ((axes,) if isinstance(axes, str) else axes))
    if operands.key.shape[2] % shards:  # Devices cannot share a key head, so each gets a copy.
        operands = _repeat_key_heads(operands)
    if AxisType.Explicit in mesh.axis_types:
        operands = jax.tree.map(
            lambda array, spec: reshard(array, NamedSharding(mesh, spec)), operands, specs
        )
    per_head: Any = PartitionSpec(*specs.coefficients[:2])
    return jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=Outputs(specs.query, per_head, per_head),
        check_vma=False,
    )(operands)


def _repeat_key_heads(operands: Operands) -> Operands:
    """Return operands with a copy of the keys and values for each query head."""
    group_size = operands.query.shape[2] // operands.key.shape[2]
    key, value = (jnp.repeat(x, group_size, axis=2) for x in (operands.key, operands.value))
    return operands._replace(key=key, value=value)


def is_partly_manual() -> bool:
    """Return True inside a `shard_map` over some, but not all, axes of the mesh."""
    types = set(jax.sharding.get_abstract_mesh().axis_types)
    return AxisType.Manual in types and len(types) > 1


def operand_specs(mesh: AbstractMesh, operands: Operands) -> Any:
    """Return the partition spec of each operand: batch and heads are sharded as in the query."""
    batch, heads = _batch_and_head_axes(mesh, operands.query)
    per_row, per_head = PartitionSpec(batch, None, heads), PartitionSpec(batch, heads)
    specs: dict[str, Any] = {
        **dict.fromkeys(("query", "key", "value", "position_query"), per_row),
        **dict.fromkeys(("coefficients", "dropout_words", "dropout_scale"), per_head),
        **dict.fromkeys(("query_lengths", "key_lengths", "offset"), PartitionSpec(batch)),
        **dict.fromkeys(("query_segments", "key_segments"), PartitionSpec(batch)),
    }
    specs["tables"] = (per_head,) * len(operands.tables)
    for name in ("key_mask", "query_mask", "mask"):
        array = getattr(operands, name)
        if array is not None:
            is_shared = [size == 1 for size in array.shape[:2]]
            specs[name] = PartitionSpec(
                None if is_shared[0] else batch, None if is_shared[1] else heads
            )
    for name in ("key_table", "value_table", "relation_bias"):  # Heads may share a table.
        table = getattr(operands, name)
        if table is not None:
            specs[name] = PartitionSpec(None if table.shape[0] == 1 else heads)
    if operands.positions is not None:  # Examples or heads may share the position vectors.
        is_shared = [operands.positions.shape[axis] == 1 for axis in (0, 2)]
        specs["positions"] = PartitionSpec(
            None if is_shared[0] else batch, None, None if is_shared[1] else heads
        )
    present = {name: spec for name, spec in specs.items() if getattr(operands, name) is not None}
    return Operands(**present)


def _batch_and_head_axes(mesh: AbstractMesh, query: Array) -> tuple[AxisNames, AxisNames]:
    """Return the mesh axes that shard the batch, and the mesh axes that shard the heads."""
    spec = jax.typeof(query).sharding.spec
    return (
        _dimension_axes(mesh, query.shape[0], spec[0], is_heads=False),
        _dimension_axes(mesh, query.shape[2], spec[2], is_heads=True),
    )


def _dimension_axes(
    mesh: AbstractMesh, size: int, spec: str | tuple[str, ...] | None, *, is_heads: bool
) -> AxisNames:
    """Return the mesh axes that shard a dimension of the query, or None if there are no such axes.

    Args:
      mesh: Mesh of the devices.
      size: Size of the dimension.
      spec: Mesh axes of the dimension in the sharding of the query.
      is_heads: True for the head dimension, False for the batch dimension.
    """
    names = list(spec) if isinstance(spec, tuple) else [spec] if spec else []
    for name, axis_type in zip(mesh.axis_names, mesh.axis_types, strict=True):
        shards = math.prod(mesh.shape[each] for each in (*names, name))
        is_candidate = axis_type == AxisType.Auto and (name in HEAD_AXES) == is_heads
        if is_candidate and size % shards == 0:
            names.append(name)
    return tuple(names) or None
