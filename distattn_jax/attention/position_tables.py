"""Tables of a function of the relative position, and of its derivatives.

The function f of `DistanceBias` or `DistanceAware` depends only on the relative position i - j of
query i and key j. T queries and S keys have T + S - 1 relative positions, so that one table per
head contains all values of f. One more table for each parameter θ of f contains ∂f/∂θ.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.arguments import AttentionCall, Head
from distattn_jax.attention.variants import DistanceAware, DistanceBias, Variant
from distattn_jax.attention.vmap_heads import vmap_heads

Tables = tuple[Float[Array, "*B D"], ...]


def count_parameters(variant: Variant) -> int:
    """Return the number of parameters of one head."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(variant))


def make_tables(
    call: AttentionCall, queries: int, keys: int
) -> tuple[Float[Array, "B N C"], Tables]:
    """Return the parameters of each head, and the tables of f and of its derivatives.

    Number x of a table belongs to i - j = x - `keys`, for x from 0 to `queries` + `keys`. Only the
    parameters are differentiable: the tables are constants.

    Args:
      call: Arguments of attention with the variant `DistanceBias` or `DistanceAware`.
      queries: Number of queries, which may include padding.
      keys: Number of keys, which may include padding.
    """
    one_head = functools.partial(_make_head_tables, queries=queries, keys=keys)
    return vmap_heads(one_head, call, (0, (0,) * (1 + count_parameters(call.variant))))


def _make_head_tables(head: Head, *, queries: int, keys: int) -> tuple[Float[Array, " C"], Tables]:
    """Return the parameters and the tables of one head of one example."""
    last_query, last_key = head.query.shape[0] - 1, head.key.shape[0] - 1
    # Padding gets the number of the nearest relative position that occurs: f may overflow beyond.
    relative = jnp.clip(jnp.arange(-keys, queries + 1, dtype=jnp.int32), -last_key, last_query)
    evaluate = jax.vmap(jax.value_and_grad(_evaluate), (None, 0))
    values, gradients = evaluate(jax.lax.stop_gradient(head.variant), relative + head.offset)
    tables = [values]
    for leaf in jax.tree.leaves(gradients):
        tables += list(leaf.reshape(relative.size, -1).T)
    leaves = [leaf.reshape(-1) for leaf in jax.tree.leaves(head.variant)]
    parameters = jnp.concatenate(leaves) if leaves else jnp.zeros(0)
    return parameters.astype(jnp.float32), tuple(table.astype(jnp.float32) for table in tables)


def _evaluate(variant: DistanceAware | DistanceBias, relative_position: Array) -> Float[Array, ""]:
    """Return the function f of a variant for one relative position."""
    f = variant.coefficients if isinstance(variant, DistanceAware) else variant.bias
    # Two axes, as in a map of queries by keys.
    return f(relative_position.reshape(1, 1))[0, 0] * 1.0  # a float, even if f returns integers
