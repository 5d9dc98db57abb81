"""Relative position attention with two small arrays P and W, for the kernels of any chip.

The relation of query i and key j is r = clip(j - i - offset, -k, k) + k, from 0 to 2k. Shaw et al.
(2018) add a vector A^K_r to each key and a vector A^V_r to each value. The kernels never see these
two tables of vectors. They read P and write W:

    P[i, r] = q_i · A^K_r                             relation products, an input of the kernels
    s_ij    = scale (q_i · k_j + P[i, r_ij])          scores
    W[i, r] = Σ_j [r_ij = r] A_ij                     relation weights, an output of the kernels
    O_i     = Σ_j A_ij v_j + Σ_r W[i, r] A^V_r        output of attention

A_ij are the weights after dropout. In the backward pass, dO is the cotangent of O, G is the
cotangent of W, and dS is the gradient of the scores:

    dA_ij    = dO_i · v_j + G[i, r_ij]
    D_i      = dO_i · Σ_j A_ij v_j + Σ_r W[i, r] G[i, r]
    dP[i, r] = scale Σ_j [r_ij = r] dS_ij

The tables occur in plain matrix products outside of the kernels, so JAX derives their gradients.

The relations 0 and 2k are the end relations, or ends. A tile is far if all its entries have the
same end relation. In a far tile, the kernel adds one number per query to the products, and adds the
sum of the weights of each query i to W[i, 0] or W[i, 2k]. All other tiles are band tiles. Each pair
(i, r) with 0 < r < 2k belongs to one key, so that band tiles write such entries of W and dP without
conflicts. A band tile is computed before the logsumexp of its queries is known. A GPU kernel
therefore writes scores instead of weights, and the weights are computed after the kernel.

Adding one number to all scores of a query changes its logsumexp, but no weight. The kernels
therefore receive P[i, r] - P[i, 0]: far tiles with relation 0 then add nothing.

The GPU kernels multiply small tables themselves (`Scoring.multiplies_tables`): P, W and G then stay
in shared memory, and `fused.gpu.relation_rows` describes the arrays that remain.
"""

import functools
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused.operands import Operands, select_precision

MAX_CLIP_DISTANCE = 128  # of relative positions
# The kernels of a GPU multiply tables up to these sizes. Larger ones need too much shared memory.
MAX_TABLE_DISTANCE = 64
MAX_TABLE_WIDTH = 64
MAX_PRECISE_DISTANCE = 32  # Up to here, float32 cotangents of relation weights fit, too.
BEFORE, AFTER = 1, -1  # sides of keys that precede and follow the query, as in `TileKind`


def end_sides(*, is_causal: bool) -> tuple[int, ...]:
    """Return the sides on which visible keys can be far from their query.

    A key is far if its distance is at least k, the distance at which relations are clipped.

    BEFORE stands for far keys before the query, which have relation 0. AFTER stands for far keys
    after the query, which have relation 2k. The result is (BEFORE,) with a causal mask, and
    (BEFORE, AFTER) without one.
    """
    return (BEFORE,) if is_causal else (BEFORE, AFTER)


def unsupported_distance_reason(clip_distance: int) -> str | None:
    """Return an error text if the kernels do not support a clip distance, else None.

    The clip distance is the distance k at which relative positions are clipped.
    """
    if clip_distance <= MAX_CLIP_DISTANCE:
        return None
    return f"relations must be clipped at most at {MAX_CLIP_DISTANCE}; got {clip_distance}"


def can_multiply_tables(clip_distance: int, width: int, dtype: Any) -> bool:
    """Return True if the kernels of a GPU can multiply the tables: see `Scoring.multiplies_tables`.

    Args:
      clip_distance: The distance k at which relations are clipped.
      width: Width of the widest of queries, keys and values.
      dtype: Dtype of the queries.
    """
    # Cotangents of weights in bfloat16 have the range of float32, those in float16 do not.
    is_precise = clip_distance <= MAX_PRECISE_DISTANCE or dtype == jnp.bfloat16
    return 0 < clip_distance <= MAX_TABLE_DISTANCE and width <= MAX_TABLE_WIDTH and is_precise


def resize_table(table: Float[Array, "#N _ W"], clip_distance: int) -> Float[Array, "#N _ W"]:
    """Add relations at both ends of a table, so that it has 2 clip_distance + 1 relations.

    The new relations repeat the vector of the first or the last relation, so that the attention
    does not change.

    Args:
      table: One vector of width W for each relation.
      clip_distance: The distance at which relations are clipped in the result.
    """
    padding = clip_distance - table.shape[1] // 2
    first, last = [table[:, :1]] * padding, [table[:, -1:]] * padding
    return jnp.concatenate([*first, table, *last], axis=1)


def compute_products(operands: Operands) -> Float[Array, "B T N R"] | None:
    """Return P[i, r] - P[i, 0] for each query i and relation r.

    P[i, r] is added to the product of query i with each key that has relation r, a clipped relative
    position. It is computed from `Operands.key_table`. Return None if the table is None.
    """
    table = operands.key_table
    # Subtracting the first vector of the table takes less time than subtracting P[i, 0].
    return None if table is None else multiply_relations(operands.query, table - table[:, :1])


def compute_first_product(operands: Operands) -> Float[Array, "B T N"]:
    """Return P[i, 0] for each query i, computed from `Operands.key_table`.

    P[i, 0] is added to the product of query i with each key that has relation 0: a key that is k or
    more positions before the query.
    """
    assert operands.key_table is not None, "relation products need a table"
    return multiply_relations(operands.query, operands.key_table[:, :1])[..., 0]


def multiply_relations(
    query: Float[Array, "B T N H"], table: Float[Array, "#N R H"]
) -> Float[Array, "B T N R"]:
    """Return the product of each query with the vector of each relation, in float32.

    The table has one vector for each relation and head, or for all heads. It is rounded to the
    dtype of the query.
    """
    table = table.astype(query.dtype)
    multiply = functools.partial(
        jnp.einsum, preferred_element_type=jnp.float32, precision=select_precision(query.dtype)
    )
    if table.shape[0] == 1:
        return multiply("btnh,rh->btnr", query, table[0])
    return multiply("btnh,nrh->btnr", query, table)


def multiply_inner_relations(operands: Operands) -> Float[Array, "B T N R"] | None:
    """Return P[i, r] - P[i, 0] like `compute_products`, for kernels that multiply the tables.

    `Operands.key_table` then has no vector for relation 0, and the vectors of the other relations
    are differences to it.
    """
    if operands.key_table is None:
        return None
    products = multiply_relations(operands.query, operands.key_table)
    return jnp.pad(products, ((0, 0), (0, 0), (0, 0), (1, 0)))


def sum_relation_values(
    weights: Float[Array, "B T N R"], table: Float[Array, "#N R E"], dtype: Any
) -> Float[Array, "B T N E"]:
    """Return Σ_r weights[i, r] table[r] for each query i, in float32.

    Args:
      weights: Relation weights: the sum of the weights of all keys that have relation r to query i.
      table: One vector for each relation r, which is added to the values of the keys.
      dtype: Dtype of the queries of the call, which determines the precision.
    """
    precision = select_precision(dtype)
    if table.shape[0] == 1:
        return jnp.einsum("btnr,re->btne", weights, table[0], precision=precision)
    return jnp.einsum("btnr,nre->btne", weights, table, precision=precision)
