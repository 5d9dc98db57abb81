"""Attention over a sequence that is sharded over devices: keys or queries travel around a ring.

Each of P devices has one shard of the queries, and one shard of the keys and values. In every step,
a device attends from its own queries to the shard of keys that it holds at the moment, and sends
this shard to the next device of the ring. Queries and outputs stay where they are:

    step 0    device 0: keys 0    device 1: keys 1    device 2: keys 2    device 3: keys 3
    step 1    device 0: keys 3    device 1: keys 0    device 2: keys 1    device 3: keys 2
    ...

Any implementation of attention can compute a step: it returns the values o_b and the logsumexp z_b
of the queries with block b of the keys. They are merged in float32 or wider, block by block:

    z = log Σ_b exp(z_b)        c_b = exp(z_b - z)        O = Σ_b c_b o_b                     (1)

For the backward pass, dO and dz are the cotangents of O and z, and D = dO · O - dz. If p_b are the
softmax weights of block b alone, c_b p_b are those of all keys. The gradient of its scores is

    dS_b = c_b p_b (dO · V - D)                                                               (2)

If g and x are the cotangents of o_b and z_b, an implementation returns the gradient of the scores
p_b (g · V - g · o_b + x). This is (2) for

    g = c_b dO        x = g · o_b - c_b D                                                     (3)

so that each block is differentiated alone, for any variant. In this pass, either the keys travel
again, with the gradients of keys and values, or the queries travel, with dO, z, D and the gradient
of the queries: whichever are fewer bytes. Queries go to device r - 1 where keys go to r + 1, so
that the same blocks meet in each step. A device keeps its own shards, O and z.

The attention that key j receives is m_j = Σ_i A_ij. It is the gradient of Σ_i (A V)_i with respect
to V_j, for values V of width 1. If g is the cotangent of m, then Σ_j g_j m_j = Σ_i (A g)_i: the
gradients of m are those of attention with the values g. Both need one more pass of the ring.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax.attention.arguments import AttentionCall, BlockStart, Options
from distattn_jax.attention.fused.varying import mark_varying, varying_axes
from distattn_jax.attention.implementations import compute
from distattn_jax.attention.sequence_order import chunk_start
from distattn_jax.attention.variants import Variant, promote

# Up to this number of steps, as for a window, there is no loop. The first step then does not send
# the sums, which are still 0.
MOST_UNROLLED = 3

Pair = tuple[Any, Any]  # index of a chunk of queries, and index of a chunk of keys
Visit = Callable[[Pair, Any, Any, Any, Array], tuple[Any, Any]]  # see `_travel`
Logsumexp = Float[Array, "B N T"]


@dataclasses.dataclass(frozen=True)
class Ring:
    """Static description of a ring of devices.

    Attributes:
      axis: Names of the mesh axes that shard the sequence.
      size: Number P of devices in the ring.
      first: Device r attends to the keys of device r + first in its first step. It is 0 unless a
        window reaches keys after the shard.
      steps: Number of shards that each device attends to. Step t has the keys of device
        r + first - t.
      is_balanced: If True, a shard consists of two chunks, as `sequence_order` explains. Otherwise
        it is one chunk of consecutive positions.
      pairs: Pairs (chunk of queries, chunk of keys) that a device attends to in each step.
      implementation: Name of the implementation that computes a block. None selects one.
      precision: Default precision of JAX's matrix products at the time of the call. The backward
        pass uses it too.
      options: Options of each block.
    """

    axis: tuple[str, ...]
    size: int
    first: int
    steps: int
    is_balanced: bool
    pairs: tuple[Pair, ...]
    implementation: str | None
    precision: str | None
    options: Options

    def send(self, tree: Any, distance: int) -> Any:
        """Send arrays from each device r to the device r + distance."""
        if distance % self.size == 0:
            return tree
        route = [(source, (source + distance) % self.size) for source in range(self.size)]
        return jax.tree.map(lambda x: lax.ppermute(x, self.axis, route), tree)


class Queries(NamedTuple):
    """Arrays of the queries of one device. Axis 0 is the chunk."""

    query: Float[Array, "C B T N H"]
    mask: Bool[Array, "C #B #N #T _"] | None
    segments: Int[Array, "C B T"] | None


class Keys(NamedTuple):
    """Arrays of the keys of one device. Axis 0 is the chunk."""

    key: Float[Array, "C B S K H"]
    value: Float[Array, "C B S K E"]
    mask: Bool[Array, "C #B #N 1 S"] | None
    segments: Int[Array, "C B S"] | None


class Common(NamedTuple):
    """Arrays that all chunks of a device share. Lengths and offset are those of the whole sequence.

    Attributes other than `first_example` and `first_head` are those of `AttentionCall`.

    Attributes:
      first_example: Index of the first example of the device in the whole batch.
      first_head: Index of the first query head of the device among all heads.
    """

    variant: Variant
    query_lengths: Int[Array, " B"] | None
    key_lengths: Int[Array, " B"] | None
    offset: Int[Array, " #B"]
    dropout_rate: Float[Array, ""] | None
    dropout_words: UInt32[Array, "2"] | None
    first_example: Int[Array, ""]
    first_head: Int[Array, ""]


class Shard(NamedTuple):
    """Arrays for one step on a device. The queries or the keys may come from another device."""

    queries: Queries
    keys: Keys
    common: Common


class Rows(NamedTuple):
    """Numbers that the backward pass needs for each query of a device. Axis 0 is the chunk.

    Attributes:
      cotangent: Cotangent dO of the values.
      logsumexp: Logsumexp z over all keys.
      delta: D = dO · O - dz.
    """

    cotangent: Float[Array, "C B T N E"]
    logsumexp: Float[Array, "C B N T"]
    delta: Float[Array, "C B N T"]


def attend(
    ring: Ring, shard: Shard, known: tuple[Array, Array] | None = None
) -> tuple[Float[Array, "C B T N E"], Float[Array, "C B N T"]]:
    """Return the values and the logsumexp of the queries of this device, with all keys.

    Args:
      ring: Description of the devices.
      shard: Arrays of this device.
      known: Result of an earlier call with the same arguments. If it is given, the forward pass is
        skipped.
    """
    return _attend(ring, *mark_varying((shard, known), varying_axes(shard)))


def receive(
    ring: Ring, shard: Shard, logsumexp: Float[Array, "C B N T"]
) -> Float[Array, "C B N S"]:
    """Return the attention that the keys of this device receive from the queries of all devices.

    Args:
      ring: Description of the devices.
      shard: Arrays of this device.
      logsumexp: Logsumexp of the queries of this device, with all keys: a result of `attend`.
    """
    queries, keys, common = shard
    variant = common.variant.with_plain_values()
    common = common._replace(variant=variant, dropout_rate=None, dropout_words=None)
    # Received attention is separate for each query head.
    group_size = queries.query.shape[3] // keys.key.shape[3]
    key = jnp.repeat(keys.key, group_size, axis=3)
    # Kernels need one dtype for all arrays.
    dtype = jnp.promote_types(key.dtype, keys.value.dtype)
    keys = keys._replace(key=key, value=jnp.zeros((*key.shape[:-1], 1), dtype))
    arguments = Shard(queries, keys, common), lax.stop_gradient(logsumexp)
    return _receive(ring, *mark_varying(arguments, varying_axes(arguments)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(ring: Ring, shard: Shard, known: Any):
    return _attend_forward(ring, shard, known)[0]


def _attend_forward(ring: Ring, shard: Shard, known: Any):
    """Merge the blocks of keys as they arrive: equation (1)."""
    if known is not None:
        return known, (shard, *known)
    query, value = shard.queries.query, shard.keys.value
    chunks, batch, length, heads, _ = query.shape
    dtype = promote(query.dtype)
    values = jnp.zeros((chunks, batch, length, heads, value.shape[-1]), dtype)
    logsumexp = jnp.full((chunks, batch, heads, length), -jnp.inf, dtype)

    def visit(pair: Pair, merged: Any, nothing: Any, keys: Keys, source: Array) -> tuple[Any, Any]:
        call = select_block(ring, pair, shard._replace(keys=keys), key_device=source)
        block = merge(_select(merged, pair[0]), _compute_block(ring, call))
        return _replace(merged, pair[0], block), nothing

    (values, logsumexp), _ = _travel(ring, visit, shard.keys, (values, logsumexp), ())
    outputs = values.astype(value.dtype), logsumexp
    return outputs, (shard, *outputs)


def _attend_backward(ring: Ring, residuals: Any, cotangents: Any):
    """Differentiate each block alone: equations (2) and (3)."""
    shard, values, logsumexp = residuals
    values_cotangent, logsumexp_cotangent = cotangents
    products = values_cotangent.astype(logsumexp.dtype) * values.astype(logsumexp.dtype)
    delta = jnp.swapaxes(products.sum(axis=-1), 2, 3) - logsumexp_cotangent
    rows = Rows(values_cotangent, logsumexp, delta)
    queries, keys, common = shard
    query, key_value = _zeros_like((queries.query, (keys.key, keys.value)))
    variant = _zeros_like(common.variant)

    def differentiate(pair: Pair, shard: Shard, rows: Rows, **device: Array) -> Any:
        call = select_block(ring, pair, shard, **device)
        query, variant, key, value = _differentiate_block(ring, call, _select(rows, pair[0]))
        return query, (key, value), variant

    def visit_keys(pair: Pair, own: Any, sums: Any, keys: Keys, source: Array) -> Any:
        added = differentiate(pair, shard._replace(keys=keys), rows, key_device=source)
        own = _add(own[0], pair[0], added[0]), jax.tree.map(jnp.add, own[1], added[2])
        return own, _add(sums, pair[1], added[1])

    def visit_queries(pair: Pair, own: Any, sums: Any, arrived: Any, source: Array) -> Any:
        queries, rows = arrived
        added = differentiate(pair, shard._replace(queries=queries), rows, query_device=source)
        own = _add(own[0], pair[1], added[1]), jax.tree.map(jnp.add, own[1], added[2])
        return own, _add(sums, pair[0], added[0])

    if _count_bytes((queries, rows, query)) < _count_bytes((keys, key_value)):
        (key_value, variant), query = _travel(
            ring, visit_queries, (queries, rows), (key_value, variant), query, direction=-1
        )
    else:
        (query, variant), key_value = _travel(ring, visit_keys, keys, (query, variant), key_value)
    key, value = (x.astype(y.dtype) for x, y in zip(key_value, keys[:2], strict=True))
    return _make_gradient(query.astype(queries.query.dtype), variant, key, value), None


_attend.defvjp(_attend_forward, _attend_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _receive(ring: Ring, shard: Shard, logsumexp: Array):
    return _receive_forward(ring, shard, logsumexp)[0]


def _receive_forward(ring: Ring, shard: Shard, logsumexp: Array):
    """Sum the weights c_b p_b of each key over the queries of all devices."""

    def visit(pair: Pair, nothing: Any, sums: Any, keys: Keys, source: Array) -> tuple[Any, Any]:
        call = select_block(ring, pair, shard._replace(keys=keys), key_device=source)
        received = _receive_in_block(ring, call, _select(logsumexp, pair[0]))
        return nothing, _add(sums, pair[1], received)

    _, received = _travel(ring, visit, shard.keys, (), _zeros_like(shard.keys.value))
    return jnp.swapaxes(received[..., 0], 2, 3), shard


def _receive_backward(ring: Ring, shard: Shard, cotangent: Any):
    """Differentiate the sum of the outputs of attention whose values are the cotangents."""
    queries, keys, common = shard
    value = jnp.swapaxes(cotangent, 2, 3)[..., None].astype(keys.value.dtype)

    def attend_to_cotangents(query: Array, variant: Variant, key: Array) -> Array:
        return _attend(
            ring,
            Shard(
                queries._replace(query=query),
                keys._replace(key=key, value=value),
                common._replace(variant=variant),
            ),
            None,
        )[0]

    values, transpose = jax.vjp(attend_to_cotangents, queries.query, common.variant, keys.key)
    ones = mark_varying(jnp.ones_like(values), varying_axes(values))
    query, variant, key = transpose(ones)
    return _make_gradient(query, variant, key, value=None), None


_receive.defvjp(_receive_forward, _receive_backward)


def _make_gradient(query: Any, variant: Any, key: Any, value: Any) -> Shard:
    """Return a `Shard` that contains the gradients. All other arrays have none."""
    others: Any = [None] * len(Common._fields[1:])
    none: Any = None
    return Shard(Queries(query, none, none), Keys(key, value, none, none), Common(variant, *others))


def _travel(
    ring: Ring, visit: Visit, traveller: Any, own: Any, sums: Any, direction: int = 1
) -> tuple[Any, Any]:
    """Let the keys, or the queries, visit one device after the other, with sums for them.

    Args:
      ring: Description of the devices.
      visit: Function of (pair of chunks, own, sums, traveller that arrived, device it comes from).
        It returns the new `own`, and the sums with what this device adds.
      traveller: Arrays of this device that travel: its keys, or its queries.
      own: Arrays that stay on this device.
      sums: Pytree of zeros. The sums travel with the traveller of this device.
      direction: 1 if keys travel, to the device r + 1, or -1 if queries travel, to r - 1.

    Returns:
      The last `own`, and the sums of this device, after their return.
    """
    axes = varying_axes((traveller, own, sums))
    own, sums = mark_varying((own, sums), axes)
    device = lax.axis_index(ring.axis)

    def step(own: Any, sums: Any, arrived: Any, number: Any) -> tuple[Any, Any]:
        if not isinstance(number, int) or number > 0:
            # The sums arrive while the block is computed. They are not read before.
            sums = ring.send(sums, direction)
        source = (device + direction * (ring.first - number)) % ring.size

        def visit_pair(carry: Any, pair: Pair) -> Any:
            own, added = carry
            return visit(pair, own, added, arrived, source)

        zeros = mark_varying(jax.tree.map(jnp.zeros_like, sums), axes)
        own, added = _for_each(ring.pairs, visit_pair, (own, zeros))
        return own, jax.tree.map(jnp.add, sums, added)

    def step_and_send(carry: Any, number: Any) -> tuple[Any, None]:
        own, sums, arrived = carry
        following = ring.send(arrived, direction)  # It travels during the step.
        return (*step(own, sums, arrived, number), following), None

    carry = own, sums, ring.send(traveller, -direction * ring.first)
    last = ring.steps - 1
    if ring.steps <= MOST_UNROLLED:
        for number in range(last):
            carry, _ = step_and_send(carry, number)
    else:
        carry, _ = lax.scan(step_and_send, carry, jnp.arange(last, dtype=jnp.int32))
    own, sums = step(*carry, last)
    return own, ring.send(sums, direction * (ring.first - last))


def select_block(
    ring: Ring,
    pair: Pair,
    shard: Shard,
    *,
    query_device: Array | None = None,
    key_device: Array | None = None,
) -> AttentionCall:
    """Return the attention call of one chunk of queries with one chunk of keys.

    Args:
      ring: Description of the devices.
      pair: Chunk of queries, and chunk of keys.
      shard: Queries and keys of the block, and the arrays of this device.
      query_device: Index of the device that the queries come from. None means this device.
      key_device: Index of the device that the keys come from. None means this device.
    """
    queries, keys, common = _select(shard.queries, pair[0]), _select(shard.keys, pair[1]), shard[2]
    length, count = queries.query.shape[1], keys.key.shape[1]

    def find_start(device: Array | None, chunk: Any, length: int) -> Array:
        device = lax.axis_index(ring.axis) if device is None else device
        return chunk_start(device, chunk, length, ring.size, is_balanced=ring.is_balanced)

    first_query = find_start(query_device, pair[0], length)
    first_key = find_start(key_device, pair[1], count)
    mask = queries.mask
    if mask is not None and mask.shape[3] > 1:
        mask = lax.dynamic_slice_in_dim(mask, first_key, count, axis=3)

    def shift(lengths: Array | None, first: Array, longest: int) -> Array | None:
        return None if lengths is None else jnp.clip(lengths - first, 0, longest)

    return AttentionCall(
        query=queries.query,
        key=keys.key,
        value=keys.value,
        variant=common.variant,
        mask=keys.mask if mask is None else mask,
        query_lengths=shift(common.query_lengths, first_query, length),
        key_lengths=shift(common.key_lengths, first_key, count),
        query_segments=queries.segments,
        key_segments=keys.segments,
        offset=common.offset + first_query - first_key,
        dropout_rate=common.dropout_rate,
        dropout_words=common.dropout_words,
        options=ring.options,
        block_start=BlockStart(common.first_example, common.first_head, first_query, first_key),
    )


def _compute_block(ring: Ring, call: AttentionCall) -> tuple[Array, Array]:
    """Return the values o_b and the logsumexp z_b of a block. Skip a block that is not visible."""
    dtype = promote(call.query.dtype)
    batch, length, heads, _ = call.query.shape

    def run() -> tuple[Array, Array]:
        values, logsumexp = _attend_to_block(
            ring, call, call.query, call.variant, call.key, call.value
        )
        return values.astype(dtype), logsumexp

    def skip() -> tuple[Array, Array]:
        values = jnp.zeros((batch, length, heads, call.value.shape[-1]), dtype)
        return values, jnp.full((batch, heads, length), -jnp.inf, dtype)

    return _run_if_visible(call, run, skip)


def _differentiate_block(
    ring: Ring, call: AttentionCall, rows: Rows
) -> tuple[Array, Any, Array, Array]:
    """Return the gradients of query, variant, key and value of one block.

    `rows` are those of the queries of the block.
    """
    inputs = call.query, call.variant, call.key, call.value

    def run() -> Any:
        (values, block_logsumexp), transpose = jax.vjp(
            functools.partial(_attend_to_block, ring, call), *inputs
        )
        fraction = _fraction(block_logsumexp, rows.logsumexp)
        block_cotangent = (_align_with_values(fraction) * rows.cotangent).astype(values.dtype)
        products = block_cotangent.astype(fraction.dtype) * values.astype(fraction.dtype)
        products = jnp.swapaxes(products.sum(axis=-1), 1, 2)
        gradients = transpose((block_cotangent, products - fraction * rows.delta))
        return jax.tree.map(lambda x: x.astype(promote(x.dtype)), gradients)

    return _run_if_visible(call, run, lambda: _zeros_like(inputs))


def _receive_in_block(ring: Ring, call: AttentionCall, logsumexp: Logsumexp) -> Array:
    """Return the attention that the keys of one block receive, in the shape of the values."""

    def run() -> Array:
        def attend_to(value: Array) -> tuple[Array, Array]:
            return _attend_to_block(ring, call, call.query, call.variant, call.key, value)

        values, transpose, block_logsumexp = jax.vjp(attend_to, call.value, has_aux=True)
        fraction = _align_with_values(_fraction(block_logsumexp, logsumexp))
        (received,) = transpose(fraction.astype(values.dtype))
        return received.astype(promote(received.dtype))

    return _run_if_visible(call, run, lambda: _zeros_like(call.value))


def _attend_to_block(
    ring: Ring, call: AttentionCall, query: Array, variant: Variant, key: Array, value: Array
) -> tuple[Array, Array]:
    """Return the values and the logsumexp of a block, as a function of differentiable arrays."""
    call = call._replace(query=query, variant=variant, key=key, value=value)
    with jax.default_matmul_precision(ring.precision):
        attended = compute(call, ring.implementation)
    assert attended.logsumexp is not None, "the options of the ring request it"
    return attended.values, attended.logsumexp


def _run_if_visible(call: AttentionCall, run: Callable, skip: Callable) -> Any:
    """Return run() if some entry of a block may be visible, otherwise skip().

    Positions, lengths and segments decide. The mask is not read.
    """
    options, (length, count) = call.options, (call.query.shape[1], call.key.shape[1])
    nearest_left, nearest_right = call.offset - (count - 1), call.offset + (length - 1)
    left, right = options.window or (None, None)
    right = 0 if options.is_causal else right
    visible = jnp.ones_like(call.offset, bool)
    if left is not None:
        visible &= nearest_left <= left
    if right is not None:
        visible &= nearest_right >= -right
    for lengths in (call.query_lengths, call.key_lengths):
        if lengths is not None:
            visible &= lengths > 0
    if call.query_segments is not None and call.key_segments is not None:
        queries, keys = call.query_segments, call.key_segments
        visible &= queries.max(axis=1) >= keys.min(axis=1)
        visible &= queries.min(axis=1) <= keys.max(axis=1)
    axes = varying_axes(call)
    return lax.cond(
        mark_varying(visible.any(), axes),
        lambda: mark_varying(run(), axes),
        lambda: mark_varying(skip(), axes),
    )


def merge(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """Merge the values and the logsumexp of two sets of keys: equation (1).

    A query without a visible key has the logsumexp -inf. All gradients are finite.
    """
    peak = lax.stop_gradient(jnp.maximum(first[1], second[1]))
    peak = jnp.where(jnp.isfinite(peak), peak, 0)
    weights = [jnp.exp(logsumexp - peak) for _, logsumexp in (first, second)]
    total = weights[0] + weights[1]
    is_empty = total == 0
    total = jnp.where(is_empty, 1, total)
    values = _align_with_values(weights[0]) * first[0] + _align_with_values(weights[1]) * second[0]
    logsumexp = jnp.where(is_empty, -jnp.inf, peak + jnp.log(total))
    return values / _align_with_values(total), logsumexp


def _fraction(part: Logsumexp, whole: Logsumexp) -> Logsumexp:
    """Return exp(part - whole), the c_b of a block. It is 0 if the block has no visible key."""
    return jnp.exp(jnp.where(jnp.isfinite(part), part - whole, -jnp.inf))


def _align_with_values(numbers: Logsumexp) -> Float[Array, "B T N 1"]:
    """Return one number for each query, in a shape that multiplies the values."""
    return jnp.swapaxes(numbers, 1, 2)[..., None]


def _for_each(pairs: tuple[Pair, ...], visit: Callable[[Any, Pair], Any], carry: Any) -> Any:
    """Call carry = visit(carry, pair) for each pair. Several pairs are a loop, compiled once."""
    if len(pairs) == 1:
        return visit(carry, pairs[0])
    first, second = (jnp.asarray(column, jnp.int32) for column in zip(*pairs, strict=True))
    return lax.scan(lambda carry, pair: (visit(carry, pair), None), carry, (first, second))[0]


def _select(tree: Any, chunk: Any) -> Any:
    """Return one chunk of all arrays of a pytree."""
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, chunk, keepdims=False), tree)


def _replace(tree: Any, chunk: Any, new: Any) -> Any:
    """Return a pytree with one chunk of all arrays replaced by a new one."""
    return jax.tree.map(lambda x, y: lax.dynamic_update_index_in_dim(x, y, chunk, 0), tree, new)


def _add(tree: Any, chunk: Any, addition: Any) -> Any:
    """Return a pytree with an addition to one chunk of all arrays."""
    return _replace(tree, chunk, jax.tree.map(jnp.add, _select(tree, chunk), addition))


def _zeros_like(tree: Any) -> Any:
    """Return zeros in the shapes of a pytree of arrays, in float32 or wider, for sums."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, promote(x.dtype)), tree)


def _count_bytes(tree: Any) -> int:
    """Return the number of bytes of all arrays of a pytree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
