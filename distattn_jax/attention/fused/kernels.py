"""Interface of the attention kernels, which every type of chip implements.

For query i and key j, the kernels compute

    forward           O_i = Σ_j A_ij V_j,    A_ij = 2^(e_ij - z_i)   output and weights
    query_gradient    dQ_i = Σ_j dP_ij K_j,  dS_ij = A_ij (dO_i · V_j + g_j - D_i)
    key_gradient      dK_j = Σ_i dP_ij Q_i,  dV_j = Σ_i A_ij dO_i
    received          m_j = Σ_i A_ij         attention that key j receives
    attention_given   Σ_j A_ij g_j
    position_gradient dR[x] = Σ dP_ij p_i    over all i and j with i - j = x - S

Q, K and V are the queries, keys and values. e_ij are the scores to base 2 (scores times log2(e)),
and z_i is the logsumexp of the scores of query i. dO is the cotangent of O, g is the cotangent of
m, and -D_i is `BackwardOperands.negative_delta`. R are the position vectors, p_i is the position
query of query i, and S is the number of keys. dS is the gradient of the scores. The scoring
computes the gradient dP of the products q · k from dS. With dropout, the sums that contain V or dO
use only the weights that are kept.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from distattn_jax.attention.fused.operands import BackwardOperands, Operands
from distattn_jax.attention.fused.scoring import Scoring
from distattn_jax.attention.fused.visible_columns import Window


class Plan(NamedTuple):
    """Options of the kernels that are fixed when the program is traced.

    Attributes:
      scoring: Function from products q · k to scores.
      window: Largest number of positions by which a visible key may be before and after a query.
      received: If True, compute the attention that each key receives, summed over the queries.
      logsumexp: If True, return the logsumexp of the scores of each query.
      tolerance: Largest allowed error of a score. At large distances, kernels replace the distance
        function by a constant if the error of the scores stays below the tolerance. If 0, they
        replace it only where its value in float32 is constant. If None, they never replace it.
        For heads that forget distant keys, it is the largest sum of the weights of all keys that a
        query skips: see `forgetting`.
      trained_key_width: Number of columns of the keys that need a gradient. These are the first
        columns. The kernels may return zeros for the gradient of the other columns. If None, all
        columns need a gradient.
      has_padded_keys: False if no example has padded keys. If the number of keys is also a multiple
        of the tile size, kernels are compiled without the code for tiles with padded keys.
    """

    scoring: Scoring
    window: Window
    received: bool
    logsumexp: bool
    tolerance: float | None
    trained_key_width: int | None = None
    has_padded_keys: bool = True


class QueryGradients(NamedTuple):
    """Outputs of the kernel `query_gradient`. Gradients of absent operands are None.

    Attributes:
      query: Gradient of the queries.
      coefficients: Gradient of `Operands.coefficients`.
      factor_table: Gradient of `Operands.factor_table`.
      bias_table: Gradient of `Operands.bias_table`.
      relation_products: Gradient of `Operands.relation_products`.
      position_query: Gradient of the queries that are multiplied by position vectors.
      positions: Gradient of the position vectors. None if `Kernels.position_gradient` computes it.
      key_table: Gradient of `Operands.key_table`. None if the kernels do not read the table.
      value_table: Gradient of `Operands.value_table`. None if the kernels do not read the table.
    """

    query: Float[Array, "B T N H"]
    coefficients: Float[Array, "1 N C"]
    factor_table: Float[Array, "#B N D"] | None
    bias_table: Float[Array, "#B N D"] | None
    relation_products: Float[Array, "B T N R"] | None
    position_query: Float[Array, "B T N H"] | None
    positions: Float[Array, "#B D #N H"] | None = None
    key_table: Float[Array, "#N _ H"] | None = None
    value_table: Float[Array, "#N R E"] | None = None


class Kernels(NamedTuple):
    """Kernels for one type of chip, bound to the plan and the operands of one call.

    The logsumexp of each query is to base 2 and has the shape (B, N, T). The kernels may pad the
    last axis of the logsumexp. A_ij is the attention weight of query i and key j.

    Attributes:
      forward: Computes the output O, shape (B, T, N, E), the logsumexp, and the relation weights or
        None. With `Scoring.multiplies_tables`, it computes `BackwardOperands.end_weights` instead
        of the relation weights.
      query_gradient: Computes `QueryGradients`. Also returns its argument with the arrays that the
        other kernels need, such as `BackwardOperands.negative_delta`.
      key_gradient: Computes the gradients of the keys and of the values.
      received: Computes the attention that each key receives, Σ_i A_ij, shape (B, N, S), from the
        logsumexp.
      attention_given: Computes Σ_j A_ij g_j, shape (B, N, T), from the logsumexp and the cotangent
        g of the received attention, shape (B, N, S).
      padded_queries: Number of queries after padding: the length of the logsumexp that the kernels
        read.
      position_gradient: Computes the gradient of the position vectors. None if `query_gradient`
        computes this gradient.
    """

    forward: Callable[[], tuple[Array, Array, Any]]
    query_gradient: Callable[[BackwardOperands], tuple[QueryGradients, BackwardOperands]]
    key_gradient: Callable[[BackwardOperands], tuple[Array, Array]]
    received: Callable[[Array], Array]
    attention_given: Callable[[Array, Array], Array]
    padded_queries: int
    position_gradient: Callable[[BackwardOperands], Array] | None = None


KernelFactory = Callable[[Plan, Operands], Kernels]
