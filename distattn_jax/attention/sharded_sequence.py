"""Attention over a sharded sequence: each device computes its own queries, inside a `shard_map`.

`sequence_plan` chooses between the two strategies, `ring` has the equations of the ring, and
`sequence_order` exchanges chunks between devices.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Int

from distattn_jax.attention import near_keys, ring, sequence_order
from distattn_jax.attention.arguments import Attended, AttentionCall, BlockStart
from distattn_jax.attention.fused import mesh as fused_mesh
from distattn_jax.attention.fused.varying import mark_varying, varying_axes
from distattn_jax.attention.implementations import compute
from distattn_jax.attention.sequence_plan import Plan, SequenceAxis, make_plan


class Placement(NamedTuple):
    """Static description of the arrays of a device: mesh axes other than those of the sequence.

    Attributes:
      batch: Names of the mesh axes that shard the batch, or None.
      heads: Names of the mesh axes that shard the query heads, or None.
      mask_travels: True if the mask has one row for all queries, so that it is sharded like keys.
    """

    batch: tuple[str, ...] | None
    heads: tuple[str, ...] | None
    mask_travels: bool

    def find_first(self, query: Array) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Return the index of the first example, and of the first query head, of this device."""
        example, head = (
            lax.axis_index(names) * size if names else jnp.int32(0)
            for names, size in ((self.batch, query.shape[0]), (self.heads, query.shape[2]))
        )
        return example, head


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
        per_query: Any = PartitionSpec(batch, heads, axis.names)
        rows: Any = PartitionSpec(batch, axis.names, heads)
        return Attended(
            values=rows,
            received=per_query if call.options.received else None,
            weights=per_query if call.options.weights else None,
            logsumexp=per_query if call.options.logsumexp else None,
        )

    return run_on_shards(compute_shard, call, axis, make_specs)


def visit_block(
    call: AttentionCall,
    name: str | None,
    axis: SequenceAxis,
    visit: Callable[[AttentionCall, Plan], None],
) -> None:
    """Call a function with the first block that an implementation computes, and with the plan.

    Args:
      call: Arguments of `attention`.
      name: Name of the implementation, or None.
      axis: Mesh axis that shards the sequence.
      visit: Function of the call of the block. It is traced inside of a `shard_map`.
    """

    def visit_shard(call: AttentionCall, placement: Placement) -> Array:
        plan = make_plan(call, name, axis)
        if plan.strategy == "ring":
            devices, shard = _prepare_ring(call, name, axis, plan, placement)
            block = ring.select_block(devices, (0, 0), shard)
        else:
            block = next(_gather(call, axis, placement))
        visit(block, plan)
        return jnp.zeros(())

    run_on_shards(visit_shard, call, axis, lambda batch, heads: PartitionSpec())


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
        travels = mask is not None and mask.shape[2:] == (1, call.key.shape[1])
        return function(call, Placement(None, None, travels))
    mesh = jax.typeof(call.query).sharding.mesh
    mesh = jax.sharding.get_abstract_mesh() if mesh.empty else mesh
    batch, heads = fused_mesh.batch_and_head_axes(mesh, call.query, reserved=axis.names)
    call = fused_mesh.repeat_key_heads(call, fused_mesh.count_shards(mesh, heads))
    specs = _make_specs(call, batch, heads, axis.names)
    travels = mask is not None and mask.shape[2] == 1 < mask.shape[3]
    return jax.shard_map(
        lambda call: function(call, Placement(batch, heads, travels)),
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
    rows: Any = PartitionSpec(batch, sequence, heads)
    return call._replace(
        query=rows,
        key=rows,
        value=rows,
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


def _run_ring(
    call: AttentionCall, name: str | None, axis: SequenceAxis, plan: Plan, placement: Placement
) -> Attended:
    """Compute the outputs of one device: keys and values travel around a ring."""

    def attend(call: AttentionCall, known: Attended | None = None) -> Attended:
        devices, shard = _prepare_ring(call, name, axis, plan, placement)
        chunks = None if known is None else _split_outputs(known, axis, plan, devices)
        values, logsumexp = ring.attend(devices, shard, chunks)
        received = None
        if call.options.received:
            received = ring.receive(devices, shard, logsumexp)
        attended = Attended(
            values=_join(values, 1),
            received=None if received is None else _join(received, 2),
            logsumexp=_join(logsumexp, 2),
        )
        if not plan.balances:
            return attended
        outputs: Any = (
            None if x is None else sequence_order.restore_shard(x, axis.names, axis.size, index)
            for x, index in zip(attended, (1, 2, 2, 2), strict=True)
        )
        return Attended(*outputs)

    if call.options.received:
        attended = attend(call)
    else:
        attended = _attend_by_branch(call, _make_ring(call, name, axis, plan), plan.halos, attend)
    return attended if call.options.logsumexp else attended._replace(logsumexp=None)


def _split_outputs(
    outputs: Attended, axis: SequenceAxis, plan: Plan, devices: ring.Ring
) -> tuple[Array, Array]:
    """Divide the values and the logsumexp of one device into the chunks of a ring."""

    def split(x: Array, index: int) -> Array:
        if plan.balances:
            x = sequence_order.balance_shard(x, axis.names, axis.size, index)
        return _split_chunks(x, index, devices.is_balanced)

    assert outputs.logsumexp is not None, "the options of the ring request it"
    return split(outputs.values, 1), split(outputs.logsumexp, 2)


# Function of a call, and of the outputs of this call if they are known. A branch may then return
# them, and compute only the derivative.
Branch = Callable[[AttentionCall, Attended | None], Attended]
Inputs = tuple[Array, Any, Array, Array]  # query, variant, key and value


def _attend_by_branch(
    call: AttentionCall, devices: ring.Ring, halos: tuple[int, ...], attend: Branch
) -> Attended:
    """Compute the outputs of one device with the first halo that is large enough for all heads.

    Args:
      call: Call of one device.
      devices: Description of the devices.
      halos: Numbers of keys that may travel from each side: see `near_keys`.
      attend: Function for heads that need more keys.
    """
    call = mark_varying(call, varying_axes(call))

    def attend_with_halo(call: AttentionCall, known: Attended | None, halo: int) -> Attended:
        values, logsumexp = near_keys.attend(devices, call, halo)
        return Attended(values, logsumexp=logsumexp)

    branches = [functools.partial(attend_with_halo, halo=halo) for halo in halos]
    inputs = call.query, call.variant, call.key, call.value
    others = call._replace(query=None, variant=None, key=None, value=None)  # type: ignore[arg-type]
    index = near_keys.select_halo(call, halos, devices) if halos else jnp.int32(0)
    return _switch((*branches, attend), index, inputs, others)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _switch(branches: tuple[Branch, ...], index: Array, inputs: Inputs, others: AttentionCall):
    """Call the branch with this index. All branches have the same residuals: inputs and outputs.

    The derivative of `lax.switch` would store the residuals of each branch. The residuals of a ring
    would be copies of the inputs: in chunks, and in the balanced order.

    Args:
      branches: Functions of a call. They use no other arrays.
      index: Index of the function to call.
      inputs: Differentiable arrays of the call.
      others: All other arrays of the call.
    """
    axes = varying_axes((inputs, others))

    def run(branch: Branch) -> Callable[[Inputs], Attended]:
        return lambda inputs: mark_varying(branch(_insert(inputs, others), None), axes)

    return lax.switch(index, [*map(run, branches)], inputs)


def _switch_forward(
    branches: tuple[Branch, ...], index: Array, inputs: Inputs, others: AttentionCall
):
    attended = _switch(branches, index, inputs, others)
    return attended, (index, inputs, others, attended)


def _switch_backward(branches: tuple[Branch, ...], residuals: Any, cotangent: Attended):
    index, inputs, others, attended = residuals
    axes = varying_axes((inputs, others))

    def differentiate(branch: Branch) -> Callable[[Inputs], Inputs]:
        def run(inputs: Inputs) -> Inputs:
            _, transpose = jax.vjp(lambda x: branch(_insert(x, others), attended), inputs)
            return mark_varying(transpose(cotangent)[0], axes)

        return run

    return None, lax.switch(index, [*map(differentiate, branches)], inputs), None


_switch.defvjp(_switch_forward, _switch_backward)


def _insert(inputs: Inputs, others: AttentionCall) -> AttentionCall:
    """Return a call with its differentiable arrays."""
    query, variant, key, value = inputs
    return others._replace(query=query, variant=variant, key=key, value=value)


def _make_ring(call: AttentionCall, name: str | None, axis: SequenceAxis, plan: Plan) -> ring.Ring:
    """Return the description of the devices that share the sequence."""
    is_balanced = plan.balances or axis.sequence.order == "balanced"
    chunks = range(2 if is_balanced else 1)
    pairs = [(a, b) for a in chunks for b in chunks]
    is_square = call.query.shape[1] == call.key.shape[1]
    if is_balanced and call.options.is_causal and call.options.aligned and is_square:
        pairs.remove((0, 1))  # Every early query is before every late key.
    return ring.Ring(
        axis=axis.names,
        size=axis.size,
        first=plan.first,
        steps=plan.steps,
        is_balanced=is_balanced,
        pairs=tuple(pairs),
        implementation=name,
        precision=jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        options=dataclasses.replace(call.options, received=False, weights=False, logsumexp=True),
    )


def _prepare_ring(
    call: AttentionCall, name: str | None, axis: SequenceAxis, plan: Plan, placement: Placement
) -> tuple[ring.Ring, ring.Shard]:
    """Return the description of the ring, and the arrays of one device."""
    if plan.balances:
        balance = functools.partial(sequence_order.balance_shard, names=axis.names, size=axis.size)
        call = _reorder(call, placement, balance)
    devices = _make_ring(call, name, axis, plan)
    return devices, _split(call, axis, placement, devices.is_balanced)


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
) -> ring.Shard:
    """Divide the call of one device into arrays of queries, arrays of keys, and shared arrays.

    Args:
      is_balanced: If True, each shard has two chunks.
    """

    def split(x: Array | None, index: int) -> Any:
        return None if x is None else _split_chunks(x, index, is_balanced)

    row_mask = column_mask = None
    if call.mask is not None and placement.mask_travels:
        column_mask = split(call.mask, 3)
    elif call.mask is not None:
        mask = call.mask
        if mask.shape[3] > 1 and axis.sequence.order == "balanced":
            mask = sequence_order.from_balanced_order(mask, axis.size, axis=3)
        has_rows = mask.shape[2] > 1
        row_mask = split(mask, 2) if has_rows else jnp.stack([mask] * (1 + is_balanced))
    first_example, first_head = placement.find_first(call.query)
    return ring.Shard(
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
            first_example=first_example,
            first_head=first_head,
        ),
    )


def _split_chunks(x: Array, index: int, is_balanced: bool) -> Array:
    """Divide an axis of a shard into one chunk or two. Axis 0 of the result is the chunk."""
    return jnp.stack(jnp.split(x, 2, index)) if is_balanced else x[None]


def _join(chunks: Iterable[Array], index: int) -> Array:
    """Concatenate the chunks of a shard along an axis. It is the inverse of splitting."""
    return jnp.concatenate(list(chunks), axis=index)


def _run_gathered(
    call: AttentionCall, name: str | None, axis: SequenceAxis, plan: Plan, placement: Placement
) -> Attended:
    """Compute the outputs of one device, after it has gathered all keys and values."""
    chunks = [compute(chunk, name) for chunk in _gather(call, axis, placement)]
    parts: Any = (None if part[0] is None else part for part in zip(*chunks, strict=True))
    values, received, weights, logsumexp = parts

    def reorder(x: Array, index: int) -> Array:
        is_balanced = axis.sequence.order == "balanced"
        return sequence_order.to_balanced_order(x, axis.size, index) if is_balanced else x

    if received is not None:
        total = reorder(sum(received[1:], start=received[0]), 2)
        received = lax.psum_scatter(total, axis.names, scatter_dimension=2, tiled=True)
    return Attended(
        values=_join(values, 1),
        received=received,
        weights=None if weights is None else reorder(_join(weights, 2), 3),
        logsumexp=None if logsumexp is None else _join(logsumexp, 2),
    )


def _gather(
    call: AttentionCall, axis: SequenceAxis, placement: Placement
) -> Iterator[AttentionCall]:
    """Gather all keys and values. Yield the call of each chunk of queries of this device."""
    is_balanced = axis.sequence.order == "balanced"

    def reorder(x: Array, index: int) -> Array:
        return sequence_order.from_balanced_order(x, axis.size, index) if is_balanced else x

    def gather(x: Array | None, index: int) -> Any:
        if x is None:
            return None
        return reorder(lax.all_gather(x, axis.names, axis=index, tiled=True), index)

    mask = call.mask
    if mask is not None and placement.mask_travels:
        mask = gather(mask, 3)
    elif mask is not None and mask.shape[3] > 1:
        mask = reorder(mask, 3)
    call = call._replace(
        key=gather(call.key, 1),
        value=gather(call.value, 1),
        key_segments=gather(call.key_segments, 1),
        mask=mask,
        options=dataclasses.replace(call.options, aligned=False),
    )
    return _divide_queries(call, axis, placement, is_balanced)


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
        if mask is not None and mask.shape[2] > 1:
            mask = mask[:, :, rows]
        yield call._replace(
            query=call.query[:, rows],
            mask=mask,
            query_segments=None if segments is None else segments[:, rows],
            query_lengths=None if lengths is None else jnp.clip(lengths - start, 0, length),
            offset=call.offset + start,
            block_start=BlockStart(*placement.find_first(call.query), start, jnp.zeros_like(start)),
        )
