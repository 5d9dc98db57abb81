"""Implementation "xla": plain JAX operations, in blocks of queries if (T, S) arrays are large."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention import devices
from distattn_jax.attention.arguments import Attended, AttentionCall, Head, Options
from distattn_jax.attention.softmax import QueryBlock, compute_outputs
from distattn_jax.attention.variants import promote
from distattn_jax.attention.vmap_heads import vmap_heads

LARGEST_MAP = 256 * 2**20  # bytes of the (B, N, T, S) map that may be stored for a backward pass
LARGEST_BLOCK = 64 * 2**20  # bytes of the map that are computed at once
# Bytes of the map that are computed at once, and may be stored, on a GPU. A user may set another
# limit before the first call.
LARGEST_GPU_MAP = 2**30
FEWEST_ROWS = 16  # queries of a block, even if they exceed the largest block
LARGEST_TILE = 2**14  # scores of a tile of XLA's softmax on a GPU
_calls_at_once = contextvars.ContextVar("calls_at_once", default=1)


class Blocks(NamedTuple):
    """Division of the (B, N, T, S) map into blocks of queries, and arrays that are stored.

    Attributes:
      rows: Number of queries in a block. None computes all queries at once.
      recompute: If True, the backward pass computes every block again. If False, the map is stored.
      store_scores: If True, the scores are written to memory before the softmax reads them. If
        False, the compiler may compute them inside the softmax.
    """

    rows: int | None
    recompute: bool
    store_scores: bool = False


@contextlib.contextmanager
def calls_at_once(count: int) -> Iterator[None]:
    """Divide `LARGEST_GPU_MAP` by `count` for calls that are traced inside this `with` block.

    Use it around a `jax.vmap` over `count` models or inputs: the maps of all of them are in memory
    at the same time, but a call inside of `jax.vmap` knows only its own. A function that JAX has
    traced before keeps its limit. Apply `jax.jit` outside of this block, not inside of `jax.vmap`.

    Args:
      count: Number of calls that are computed at the same time.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1; got {count}.")
    token = _calls_at_once.set(_calls_at_once.get() * count)
    try:
        yield
    finally:
        _calls_at_once.reset(token)


def run(call: AttentionCall) -> Attended:
    """Compute attention with plain JAX operations, in blocks of queries if T times S is large."""
    return _run(call, _choose_blocks(call, LARGEST_BLOCK, LARGEST_MAP))


def run_on_gpu(call: AttentionCall) -> Attended:
    """Compute attention like `run`, with the larger blocks that make a GPU fast."""
    limit = LARGEST_GPU_MAP // _calls_at_once.get()
    blocks = _choose_blocks(call, limit, limit)
    return _run(call, blocks._replace(store_scores=_has_large_tiles(call, blocks)))


def unsupported_reason_on_gpu(call: AttentionCall) -> str | None:
    """Return None if this machine has a GPU, otherwise a text that says so.

    The machine that traces a program decides, not the platform that it is lowered for: with a
    branch for each platform, the backward pass would store the maps of all branches.
    """
    return None if devices.local_machine().has_gpu else "this machine has no GPU"


def _has_large_tiles(call: AttentionCall, blocks: Blocks) -> bool:
    """Return True if XLA's softmax would be slow because it adds a bias that examples share.

    To read a row of the bias once, XLA computes this row of all examples in one tile, of at most
    `LARGEST_TILE` scores. The largest tiles need so many registers that a GPU has only one of them
    per multiprocessor. Adding the bias before the softmax is then faster, although it reads and
    writes the map once more. If weights have 16 bits, it would also need more memory, which only a
    backward pass in blocks can spare.
    """
    if call.has_symbolic_shape or not call.variant.adds_bias:
        return False
    has_16_bit_weights = call.value.dtype.itemsize <= 2
    if has_16_bit_weights and not blocks.recompute:
        return False
    batch, keys = call.key.shape[:2]
    return call.offset.shape[0] == 1 < batch and batch * keys >= LARGEST_TILE


def _choose_blocks(call: AttentionCall, largest_block: int, largest_map: int) -> Blocks:
    """Choose blocks of at most `largest_block` bytes. Maps of up to `largest_map` bytes are stored.

    Symbolic shapes have an unknown size. The whole map is then computed at once.
    """
    batch, queries, heads, _ = call.query.shape
    if call.has_symbolic_shape:
        return Blocks(None, recompute=False)
    row_bytes = batch * heads * call.key.shape[1] * promote(call.query.dtype).itemsize
    recompute = row_bytes * queries > largest_map
    if row_bytes * queries <= largest_block:
        return Blocks(None, recompute)
    rows = max(FEWEST_ROWS, 2 ** math.floor(math.log2(max(1, largest_block / row_bytes))))
    return Blocks(rows if rows < queries else None, recompute)


# Under jit, repeated calls outside of any other jit share one compilation. `inline` leaves programs
# that are compiled as a whole unchanged.
@functools.partial(jax.jit, static_argnames="blocks", inline=True)
def _run(call: AttentionCall, blocks: Blocks) -> Attended:
    """Compute attention of all heads."""
    one_head = functools.partial(_attend_in_blocks, options=call.options, blocks=blocks)
    return vmap_heads(one_head, call)


def _attend_in_blocks(head: Head, options: Options, blocks: Blocks) -> Attended:
    """Compute attention of one head of one example, one block of queries at a time."""
    rows = blocks.rows
    if rows is None:
        query, prepared = head.variant.prepare(head.query, head.key, head.offset)
        block = QueryBlock(jnp.int32(0), query, head.mask, head.query_segments)
        return _attend_block(head, options, blocks, prepared, block)

    length = head.query.shape[0]
    count = -(-length // rows)

    def split(array):
        """Pad the first axis, and split it into two axes of sizes `count` and `rows`."""
        padding = ((0, count * rows - length), *((0, 0) for _ in array.shape[1:]))
        return jnp.pad(array, padding).reshape(count, rows, *array.shape[1:])

    padded_query = split(head.query).reshape(count * rows, -1)
    query, prepared = head.variant.prepare(padded_query, head.key, head.offset)
    has_row_masks = head.mask is not None and head.mask.shape[0] > 1
    stacked = QueryBlock(
        start=jnp.arange(count, dtype=jnp.int32) * rows,
        query=query.reshape(count, rows, -1),
        mask=split(head.mask) if has_row_masks else None,
        segments=None if head.query_segments is None else split(head.query_segments),
    )

    def step(received, block):
        if not has_row_masks:
            block = block._replace(mask=head.mask)
        attended = _attend_block(head, options, blocks, prepared, block)
        if options.received:
            received += attended.received
        return received, attended._replace(received=None)

    received = None
    if options.received:
        received = jnp.zeros_like(head.key[:, 0], promote(head.query.dtype))
    received, attended = jax.lax.scan(
        jax.checkpoint(step) if blocks.recompute else step, received, stacked
    )
    attended = jax.tree.map(lambda x: x.reshape(count * rows, *x.shape[2:])[:length], attended)
    return attended._replace(received=received)


def _attend_block(
    head: Head, options: Options, blocks: Blocks, prepared: Any, block: QueryBlock
) -> Attended:
    """Compute attention of a block of queries of one head.

    Args:
      head: Arguments of the whole head.
      options: Arguments of `attention` that are Python values.
      blocks: Division of the map into blocks.
      prepared: Second output of `Variant.prepare`, which all blocks share.
      block: Queries of the block, with their mask and segments.
    """
    offset = head.offset + block.start
    scores = head.variant.block_scores(block.query, prepared, offset, block.start, options.scale)
    if blocks.store_scores:
        scores = _store(scores)
    weighted_values = functools.partial(
        head.variant.block_weighted_values, value=head.value, offset=offset
    )
    stored_dtype = _choose_stored_dtype(head, options)
    return compute_outputs(scores, head, options, block, weighted_values, stored_dtype)


def _choose_stored_dtype(head: Head, options: Options) -> Any:
    """Return the dtype in which weights are stored for the backward pass: see `masked_softmax`.

    With values of 16 bits, it is their dtype: the weights are rounded before their product with the
    values anyway (`weigh`). It is None if `weights` or `received` are requested, so that these are
    exact.
    """
    is_output = options.weights or options.received
    return None if is_output or head.value.dtype.itemsize > 2 else head.value.dtype


@jax.custom_jvp
def _store(scores: Float[Array, "block S"]) -> Float[Array, "block S"]:
    """Return the scores, after they are written to memory. Derivatives need not be stored."""
    return jax.lax.optimization_barrier(scores)


@_store.defjvp
def _store_jvp(primals, tangents):
    return _store(*primals), tangents[0]
