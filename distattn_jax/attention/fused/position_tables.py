"""Tables of a function of the relative position, and of its derivatives.

A function f of the relative position i - j of query i and key j has T + S - 1 different values for
T queries and S keys, so that one table per head contains all of them. One more table for each
parameter θ of f contains ∂f/∂θ.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.fused.kernel_view import Block, broadcast_heads

MAX_PARAMETERS = 4  # per head: the kernels read and sum one more table for each of them


def count_parameters(variant: Any) -> int:
    """Return the number of parameters per head in the arrays of a variant.

    Axis 0 of each array is the head axis, and is not counted.
    """
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(variant))


def unsupported_parameters_reason(variant: Any) -> str | None:
    """Return an error text if a variant has too many parameters for the kernels, else None.

    The parameters are the arrays of the variant, such as w and v of `DistanceAware`.
    """
    parameters = count_parameters(variant)
    if parameters <= MAX_PARAMETERS:
        return None
    return (
        f"a function of the relative position must have at most {MAX_PARAMETERS} "
        f"parameters per head; got {parameters}"
    )


def make_tables(
    evaluate: Callable[[Any, Int[Array, "T S"]], Array], variant: Any, block: Block, factor: float
) -> tuple[Float[Array, "B N C"], tuple[Float[Array, "B N D"], ...]]:
    """Return the parameters of each head, and tables of a function f of the relative position.

    There is one table of f, and one table of the derivative of f by each parameter. The entry at
    index x of a table belongs to the queries i and keys j with i - j = x - S, for x from 0 to
    T + S, where T and S are the padded numbers of queries and keys. Only the parameters are
    differentiable: the tables are constants.

    Args:
      evaluate: Returns f at an array of relative positions, given a variant with the parameters of
        one head.
      variant: Attention variant whose arrays are the parameters of f.
      block: Arrays of the call.
      factor: Number by which all tables are multiplied.
    """
    batch, queries, heads, _ = block.query.shape
    keys = block.key.shape[1]
    # Padding gets the number of the nearest relative position that occurs: f may overflow beyond.
    relative = jnp.clip(block.relative_positions, 1 - keys, queries - 1)

    def evaluate_once(variant: Any, relative_position: Array) -> Float[Array, ""]:
        # A map of one query and one key, and a float, even if f returns integers.
        return evaluate(variant, relative_position.reshape(1, 1))[0, 0] * 1.0

    def one_head(variant: Any, offset: Array) -> list[Array]:
        tabulate = jax.vmap(jax.value_and_grad(evaluate_once), (None, 0))
        values, gradients = tabulate(variant, relative + offset)
        tables = [values]
        for leaf in jax.tree.leaves(gradients):
            tables += list(leaf.reshape(relative.size, -1).T)
        return [factor * table.astype(jnp.float32) for table in tables]

    variant = broadcast_heads(variant, heads)
    per_head = jax.vmap(one_head, (0, None), axis_size=heads)  # f may have no parameters
    per_example = jax.vmap(per_head, (None, 0))
    tables = per_example(jax.lax.stop_gradient(variant), block.offset)
    leaves = [leaf.reshape(heads, -1) for leaf in jax.tree.leaves(variant)]
    parameters = jnp.concatenate(leaves, axis=1) if leaves else jnp.zeros((heads, 0))
    return (
        jnp.broadcast_to(parameters.astype(jnp.float32), (batch, *parameters.shape)),
        tuple(jnp.broadcast_to(table, (batch, *table.shape[1:])) for table in tables),
    )
