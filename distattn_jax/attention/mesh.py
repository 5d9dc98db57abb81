"""Kernels under a mesh: they do not partition themselves, so each device gets its own part.

Batch and heads are what can be parted. Which axes of the mesh do it, an array says itself under
Explicit axes. Under Auto axes it does not: there axes with a name in HEAD_AXES part the heads, and
all others the batch; a wrong guess costs moving data, not correctness.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array

from distattn_jax.attention.fused import Operands, varying

HEAD_AXES = ("model", "heads", "tensor", "tp")
Names = str | tuple[str, ...] | None


def over_parts(
    attend: Callable[[Operands], tuple[Array, Array | None]], operands: Operands
) -> tuple[Array, Array | None]:
    """`attend` by each device on its part of the operands."""
    mesh = jax.typeof(operands.query).sharding.mesh
    if mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or set(mesh.axis_types) == {AxisType.Manual}:
        return attend(varying.mark_varying(operands, varying.varying_axes(operands)))
    specs = specs_of(mesh, operands)
    if AxisType.Explicit in mesh.axis_types:
        operands = jax.tree.map(
            lambda array, spec: reshard(array, NamedSharding(mesh, spec)), operands, specs
        )
    query, received = specs.query, PartitionSpec(*specs.coefficients[:2])
    return jax.shard_map(
        attend,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=(query, received),
        check_vma=False,
    )(operands)


def is_partly_manual() -> bool:
    """Whether this is inside of a shard_map over some of the axes only."""
    types = set(jax.sharding.get_abstract_mesh().axis_types)
    return AxisType.Manual in types and len(types) > 1


def specs_of(mesh: AbstractMesh, operands: Operands) -> Any:
    """How each operand lies on the mesh: its batch and its heads as those of the query."""
    batch, heads = _axes(mesh, operands.query)
    matrix, number = PartitionSpec(batch, None, heads), PartitionSpec(batch, heads)
    specs: dict[str, Any] = {
        **dict.fromkeys(("query", "key", "value"), matrix),
        **dict.fromkeys(("coefficients", "dropout_words", "dropout_scale"), number),
        **dict.fromkeys(("query_lengths", "key_lengths", "offset"), PartitionSpec(batch)),
    }
    given = {name: spec for name, spec in specs.items() if getattr(operands, name) is not None}
    return Operands(**given)


def _axes(mesh: AbstractMesh, query: Array) -> tuple[Names, Names]:
    """The axes that part the batch, and those that part the heads."""
    spec = jax.typeof(query).sharding.spec
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    found = []
    for size, given, wanted in ((query.shape[0], spec[0], False), (query.shape[2], spec[2], True)):
        names = list(given) if isinstance(given, tuple) else [given] if given else []
        for name, kind in types.items():
            share = math.prod(mesh.shape[each] for each in (*names, name))
            if kind == AxisType.Auto and (name in HEAD_AXES) == wanted and size % share == 0:
                names.append(name)
        found.append(tuple(names) or None)
    return found[0], found[1]
