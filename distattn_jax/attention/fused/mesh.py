"""Fused kernels on a mesh of devices: a `shard_map` over batch and heads.

XLA cannot partition a Pallas kernel, so each device runs the kernels on its own examples and heads.
With Explicit axes, the sharding of the query names the mesh axes of batch and heads. With Auto
axes, the sharding of the query is unknown while tracing. The axes named in `HEAD_AXES` then shard
the heads, and all other axes shard the batch. If the query is in fact sharded differently, data
move between devices, but the result is correct.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array

from distattn_jax.attention.fused import varying
from distattn_jax.attention.fused.attend import Inputs
from distattn_jax.attention.fused.derivative import Outputs

HEAD_AXES = ("model", "heads", "tensor", "tp")
AxisNames = tuple[str, ...] | None
Call = TypeVar("Call", bound=Any)


def run_sharded(attend: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
    """Run `attend` on each device, with the examples and heads that the device has.

    Return the outputs of all devices as global arrays.
    """
    mesh = jax.typeof(inputs.query).sharding.mesh
    if mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or set(mesh.axis_types) == {AxisType.Manual}:
        return attend(varying.mark_varying(inputs, varying.varying_axes(inputs)))
    specs = input_specs(mesh, inputs)
    inputs = repeat_key_heads(inputs, count_shards(mesh, specs.query[2]))
    inputs = reshard_explicit(inputs, mesh, specs)
    per_head: Any = PartitionSpec(specs.query[0], specs.query[2])
    return jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=Outputs(specs.query, per_head, per_head),
        check_vma=False,
    )(inputs)


def count_shards(mesh: AbstractMesh, axes: str | AxisNames) -> int:
    """Return the number of shards of an array axis that is sharded over mesh axes."""
    return math.prod(
        mesh.shape[name] for name in ((axes,) if isinstance(axes, str) else axes or ())
    )


def repeat_key_heads(inputs: Call, shards: int) -> Call:
    """Repeat key heads until `shards` divides their number: devices cannot share a key head.

    Args:
      inputs: Tuple with the attributes `query`, `key` and `value`.
      shards: Number of shards of the query heads.
    """
    heads = inputs.key.shape[2]
    copies = math.lcm(heads, shards) // heads
    if copies == 1:
        return inputs
    key, value = (jnp.repeat(x, copies, axis=2) for x in (inputs.key, inputs.value))
    return inputs._replace(key=key, value=value)


def reshard_explicit(inputs: Call, mesh: AbstractMesh, specs: Any) -> Call:
    """Shard arrays as the partition specs say, if the mesh has Explicit axes.

    Such a mesh requires it before a `shard_map`. With Auto axes, return the arrays unchanged.
    """
    if AxisType.Explicit not in mesh.axis_types:
        return inputs
    return jax.tree.map(
        lambda array, spec: reshard(array, NamedSharding(mesh, spec)), inputs, specs
    )


def is_partly_manual() -> bool:
    """Return True inside a `shard_map` over some, but not all, axes of the mesh."""
    types = set(jax.sharding.get_abstract_mesh().axis_types)
    return AxisType.Manual in types and len(types) > 1


def input_specs(mesh: AbstractMesh, inputs: Inputs) -> Any:
    """Return `Inputs` that contains a partition spec in place of each array.

    Batch and heads of each array are sharded as in the query. If a batch or head axis has size 1,
    all examples or heads share the array. This axis is not sharded: each device gets a copy.
    """
    batch, heads = batch_and_head_axes(mesh, inputs.query)

    def make_spec(array: Array, *names: AxisNames) -> PartitionSpec:
        return PartitionSpec(
            *(None if size == 1 else name for size, name in zip(array.shape, names, strict=False))
        )

    per_head = ("mask", "dropout_words", "dropout_scale")
    specs: dict[str, Any] = {
        name: make_spec(array, batch, heads if name in per_head else None)
        for name, array in inputs._asdict().items()
        if name != "variant" and array is not None
    }
    specs |= dict.fromkeys(("query", "key", "value"), PartitionSpec(batch, None, heads))
    variant = jax.tree.map(lambda leaf: make_spec(leaf, heads), inputs.variant)
    return Inputs(variant=variant, **specs)


def batch_and_head_axes(
    mesh: AbstractMesh, query: Array, reserved: tuple[str, ...] = ()
) -> tuple[AxisNames, AxisNames]:
    """Return the mesh axes that shard the batch, and the mesh axes that shard the heads.

    Args:
      mesh: Mesh of the devices.
      query: Queries.
      reserved: Mesh axes that shard something else.
    """
    spec = jax.typeof(query).sharding.spec
    return (
        _dimension_axes(mesh, query.shape[0], spec[0], reserved, is_heads=False),
        _dimension_axes(mesh, query.shape[2], spec[2], reserved, is_heads=True),
    )


def _dimension_axes(
    mesh: AbstractMesh,
    size: int,
    spec: str | tuple[str, ...] | None,
    reserved: tuple[str, ...],
    *,
    is_heads: bool,
) -> AxisNames:
    """Return the mesh axes that shard a dimension of the query, or None if there are no such axes.

    These are the axes in `spec`, and the axes of type Auto that are chosen here. The axes named in
    `HEAD_AXES` are for the heads, and all others are for the batch. An Auto axis is chosen only if
    the number of shards divides `size`.

    Args:
      mesh: Mesh of the devices.
      size: Size of the dimension.
      spec: Mesh axes of the dimension in the sharding of the query.
      reserved: Mesh axes that are not chosen.
      is_heads: True for the head dimension, False for the batch dimension.
    """
    names = list(spec) if isinstance(spec, tuple) else [spec] if spec else []
    for name, axis_type in zip(mesh.axis_names, mesh.axis_types, strict=True):
        shards = math.prod(mesh.shape[each] for each in (*names, name))
        is_candidate = axis_type == AxisType.Auto and (name in HEAD_AXES) == is_heads
        if is_candidate and name not in reserved and size % shards == 0:
            names.append(name)
    return tuple(names) or None
