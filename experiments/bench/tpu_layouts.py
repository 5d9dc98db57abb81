"""Dot-product attention with two heads side by side, to compare its schedule with other layouts.

A register of a TPU has 128 lanes. In the plain layout, which has one row per position, a head of
width 64 leaves half of the lanes empty. Here two heads fill them. A matrix product of one head has
zeros in place of the other head, and the wrong half of a result is not used:

    scores of head 1    [q1 | 0] [k1 | k2]ᵀ = q1 k1ᵀ
    values of head 1    A1 [v1 | 1] = [A1 v1 | sums of the rows of A1]
    gradient of q1      dS1 [k1 | k2] = [dS1 k1 | not used]

The library does not use these kernels. They omit what costs additional bundles: masks, copies of
tiles from HBM, and the reference that keeps the exponentials of large scores finite. A kernel owns
one block of queries or keys, and its loop visits all tiles of the other side, which lie in VMEM.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

LANES = 128
WIDTH = LANES // 2  # of a head
HEADS = (0, 1)  # of a pair
Pairs = Float[Array, "P L 128"]  # one row per position, with the vectors of two heads


def attend_side_by_side(
    query: Float[Array, "B L N 64"],
    key: Float[Array, "B L N 64"],
    value: Float[Array, "B L N 64"],
    cotangent: Float[Array, "B L N 64"],
    *,
    tile: tuple[int, int],
    interpret: bool = False,
) -> tuple[Array, dict[str, Array]]:
    """Return the values of dot-product attention, and the gradients of its inputs by name.

    Args:
      query: Queries of an even number of heads.
      key: Keys.
      value: Values.
      cotangent: Cotangent of the values.
      tile: Number of queries and number of keys of a tile. They divide L.
      interpret: If True, run the kernels in the interpreter of Pallas.
    """
    queries, keys = tile
    scale = 1 / math.sqrt(WIDTH)
    scaled = (query * (scale / math.log(2))).astype(query.dtype)  # Weights are powers of 2.
    arrays = {"query": scaled, "key": key, "value": value, "cotangent": cotangent}
    pairs = {name: _pair_heads(x) for name, x in arrays.items()}
    by_query, by_key = ("query", "cotangent", "logsumexp", "delta"), ("key", "value")
    call = functools.partial(_call_kernel, arrays=pairs, interpret=interpret)

    values, pairs["logsumexp"] = call(
        _forward, resident=("query",), streamed=by_key, blocks=(queries, keys)
    )
    delta = (values * pairs["cotangent"]).reshape(*values.shape[:2], 2, WIDTH).sum(axis=3)
    pairs["delta"] = jnp.repeat(delta, WIDTH, axis=2)
    (query_gradient,) = call(
        _query_gradient, resident=by_query, streamed=by_key, blocks=(queries, keys), outputs=1
    )
    for name in ("logsumexp", "delta"):  # One row per head: queries lie in the lanes of a tile.
        pairs[name] = jnp.swapaxes(pairs[name][:, :, ::WIDTH], 1, 2)
    key_gradient, value_gradient = call(
        _key_gradient, resident=by_key, streamed=by_query, blocks=(keys, queries)
    )
    gradients = {
        "query": query_gradient * scale,
        "key": key_gradient * math.log(2),
        "value": value_gradient,
    }
    split = functools.partial(_split_heads, shape=query.shape)
    return split(values), {name: split(x) for name, x in gradients.items()}


def _pair_heads(x: Float[Array, "B L N 64"]) -> Pairs:
    """Write each pair of consecutive heads side by side."""
    batch, length, heads, _ = x.shape
    pairs = jnp.swapaxes(x.reshape(batch, length, heads // 2, LANES), 1, 2)
    return pairs.reshape(-1, length, LANES)


def _split_heads(x: Pairs, shape: tuple[int, ...]) -> Float[Array, "B L N 64"]:
    """Do the inverse of `_pair_heads`."""
    batch, length, heads, _ = shape
    pairs = x.reshape(batch, heads // 2, length, LANES)
    return jnp.swapaxes(pairs, 1, 2).reshape(shape)


def _call_kernel(
    kernel: Callable[..., None],
    *,
    arrays: dict[str, Array],
    resident: tuple[str, ...],
    streamed: tuple[str, ...],
    blocks: tuple[int, int],
    outputs: int = 2,
    interpret: bool,
) -> list[Pairs]:
    """Run a kernel for each pair of heads and each block of positions.

    Args:
      kernel: Function of references: the inputs by name, the outputs, and a buffer for each output.
        It also has the argument `tile`, the number of positions of a tile.
      arrays: Arrays by name, with one row per position, or with one row per head.
      resident: Names of the arrays of which a program reads one block.
      streamed: Names of the arrays of which a program reads all positions.
      blocks: Number of positions of a block and of a tile.
      outputs: Number of outputs, which are float32 arrays with one row per position.
      interpret: If True, run the kernel in the interpreter of Pallas.
    """
    pairs, length, _ = arrays["key"].shape
    block, tile = blocks
    block_spec = pl.BlockSpec((1, block, LANES), lambda pair, i: (pair, i, 0))
    whole_specs = {
        name: pl.BlockSpec((1, *arrays[name].shape[1:]), lambda pair, i: (pair, 0, 0))
        for name in streamed
    }
    return pl.pallas_call(
        functools.partial(kernel, tile=tile),
        out_shape=[jax.ShapeDtypeStruct((pairs, length, LANES), jnp.float32)] * outputs,
        grid=(pairs, length // block),
        in_specs=[{**dict.fromkeys(resident, block_spec), **whole_specs}],
        out_specs=[block_spec] * outputs,
        scratch_shapes=[pltpu.VMEM((block, LANES), jnp.float32)] * outputs,
        name=f"side_by_side{kernel.__name__}",
        interpret=pltpu.InterpretParams() if interpret else False,
    )({name: arrays[name] for name in (*resident, *streamed)})


def _forward(refs: Any, values: Any, logsumexp: Any, *totals: Any, tile: int) -> None:
    """Compute the values of a block of queries, and the base-2 logsumexp of their scores."""
    queries = [_select_head(refs["query"][0], head) for head in HEADS]
    _fill_with_zeros(*totals)

    def step(i: Array, _: None) -> None:
        key, value = (_load_rows(refs[name], i, tile) for name in ("key", "value"))
        for head, total in enumerate(totals):
            weights = jnp.exp2(_multiply(queries[head], key, (1, 1))).astype(value.dtype)
            total[...] += _multiply(weights, _select_head(value, head, other=1), (1, 0))

    lax.fori_loop(0, refs["key"].shape[1] // tile, step, None)
    # The sums of the weights lie in the lanes of the other head.
    sums = [pltpu.roll(total[...], WIDTH, 1) for total in totals]
    values[0] = _join_heads(*(total[...] / x for total, x in zip(totals, sums, strict=True)))
    logsumexp[0] = _join_heads(*(jnp.log2(x) for x in sums))


def _query_gradient(refs: Any, gradient: Any, total: Any, *, tile: int) -> None:
    """Compute the gradient of a block of queries, before it is scaled."""
    query, cotangent = (
        [_select_head(refs[name][0], head) for head in HEADS] for name in ("query", "cotangent")
    )
    logsumexp, delta = (
        [_repeat_lane(refs[name][0], head, tile) for head in HEADS]
        for name in ("logsumexp", "delta")
    )
    _fill_with_zeros(total)

    def step(i: Array, _: None) -> None:
        key, value = (_load_rows(refs[name], i, tile) for name in ("key", "value"))
        gradients = []
        for head in HEADS:
            weights = jnp.exp2(_multiply(query[head], key, (1, 1)) - logsumexp[head])
            weight_gradient = _multiply(cotangent[head], value, (1, 1))
            score_gradient = weights * (weight_gradient - delta[head])
            gradients.append(_multiply(score_gradient.astype(key.dtype), key, (1, 0)))
        total[...] += _join_heads(*gradients)

    lax.fori_loop(0, refs["key"].shape[1] // tile, step, None)
    gradient[0] = total[...]


def _key_gradient(
    refs: Any, key_gradient: Any, value_gradient: Any, *totals: Any, tile: int
) -> None:
    """Compute the gradients of a block of keys, before it is scaled, and of its values.

    A tile has one row per key and one column per query.
    """
    key, value = (
        [_select_head(refs[name][0], head) for head in HEADS] for name in ("key", "value")
    )
    _fill_with_zeros(*totals)

    def step(i: Array, _: None) -> None:
        query, cotangent = (_load_rows(refs[name], i, tile) for name in ("query", "cotangent"))
        columns = pl.ds(pl.multiple_of(i * tile, tile), tile)
        gradients = []
        for head in HEADS:
            logsumexp, delta = (
                refs[name][0, pl.ds(head, 1), columns] for name in ("logsumexp", "delta")
            )
            weights = jnp.exp2(_multiply(key[head], query, (1, 1)) - logsumexp)
            weight_gradient = _multiply(value[head], cotangent, (1, 1))
            score_gradient = (weights * (weight_gradient - delta)).astype(query.dtype)
            gradients.append(
                (
                    _multiply(score_gradient, query, (1, 0)),
                    _multiply(weights.astype(query.dtype), cotangent, (1, 0)),
                )
            )
        for total, pair in zip(totals, zip(*gradients, strict=True), strict=True):
            total[...] += _join_heads(*pair)

    lax.fori_loop(0, refs["query"].shape[1] // tile, step, None)
    key_gradient[0], value_gradient[0] = (total[...] for total in totals)


def _multiply(left: jax.Array, right: jax.Array, axes: tuple[int, int]) -> jax.Array:
    """Multiply two matrices, summed over an axis of each, and return the product in float32."""
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _load_rows(ref: Any, i: Array, tile: int) -> jax.Array:
    """Return tile i of a streamed array."""
    return ref[0, pl.ds(pl.multiple_of(i * tile, tile), tile)]


def _fill_with_zeros(*buffers: Any) -> None:
    for buffer in buffers:
        buffer[...] = jnp.zeros_like(buffer)


def _select_head(x: jax.Array, head: int, other: int = 0) -> jax.Array:
    """Return x with the number `other` in the lanes of the other head."""
    is_first = lax.broadcasted_iota(jnp.int32, x.shape, 1) < WIDTH
    filled = jnp.full_like(x, other)
    return jnp.where(is_first, x, filled) if head == 0 else jnp.where(is_first, filled, x)


def _join_heads(first: jax.Array, second: jax.Array) -> jax.Array:
    """Return the lanes of the first head of one array and those of the second head of another."""
    is_first = lax.broadcasted_iota(jnp.int32, first.shape, 1) < WIDTH
    return jnp.where(is_first, first, second)


def _repeat_lane(x: jax.Array, head: int, count: int) -> jax.Array:
    """Return the number of a head in each row, repeated in `count` lanes."""
    column = x[:, head * WIDTH : head * WIDTH + 1]
    repeated = jnp.broadcast_to(column, (x.shape[0], LANES))
    return jnp.concatenate([repeated] * (count // LANES), axis=1)
