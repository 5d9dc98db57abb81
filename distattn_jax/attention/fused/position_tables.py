"""Table of a function of the relative position, with one number for each relative position.

A function f of the relative position i - j of query i and key j has T + S - 1 different values for
T queries and S keys, so that one table per head contains all of them. The kernels read this table,
and return its gradient: one number for each relative position. JAX derives the gradients of the
parameters of f, because the table is computed with plain JAX.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.fused.kernel_view import Block, broadcast_heads

Evaluate = Callable[[Any, Int[Array, "T S"]], Array]
OneHead = Callable[[Any, Int[Array, " D"]], Float[Array, " D"]]


def make_table(
    evaluate: Evaluate, variant: Any, block: Block, factor: float, *, joins_gradients: bool = False
) -> Float[Array, "#B N D"]:
    """Return a table of a function f of the relative position for each head.

    If all examples have the same offset, they share the table: B is 1. Otherwise there is one table
    for each example. Index x of a table, from 0 to T + S, belongs to the rows i of queries and j of
    keys with i - j = x - S. T and S are the padded numbers of queries and keys. The relative
    position is x - S plus the offset of the example.

    Args:
      evaluate: Returns f at an array of relative positions, given a variant with the parameters of
        one head.
      variant: Attention variant whose arrays are the parameters of f.
      block: Arrays of the call.
      factor: Number by which f is multiplied.
      joins_gradients: If True, fewer operations compute the gradients of the parameters: see
        `_join_gradients`. f must have few parameters, and use no other differentiated arrays.
    """

    def one_head(variant: Any, relative: Array) -> Array:
        return factor * evaluate(variant, relative[:, None])[:, 0].astype(jnp.float32)

    return _tabulate(_join_gradients(one_head) if joins_gradients else one_head, variant, block)


def _join_gradients(one_head: OneHead) -> OneHead:
    """Return the same function, with fewer operations in the gradients of its parameters.

    JAX differentiates each operation of f separately, so that XLA compiles many small kernels. In
    short texts, starting them takes longer than their work. Here the backward pass computes the
    derivative of each number of the table by each parameter, and XLA computes it in the same kernel
    as the sum over all numbers.
    """

    def one_number(variant: Any, relative_position: Array) -> Float[Array, ""]:
        return one_head(variant, relative_position[None])[0]

    def forward(variant: Any, relative: Array) -> tuple[Array, tuple[Any, Array]]:
        return one_head(variant, relative), (variant, relative)

    def backward(residuals: tuple[Any, Array], cotangent: Float[Array, " D"]) -> tuple[Any, None]:
        variant, relative = residuals
        derivatives = jax.vmap(jax.grad(one_number), (None, 0))(variant, relative)

        def sum_numbers(derivative: Float[Array, "D ..."]) -> Array:
            axes = range(1, derivative.ndim)
            return (derivative * jnp.expand_dims(cotangent, axes)).sum(axis=0)

        return jax.tree.map(sum_numbers, derivatives), None

    joint = jax.custom_vjp(one_head)
    joint.defvjp(forward, backward)
    return joint


def bound_table(
    evaluate: Evaluate, variant: Any, block: Block, factor: float
) -> Float[Array, "#B N D"]:
    """Return a table of the maximum of |f| and of |df/dp| over all parameters p of f.

    The arguments and the layout of the table are those of `make_table`. `factor` must not be
    negative. No gradient flows through the table.
    """

    def one_head(variant: Any, relative: Array) -> Array:
        return factor * jnp.abs(_differentiate(evaluate, variant, relative)).max(axis=1)

    return _tabulate(one_head, jax.lax.stop_gradient(variant), block)


def bound_change(
    evaluate: Evaluate, variant: Any, block: Block, factor: float
) -> Float[Array, "#B N D"]:
    """Return a table of the maximum of |f - f∞| and of |df/dp - df∞/dp| over all parameters p of f.

    f∞ is f at the largest distance on the same side: the first number of the table is f∞ for keys
    after the query, and the last number is f∞ for keys before the query. The arguments and the
    layout of the table are those of `bound_table`.
    """

    def one_head(variant: Any, relative: Array) -> Array:
        numbers = _differentiate(evaluate, variant, relative)
        far = jnp.where(relative[:, None] >= 0, numbers[-1:], numbers[:1])
        return factor * jnp.abs(numbers - far).max(axis=1)

    return _tabulate(one_head, jax.lax.stop_gradient(variant), block)


def _differentiate(
    evaluate: Evaluate, variant: Any, relative: Int[Array, " D"]
) -> Float[Array, "D _"]:
    """Return f and its derivatives by all parameters, in one row for each relative position."""

    def evaluate_once(variant: Any, relative_position: Array) -> Float[Array, ""]:
        # A map of one query and one key, and a float, even if f returns integers.
        return evaluate(variant, relative_position.reshape(1, 1))[0, 0] * 1.0

    numbers = jax.vmap(jax.value_and_grad(evaluate_once), (None, 0))(variant, relative)
    columns = [x.reshape(relative.size, -1) for x in jax.tree.leaves(numbers)]
    return jnp.concatenate(columns, axis=1).astype(jnp.float32)


def _tabulate(one_head: OneHead, variant: Any, block: Block) -> Float[Array, "#B N D"]:
    """Call a function for each offset and head, and return the results as one array.

    Args:
      one_head: Function of a variant with the parameters of one head, and of all relative
        positions.
      variant: Attention variant.
      block: Arrays of the call.
    """
    _, queries, heads, _ = block.query.shape
    keys = block.key.shape[1]
    # Only padding has relative positions outside of this range. f may overflow there: clip them.
    relative = jnp.clip(block.relative_positions, 1 - keys, queries - 1)
    per_head = jax.vmap(one_head, (0, None), axis_size=heads)  # f may have no parameters
    return jax.vmap(per_head, (None, 0))(
        broadcast_heads(variant, heads), relative[None, :] + block.offset[:, None]
    )
