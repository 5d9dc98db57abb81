"""Upper bounds of the products of queries and keys."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def largest_product(
    query: Float[Array, "B T N H"], key: Float[Array, "B S K H"]
) -> Float[Array, "B N"]:
    """Return an upper bound of |q · k| for each head, the product of the largest norms."""
    group_size = query.shape[2] // key.shape[2]
    return _largest_norm(query) * jnp.repeat(_largest_norm(key), group_size, axis=1)


def _largest_norm(x: Float[Array, "B L N W"]) -> Float[Array, "B N"]:
    """Return the largest Euclidean norm among the L rows of each head."""
    squares = jnp.square(x.astype(jnp.float32)).sum(axis=-1)
    return jnp.sqrt(squares.max(axis=1))
