"""Attention over a sequence that is sharded over a mesh axis: axis, strategy, and `shard_map`.

There are two strategies. In a ring, keys and values travel from device to device: see `ring`. If
they are gathered, every device receives all keys and values at once, and computes its own queries
in one call. Gathering is simpler, and faster where keys and values are small. Its memory grows with
the length of the whole sequence, that of the ring with the length of a shard.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from jaxtyping import Array, Int

from distattn_jax.attention import ring, sequence_order
from distattn_jax.attention.arguments import Attended, AttentionCall, BlockStart
from distattn_jax.attention.fused import mesh as fused_mesh
from distattn_jax.attention.implementations import compute

SEQUENCE_AXES = ("sequence", "context")  # names of mesh axes of type Auto that shard a sequence
ORDERS = ("contiguous", "balanced")
STRATEGIES = ("ring", "gather")
# Bytes of the keys and values of a whole sequence that each device may gather without being asked.
LARGEST_GATHERED = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class ShardedSequence:
    """Description of a sequence that is sharded over devices.

    Attributes:
      axis: Name of the mesh axis that shards the sequence, or several names. It is required inside
        your own `shard_map`. Otherwise, None finds the axis: with Explicit axes, the sharding of
        the query names it, and with Auto axes, it is the axis "sequence" or "context".
      order: "contiguous" if each device has consecutive positions. "balanced" if query, key, value,
        segments and masks were reordered by `to_balanced_order`, so that all devices have the same
        work under a causal mask. The outputs then have this order, too.
      strategy: "ring" if keys travel from device to device, "gather" if each device gathers all
        keys. None selects one.
    """

    axis: str | tuple[str, ...] | None = None
    order: str = "contiguous"
    strategy: str | None = None

    def __post_init__(self):
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}; got {self.order!r}.")
        if self.strategy not in (None, *STRATEGIES):
            raise ValueError(
                f"strategy must be None or one of {', '.join(STRATEGIES)}; got {self.strategy!r}."
            )


class SequenceAxis(NamedTuple):
    """Mesh axis that shards the sequence of a call.

    Attributes:
      names: Names of the mesh axes that shard the sequence together. Most often it is one name.
      size: Number of shards.
      is_manual: True inside a `shard_map` of the user: the arrays of the call are shards.
      sequence: Order and strategy that the user named.
    """

    names: tuple[str, ...]
    size: int
    is_manual: bool
    sequence: ShardedSequence

    @property
    def manual_shards(self) -> int:
        """Number of times that the whole sequence is longer than the arrays of the call."""
        return self.size if self.is_manual else 1


class Plan(NamedTuple):
    """Strategy of one call.

    Attributes:
      strategy: "ring" or "gather".
      reason: Text that says why.
      steps: Number of blocks of keys that each device attends to.
      first: See `ring.Ring.first`.
      balances: True if the call itself exchanges chunks, so that all devices have the same work.
    """

    strategy: str
    reason: str
    steps: int
    first: int = 0
    balances: bool = False


class Placement(NamedTuple):
    """Place of a device in the batch and the heads, which are sharded over other mesh axes.

    Attributes:
      first_example: Index of the first example of the device.
      first_head: Index of the first query head of the device.
      mask_travels: True if the mask has one row for all queries, so that it is sharded like keys.
    """

    first_example: Int[Array, ""]
    first_head: Int[Array, ""]
    mask_travels: bool


def find_axis(query: Array, key: Array, sequence: Any) -> SequenceAxis | None:
    """Return the mesh axis that shards the sequence of a call, or None if there is none.

    Args:
      query: Queries.
      key: Keys.
      sequence: Argument of `attention`.
    """
    if isinstance(sequence, str | tuple):
        sequence = ShardedSequence(sequence)
    if not isinstance(sequence, ShardedSequence | None):
        raise TypeError(
            "sequence must be None, the name of a mesh axis, or a ShardedSequence; "
            f"got {sequence!r}."
        )
    mesh, spec = jax.sharding.get_abstract_mesh(), (None,) * 4
    if AxisType.Manual not in mesh.axis_types:
        sharding = jax.typeof(query).sharding
        mesh = mesh if sharding.mesh.empty else sharding.mesh
        spec = sharding.spec
    named = None if sequence is None else sequence.axis
    sequence = sequence or ShardedSequence()
    names = _find_names(mesh, spec[1], query.shape[1], named)
    size = math.prod(mesh.shape[name] for name in names)
    if size == 1:
        return None
    types = {dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[name] for name in names}
    axis = SequenceAxis(names, size, AxisType.Manual in types, sequence)
    _check_lengths(axis, query, key)
    if AxisType.Explicit in types:
        found = jax.typeof(key).sharding.spec[1]
        if found != spec[1]:
            raise ValueError(
                f"key must be sharded like query, whose sequence is sharded over {spec[1]!r}; the "
                f"sequence of key is sharded over {found!r}. Reshard key, value and their masks."
            )
    return axis


def _find_names(
    mesh: AbstractMesh, spec: Any, queries: int, named: str | tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the mesh axes that shard the sequence, or () if there are none.

    Args:
      mesh: Mesh of the call.
      spec: Mesh axes that shard the queries, with Explicit axes.
      queries: Number of queries. One query, as in decoding, is not sharded over an Auto axis.
      named: Axes that the user named, or None.
    """
    found = (spec,) if isinstance(spec, str) else tuple(spec or ())
    if named is None:
        if found or AxisType.Manual in mesh.axis_types or queries == 1:
            return found
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        return tuple(name for name in SEQUENCE_AXES if types.get(name) == AxisType.Auto)[:1]
    names = (named,) if isinstance(named, str) else tuple(named)
    missing = [name for name in names if name not in mesh.axis_names]
    if missing:
        raise ValueError(
            f"sequence names the mesh axis {missing[0]!r}, but the mesh has the axes "
            f"{tuple(mesh.axis_names)}. Name one of them, or set the mesh with jax.set_mesh."
        )
    if found and found != names:
        raise ValueError(
            f"sequence names the mesh axes {names}, but query is sharded over {found}. Name these."
        )
    return names


def _check_lengths(axis: SequenceAxis, query: Array, key: Array) -> None:
    """Raise ValueError unless the sequence can be divided into shards, or shards into chunks."""
    is_balanced = axis.sequence.order == "balanced"
    pieces = (1 if axis.is_manual else axis.size) * (2 if is_balanced else 1)
    for name, array in (("query", query), ("key", key)):
        if isinstance(array.shape[1], int) and array.shape[1] % pieces:
            chunks = " into two chunks each" * is_balanced
            raise ValueError(
                f"{name} must have a length that the {axis.size} shards of the mesh axis "
                f"{'x'.join(axis.names)!r} divide{chunks}, a multiple of {pieces}; got "
                f"{array.shape[1]}. Pad it, and pass {name}_lengths."
            )


def compute_sharded(call: AttentionCall, name: str | None, axis: SequenceAxis) -> Attended:
    """Compute attention over a sharded sequence.

    Args:
      call: Arguments of `attention`.
      name: Name of the implementation that computes one block of keys, or None.
      axis: Mesh axis that shards the sequence.
    """

    def compute_shard(call: AttentionCall, placement: Placement) -> Attended:
        plan = make_plan(call, name, axis)
        run = _run_ring if plan.strategy == "ring" else _run_gathered
        return run(call, name, axis, plan, placement)

    def make_specs(batch: Any, heads: Any) -> Any:
        per_query = PartitionSpec(batch, heads, axis.names)
        return Attended(
            values=PartitionSpec(batch, axis.names, heads),
            received=per_query if call.options.received else None,
            weights=per_query if call.options.weights else None,
            logsumexp=per_query if call.options.logsumexp else None,
        )

    return run_on_shards(compute_shard, call, axis, make_specs)


def run_on_shards(
    function: Callable[[AttentionCall, Placement], Any],
    call: AttentionCall,
    axis: SequenceAxis,
    make_specs: Callable[[Any, Any], Any],
) -> Any:
    """Call a function on each device, with the shards of all arguments of `attention`.

    Args:
      function: Function of the call of one device.
      call: Arguments of `attention`.
      axis: Mesh axis that shards the sequence.
      make_specs: Function of the mesh axes of batch and heads that returns the partition specs of
        the results.
    """
    mask = call.mask
    if axis.is_manual:
        zero = jnp.int32(0)
        travels = mask is not None and mask.shape[2:] == (1, call.key.shape[1])
        return function(call, Placement(zero, zero, travels))
    mesh = jax.typeof(call.query).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    batch, heads = fused_mesh.batch_and_head_axes(mesh, call.query, reserved=axis.names)
    call = fused_mesh.repeat_key_heads(call, fused_mesh.count_shards(mesh, heads))
    specs = _make_specs(call, batch, heads, axis.names)
    travels = mask is not None and mask.shape[2] == 1 < mask.shape[3]

    def run(call: AttentionCall) -> Any:
        first = [
            lax.axis_index(names) * size if names else jnp.int32(0)
            for names, size in ((batch, call.query.shape[0]), (heads, call.query.shape[2]))
        ]
        return function(call, Placement(*first, travels))

    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(specs,),
        out_specs=make_specs(batch, heads),
        check_vma=False,
    )(fused_mesh.reshard_explicit(call, mesh, specs))


def _make_specs(call: AttentionCall, batch: Any, heads: Any, sequence: tuple[str, ...]) -> Any:
    """Return `AttentionCall` that contains a partition spec in place of each array.

    An axis of size 1 is shared, and not sharded. A mask of pairs is sharded along its queries.
    """

    def spec(array: Array | None, *names: Any) -> Any:
        if array is None:
            return None
        return PartitionSpec(
            *(None if size == 1 else name for size, name in zip(array.shape, names, strict=False))
        )

    mask = call.mask
    columns = sequence if mask is not None and mask.shape[2] == 1 else None
    return call._replace(
        query=PartitionSpec(batch, sequence, heads),
        key=PartitionSpec(batch, sequence, heads),
        value=PartitionSpec(batch, sequence, heads),
        variant=jax.tree.map(lambda leaf: spec(leaf, heads), call.variant),
        mask=spec(mask, batch, heads, sequence, columns),
        query_lengths=spec(call.query_lengths, batch),
        key_lengths=spec(call.key_lengths, batch),
        query_segments=spec(call.query_segments, batch, sequence),
        key_segments=spec(call.key_segments, batch, sequence),
        offset=spec(call.offset, batch),
        dropout_rate=spec(call.dropout_rate),
        dropout_words=spec(call.dropout_words),
    )


def make_plan(call: AttentionCall, name: str | None, axis: SequenceAxis) -> Plan:
    """Choose the strategy of a call.

    Args:
      call: Arguments of one device.
      name: Name of the implementation, or None.
      axis: Mesh axis that shards the sequence.
    """
    first, steps = _count_steps(call, axis)
    strategy, reason = _choose_strategy(call, name, axis, steps)
    if strategy == "gather":
        return Plan("gather", reason, steps=1)
    length, count = call.query.shape[1], call.key.shape[1]
    balances = (
        call.options.is_causal
        and call.options.aligned
        and axis.sequence.order == "contiguous"
        and steps == axis.size
        and length == count
        and length % 2 == 0
    )
    return Plan("ring", reason, steps, first, balances)


def _count_steps(call: AttentionCall, axis: SequenceAxis) -> tuple[int, int]:
    """Return `first` and `steps` of a ring: a window makes distant shards unnecessary.

    A window of a size up to that of a shard needs the own shard, and one shard on each side that
    the window has. If positions of queries and keys are not known to be equal, or not in order, all
    shards are visited.
    """
    options, length = call.options, call.key.shape[1]
    is_known = options.aligned and length == call.query.shape[1]
    if options.window is None or axis.sequence.order == "balanced" or not is_known:
        return 0, axis.size
    left, right = options.window
    right = 0 if options.is_causal else right
    before, after = (min(-(-limit // length), axis.size) for limit in (left, right))
    if before + after + 1 >= axis.size:
        return 0, axis.size
    return after, before + after + 1


def _choose_strategy(
    call: AttentionCall, name: str | None, axis: SequenceAxis, steps: int
) -> tuple[str, str]:
    """Return "ring" or "gather", and a reason. Raise ValueError if a named one is not possible."""
    named = axis.sequence.strategy
    forced = None
    if call.options.weights:
        forced = "the weights of a query need all keys at once"
    elif call.variant.adjusts_weights:
        forced = f"{type(call.variant).__name__} changes the weights after the softmax"
    elif name == "cudnn":
        forced = "cudnn does not return the logsumexp"
    if forced is not None:
        if named == "ring":
            raise ValueError(
                f"strategy='ring' does not support this call, because {forced}. Use 'gather'."
            )
        return "gather", forced
    if named is not None:
        return named, "the call names it"
    if steps < axis.size:
        return "ring", f"the window needs {steps} of {axis.size} shards"
    batch, length, heads, _ = call.query.shape
    # Keys are as wide as queries, and values are as wide as outputs.
    ratio = axis.size * call.key.shape[1] * call.key.shape[2] / (length * heads)
    if ratio <= 1:
        return "gather", "all keys and values are not larger than the queries of one device"
    width = call.key.shape[3] + call.value.shape[3]
    size = batch * axis.size * call.key.shape[1] * call.key.shape[2] * width
    mebibytes = size * call.key.dtype.itemsize / 2**20
    if mebibytes * 2**20 <= LARGEST_GATHERED:
        return "gather", f"all keys and values are small, {mebibytes:.1f} MiB"
    return "ring", f"all keys and values would be {mebibytes:.0f} MiB on each device"


def _run_ring(
    call: AttentionCall,
    name: str | None,
    axis: SequenceAxis,
    plan: Plan,
    placement: Placement,
) -> Attended:
    """Compute the outputs of one device: keys and values travel around a ring."""
    exchange = {"names": axis.names, "size": axis.size}
    is_balanced = plan.balances or axis.sequence.order == "balanced"
    if plan.balances:
        call = _reorder(
            call, placement, functools.partial(sequence_order.balance_shard, **exchange)
        )
    queries, keys, common = _split(call, axis, placement, is_balanced)
    devices = ring.Ring(
        axis=axis.names,
        size=axis.size,
        first=plan.first,
        steps=plan.steps,
        is_balanced=is_balanced,
        implementation=name,
        precision=jax.config.jax_default_matmul_precision,
        options=dataclasses.replace(call.options, received=False, weights=False, logsumexp=True),
    )
    values, logsumexp = ring.attend(devices, queries, keys, common)
    received = None
    if call.options.received:
        received = ring.receive(devices, queries, keys, common, logsumexp)
    attended = Attended(
        values=_join(values, 1).astype(call.value.dtype),
        received=None if received is None else _join(received, 2),
        logsumexp=_join(logsumexp, 2) if call.options.logsumexp else None,
    )
    if plan.balances:
        restore = functools.partial(sequence_order.restore_shard, **exchange)
        attended = Attended(
            *(
                None if x is None else restore(x, axis=i)
                for x, i in zip(attended, (1, 2, 2, 2), strict=True)
            )
        )
    return attended


def _reorder(call: AttentionCall, placement: Placement, reorder: Callable) -> AttentionCall:
    """Reorder the arrays of one device along their axes of queries or keys.

    The columns of a mask of pairs stay in order, because each device has all of them.
    """
    arrays: dict[str, Any] = {
        field: reorder(getattr(call, field), axis=1)
        for field in ("query", "key", "value", "query_segments", "key_segments")
        if getattr(call, field) is not None
    }
    if call.mask is not None and placement.mask_travels:
        arrays["mask"] = reorder(call.mask, axis=3)
    elif call.mask is not None and call.mask.shape[2] > 1:
        arrays["mask"] = reorder(call.mask, axis=2)
    return call._replace(**arrays)


def _split(
    call: AttentionCall, axis: SequenceAxis, placement: Placement, is_balanced: bool
) -> tuple[ring.Queries, ring.Keys, ring.Common]:
    """Divide the call of one device into arrays that stay, arrays that travel, and shared arrays.

    Args:
      is_balanced: If True, each shard has two chunks.
    """

    def split(x: Array | None, index: int) -> Any:
        if x is None:
            return None
        return jnp.stack(jnp.split(x, 2, index)) if is_balanced else x[None]

    row_mask = column_mask = None
    if call.mask is not None and placement.mask_travels:
        column_mask = split(call.mask, 3)
    elif call.mask is not None:
        mask = call.mask
        if mask.shape[3] > 1 and axis.sequence.order == "balanced":
            mask = sequence_order.from_balanced_order(mask, axis.size, axis=3)
        has_rows = mask.shape[2] > 1
        row_mask = split(mask, 2) if has_rows else jnp.stack([mask] * (1 + is_balanced))
    return (
        ring.Queries(split(call.query, 1), row_mask, split(call.query_segments, 1)),
        ring.Keys(
            split(call.key, 1), split(call.value, 1), column_mask, split(call.key_segments, 1)
        ),
        ring.Common(
            variant=call.variant,
            query_lengths=call.query_lengths,
            key_lengths=call.key_lengths,
            offset=call.offset,
            dropout_rate=call.dropout_rate,
            dropout_words=call.dropout_words,
            first_example=placement.first_example,
            first_head=placement.first_head,
        ),
    )


def _join(chunks: Array, index: int) -> Array:
    """Concatenate the chunks of a shard along an axis. It is the inverse of splitting."""
    return jnp.concatenate(list(chunks), axis=index)


def _run_gathered(
    call: AttentionCall,
    name: str | None,
    axis: SequenceAxis,
    plan: Plan,
    placement: Placement,
) -> Attended:
    """Compute the outputs of one device, after it has gathered all keys and values."""
    is_balanced = axis.sequence.order == "balanced"

    def gather(x: Array | None, index: int) -> Any:
        if x is None:
            return None
        x = lax.all_gather(x, axis.names, axis=index, tiled=True)
        return restore(x, index)

    def restore(x: Array, index: int) -> Array:
        return sequence_order.from_balanced_order(x, axis.size, index) if is_balanced else x

    def balance(x: Array, index: int) -> Array:
        return sequence_order.to_balanced_order(x, axis.size, index) if is_balanced else x

    mask = call.mask
    if mask is not None and mask.shape[3] > 1:
        mask = gather(mask, 3) if placement.mask_travels else restore(mask, 3)
    call = call._replace(
        key=gather(call.key, 1),
        value=gather(call.value, 1),
        key_segments=gather(call.key_segments, 1),
        mask=mask,
        options=dataclasses.replace(call.options, aligned=False),
    )
    chunks = [compute(chunk, name) for chunk in _divide_queries(call, axis, placement, is_balanced)]
    values, received, weights, logsumexp = (
        None if parts[0] is None else parts for parts in zip(*chunks, strict=True)
    )
    if received is not None:
        received = lax.psum_scatter(
            balance(sum(received[1:], start=received[0]), 2),
            axis.names,
            scatter_dimension=2,
            tiled=True,
        )
    return Attended(
        values=_join(values, 1),
        received=received,
        weights=None if weights is None else balance(_join(weights, 2), 3),
        logsumexp=None if logsumexp is None else _join(logsumexp, 2),
    )


def _divide_queries(
    call: AttentionCall, axis: SequenceAxis, placement: Placement, is_balanced: bool
) -> Iterator[AttentionCall]:
    """Yield the call of each chunk of the queries of one device, with all keys."""
    count = 2 if is_balanced else 1
    length = call.query.shape[1] // count
    for chunk in range(count):
        rows = slice(chunk * length, (chunk + 1) * length)
        start = sequence_order.chunk_start(
            lax.axis_index(axis.names), chunk, length, axis.size, is_balanced=is_balanced
        )
        mask, segments, lengths = call.mask, call.query_segments, call.query_lengths
        has_rows = mask is not None and mask.shape[2] > 1
        yield call._replace(
            query=call.query[:, rows],
            mask=mask[:, :, rows] if has_rows else mask,
            query_segments=None if segments is None else segments[:, rows],
            query_lengths=None if lengths is None else jnp.clip(lengths - start, 0, length),
            offset=call.offset + start,
            block_start=BlockStart(
                placement.first_example, placement.first_head, start, jnp.zeros_like(start)
            ),
        )
