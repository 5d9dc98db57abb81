"""Map a function of one head over all heads and examples with nested vmaps.

One vmap maps the batch, and one vmap inside of it maps the heads. If several query heads share a
key head (a group), the axis of the N query heads is split into K key heads and N/K heads per group,
and a third vmap maps the heads of a group.

An array that all heads or all examples share has a head or batch axis of size 1. This axis is
removed and not mapped, so that the array is not copied. Under a mesh with Explicit axes, `vmap`
requires that all mapped arrays are sharded alike, so all arrays are first resharded like the query.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array

from distattn_jax.attention.arguments import Attended, AttentionCall, Head
from distattn_jax.attention.dropout import Dropout

# Axis of the heads in the outputs of one example.
OUTPUT_HEAD_AXES = Attended(values=1, received=0, weights=0, logsumexp=0)  # type: ignore[arg-type]


class _Argument(NamedTuple):
    """One array of an attention call, with the axes over which the three nested vmaps map it.

    Attributes:
      array: The array, or None if the argument was not passed.
      batch_axis: Index of the batch axis. None if all examples share the array.
      head_axis: Index of the head axis. After `_remove_shared_axes`, it is counted without the
        batch axis. None if all heads share the array.
      group_axis: Index of the axis of the query heads that share a key head, counted without the
        batch axis and the head axis. None if the array has no such axis.
    """

    array: Any
    batch_axis: int | None = None
    head_axis: int | None = None
    group_axis: int | None = None


def vmap_heads(one_head: Callable[[Head], Attended], call: AttentionCall) -> Attended:
    """Apply `one_head` to every head of every example, and return the stacked outputs.

    Args:
      one_head: Function that computes attention of one head of one example.
      call: Arguments of all heads and examples.
    """
    call = _repeat_sharded_key_heads(call)
    arguments = jax.tree.map(
        lambda argument: _prepare(argument, call), _list_arguments(call), is_leaf=_is_argument
    )

    def axes(name: str) -> Head:
        """Return `arguments` with each `_Argument` replaced by its attribute `name`."""
        return jax.tree.map(
            lambda argument: getattr(argument, name), arguments, is_leaf=_is_argument
        )

    mapped = one_head
    if call.group_size > 1:
        mapped = jax.vmap(mapped, (axes("group_axis"),), OUTPUT_HEAD_AXES)
    mapped = jax.vmap(mapped, (axes("head_axis"),), OUTPUT_HEAD_AXES)
    mapped = jax.vmap(mapped, (axes("batch_axis"),))
    outputs = mapped(axes("array"))
    if call.group_size > 1:
        outputs = jax.tree.map(_merge_groups, OUTPUT_HEAD_AXES, outputs)
    return outputs


def _list_arguments(call: AttentionCall) -> Any:
    """Return a `Head` that contains an `_Argument` in place of each array.

    Each `_Argument` holds the array of all heads and examples, and says which of its axes are the
    batch axis and the head axis.
    """
    batch, _, heads, _ = call.query.shape
    dropout: Any = None
    if call.dropout_rate is not None:
        example, head = (jnp.arange(size, dtype=jnp.int32) for size in (batch, heads))
        start = call.first_indices
        dropout = Dropout._make(
            [
                _Argument(call.dropout_rate),
                _Argument(call.dropout_words),
                _Argument(start.example + example, batch_axis=0),
                _Argument(start.head + head, head_axis=0),
                _Argument(start.query),
                _Argument(start.key),
            ]
        )
    arguments: dict[str, Any] = {
        "query": _Argument(call.query, batch_axis=0, head_axis=2),
        "key": _Argument(call.key, batch_axis=0, head_axis=2),
        "value": _Argument(call.value, batch_axis=0, head_axis=2),
        "variant": jax.tree.map(lambda leaf: _Argument(leaf, head_axis=0), call.variant),
        "mask": _Argument(call.mask, batch_axis=0, head_axis=1),
        "query_length": _Argument(call.query_lengths, batch_axis=0),
        "key_length": _Argument(call.key_lengths, batch_axis=0),
        "query_segments": _Argument(call.query_segments, batch_axis=0),
        "key_segments": _Argument(call.key_segments, batch_axis=0),
        "offset": _Argument(call.offset, batch_axis=0),
        "dropout": dropout,
    }
    return Head(**arguments)


def _is_argument(node: Any) -> bool:
    return isinstance(node, _Argument)


def _prepare(argument: _Argument, call: AttentionCall) -> _Argument:
    """Prepare one array for the nested vmaps over batch, heads and groups, in three steps.

    1. Shard its batch and head axes in the same way as those of the query.
    2. Remove its batch axis or head axis if all examples or all heads share the array.
    3. If several query heads share a key head, split the axis of the query heads into groups.

    An argument that was not passed (its array is None) stays None.
    """
    if argument.array is None:
        return _Argument(None)
    argument = _shard_like(call.query, argument)
    argument = _remove_shared_axes(argument, call)
    return _split_into_groups(argument, call) if call.group_size > 1 else argument


def _remove_shared_axes(argument: _Argument, call: AttentionCall) -> _Argument:
    """Remove the batch axis if all examples share the array, and the head axis if all heads do.

    A batch axis is shared if it has size 1 but the query has several examples. A head axis is
    shared if it has size 1 but the query has several heads.

    Args:
      argument: Array with the indices of its batch and head axes.
      call: Arguments of all heads and examples.

    Returns:
      Array with the indices of its remaining axes. `head_axis` is counted without the batch axis,
      because the vmap over the batch removes the batch axis before the vmap over the heads.
    """
    array, batch_axis, head_axis, _ = argument
    batch, _, heads, _ = call.query.shape
    if head_axis is not None and array.shape[head_axis] == 1 != heads:
        array, head_axis = array.squeeze(head_axis), None
    if batch_axis is not None:
        head_axis = None if head_axis is None else head_axis - 1
        if array.shape[batch_axis] == 1 != batch:
            array, batch_axis = array.squeeze(batch_axis), None
    return _Argument(array, batch_axis, head_axis)


def _split_into_groups(argument: _Argument, call: AttentionCall) -> _Argument:
    """Split an axis of N query heads into two axes: K key heads, and N/K query heads for each.

    An array with K heads, such as the key or the value, is returned unchanged.
    """
    array, batch_axis, head_axis, _ = argument
    if head_axis is None:
        return argument
    axis = head_axis if batch_axis is None else head_axis + 1
    if array.shape[axis] != call.query.shape[2]:
        return argument
    split = (call.key.shape[2], call.group_size)
    array = array.reshape(*array.shape[:axis], *split, *array.shape[axis + 1 :])
    # The group axis follows the head axis: it has the same index once the head axis is removed.
    return _Argument(array, batch_axis, head_axis, group_axis=head_axis)


def _merge_groups(head_axis: int, outputs: Any) -> Any:
    """Merge two axes of each array in `outputs`, K key heads and N/K query heads, into one axis.

    Args:
      head_axis: Index of the axis of the key heads, counted without the batch axis. The axis after
        it has the N/K query heads that share a key head.
      outputs: Array, or pytree of arrays, with a leading batch axis.
    """

    def merge(output):
        before, after = output.shape[: head_axis + 1], output.shape[head_axis + 3 :]
        heads = output.shape[head_axis + 1] * output.shape[head_axis + 2]
        return output.reshape(*before, heads, *after)

    return jax.tree.map(merge, outputs)


def _has_explicit_axes(query: Array) -> bool:
    """Return True if the mesh of the query has axes of type `AxisType.Explicit`."""
    return AxisType.Explicit in jax.typeof(query).sharding.mesh.axis_types


def _repeat_sharded_key_heads(call: AttentionCall) -> AttentionCall:
    """Repeat the heads of key and value until every query head has its own.

    This is done only under a mesh with Explicit axes, because a sharded head axis cannot always be
    split into groups. Otherwise the call is returned unchanged.
    """
    if call.group_size == 1 or not _has_explicit_axes(call.query):
        return call
    sharding = jax.typeof(call.query).sharding
    replicated = NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0]))
    key, value = (
        jnp.repeat(reshard(x, replicated), call.group_size, axis=2) for x in (call.key, call.value)
    )
    return call._replace(key=key, value=value)


def _shard_like(query: Array, argument: _Argument) -> _Argument:
    """Shard the batch and head axes of an array like those of the query. Replicate its other axes.

    If the query's mesh has no Explicit axes, return the argument unchanged: the compiler then
    chooses the sharding.
    """
    if not _has_explicit_axes(query):
        return argument
    array, *axes, _ = argument
    sharding = jax.typeof(query).sharding
    names = [None] * array.ndim
    for axis, query_axis in zip(axes, (0, 2), strict=True):
        if axis is not None and array.shape[axis] == query.shape[query_axis]:
            names[axis] = sharding.spec[query_axis]
    return argument._replace(
        array=reshard(array, NamedSharding(sharding.mesh, PartitionSpec(*names)))
    )
