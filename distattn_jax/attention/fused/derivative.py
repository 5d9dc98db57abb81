"""Fused attention with a custom derivative, for the kernels of any chip.

A_ij is the attention weight of query i and key j, and V_j is the value of key j. dO, g and dz are
the cotangents of the output O, of the received attention m and of the logsumexp. Then

    O_i   = Σ_j A_ij V_j                             output
    m_j   = Σ_i A_ij                                 received attention
    D_i   = dO_i · O_i + Σ_j A_ij g_j - dz_i         delta
    dS_ij = A_ij (dO_i · V_j + g_j - D_i)            gradient of the scores

With relation weights W_ir and their cotangent G (see `relations`), D_i also contains Σ_r W_ir G_ir.

The gradients of the scores of one query sum to dz_i, because Σ_j A_ij = 1. In the kernels, this sum
has an error, because D is computed from an output that was rounded to 16 bits. A bias that is
nearly constant has a gradient near 0, which may be smaller than the error. The gradient of a bias
table is therefore changed to have the exact sum: see `correct_sum`.

The residuals are the operands, the output O, one logsumexp per query, and W. There is no (T, S)
array.

`forward_block` and `backward_block` compute one block of keys alone. If z is the logsumexp over all
blocks, then A = e^(s - z) for the scores s of each block. If D is also computed from the output
over all blocks, the gradients of the blocks add up to the gradients of the whole call.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from distattn_jax.attention.fused import relations, skipped_tiles
from distattn_jax.attention.fused.distance_functions import LOG2E
from distattn_jax.attention.fused.kernels import KernelFactory, Plan
from distattn_jax.attention.fused.operands import EMPTY_LOGSUMEXP, BackwardOperands, Operands
from distattn_jax.attention.fused.saturation import LARGEST_FAR_BIAS
from distattn_jax.attention.fused.small_scores import find_small_scores

Logsumexp = Float[Array, "B N _"]
SMALLEST_SQUARES = 1e-30  # A smaller sum may lack squares that were rounded to 0.


class Outputs(NamedTuple):
    """Outputs of fused attention. `received` and `logsumexp` are None unless requested.

    Attributes:
      values: Weighted sum of values for each query.
      received: Attention that each key receives, summed over the queries.
      logsumexp: Logarithm of Σ_j exp(score_ij) of each query i. It is -inf for a query without a
        visible key.
    """

    values: Float[Array, "B T N E"]
    received: Float[Array, "B N S"] | None
    logsumexp: Float[Array, "B N T"] | None


class BlockOutputs(NamedTuple):
    """Outputs of the forward kernels for the operands of a call, or for one block of its keys.

    Attributes:
      values: Weighted sum of values for each query. The vectors of `Operands.value_table` are not
        yet added, unless the kernels do so (see `Scoring.multiplies_tables`).
      logsumexp: Logsumexp of the scores of each query, to base 2. Its last axis may be padded. It
        is `EMPTY_LOGSUMEXP` for a query without a visible key.
      received: Attention that each key receives, summed over the queries. None unless requested.
      relation_weights: Relation weights W of each query: see `relations`. None if the scoring does
        not need them, or if the kernels multiply them by `Operands.value_table`.
      end_weights: See `BackwardOperands.end_weights`.
    """

    values: Float[Array, "B T N E"]
    logsumexp: Float[Array, "B N _"]
    received: Float[Array, "B N S"] | None
    relation_weights: Float[Array, "B T N R"] | None
    end_weights: tuple[Float[Array, "B N _"], Float[Array, "B N _"] | None] | None = None


def fused_attention(make_kernels: KernelFactory, plan: Plan, operands: Operands) -> Outputs:
    """Compute attention with the kernels for one type of chip.

    Args:
      make_kernels: Returns the kernels for a plan and operands. It must be hashable, because it is
        a static argument of `jax.jit`.
      plan: Static options of the call.
      operands: Arrays of the call. The fields that `complete_operands` adds are still None.
    """
    outputs, weights = _attend(make_kernels, plan, complete_operands(plan, operands))
    values, received, logsumexp = outputs
    if operands.value_table is not None and weights is not None:
        added = relations.sum_relation_values(weights, operands.value_table, values.dtype)
        values = (values.astype(jnp.float32) + added).astype(values.dtype)
    if logsumexp is not None and plan.scoring.has_relation_products:
        first_product = jnp.moveaxis(relations.compute_first_product(operands), 1, 2)
        first_score = plan.scoring.scale * first_product
        logsumexp += jnp.where(jnp.isfinite(logsumexp), first_score, 0)
    return Outputs(values, received, logsumexp)


def complete_operands(plan: Plan, operands: Operands) -> Operands:
    """Return `operands` with the fields that are computed from other fields.

    These are the radius of each head (see `saturation`), its reach (see `forgetting`), the mask of
    heads with small scores (see `small_scores`), and the relation products (see `relations`). The
    fields that the kernels do not read become None: `factor_bound`, `bias_bound`, `bias_change`
    and, if the scoring has relations, `key_table` and `value_table`. Kernels that multiply the
    tables read a changed `key_table` instead of products.
    """
    if plan.tolerance is not None:
        operands = _limit_distances(plan, operands, plan.tolerance)
    operands = operands._replace(
        has_small_scores=find_small_scores(plan, operands),
        factor_bound=None,
        bias_bound=None,
        bias_change=None,
    )
    if not plan.scoring.clip_distance:
        return operands
    radius = jnp.full((1, 1), plan.scoring.clip_distance, jnp.int32)
    if plan.scoring.multiplies_tables:
        table = operands.key_table
        table = None if table is None else table[:, 1:] - table[:, :1]
        return operands._replace(key_table=table, radius=radius)
    return operands._replace(
        key_table=None,
        value_table=None,
        radius=radius,
        relation_products=relations.compute_products(operands),
    )


def _limit_distances(plan: Plan, operands: Operands, tolerance: float) -> Operands:
    """Return `operands` with the radius and the reach of each head."""
    bias = operands.bias_table
    if skipped_tiles.is_restricted(plan, operands, drops_weights=True):
        # No tile is skipped, so that the bias need not be constant beyond the radius.
        operands = operands._replace(bias_change=None)
    found = plan.scoring.find_radius(operands, tolerance)
    reach = plan.scoring.find_reach(operands, tolerance)
    if found is not None and bias is not None and operands.bias_change is not None:
        far_bias = jax.lax.stop_gradient(jnp.stack((bias[:, :, -1], bias[:, :, 0]), axis=-1))
        # A side with another bias skips no keys, or only keys that the head forgets.
        is_moderate = jnp.abs(far_bias) <= LARGEST_FAR_BIAS
        operands = operands._replace(far_weights=jnp.where(is_moderate, jnp.exp2(far_bias), 0))
    if found is not None:
        operands = operands._replace(radius=found[0], is_zero_beyond_radius=found[1])
    return operands._replace(reach=reach)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(
    make_kernels: KernelFactory, plan: Plan, operands: Operands
) -> tuple[Outputs, Array | None]:
    """Compute attention. Return its outputs, and the relation weights.

    The relation weights are None if the scoring does not need them. `operands` must be a result of
    `complete_operands`.
    """
    return _forward(make_kernels, plan, operands)[0]


def _forward(make_kernels: KernelFactory, plan: Plan, operands: Operands):
    block = forward_block(make_kernels, plan, operands)
    logsumexp = None
    if plan.logsumexp:
        logsumexp = to_natural_logsumexp(block.logsumexp, block.values.shape[1])
    outputs = Outputs(block.values, block.received, logsumexp), block.relation_weights
    return outputs, (operands, block)


def _backward(make_kernels: KernelFactory, plan: Plan, residuals: Any, cotangents: Any):
    return (_run_backward(make_kernels, plan, residuals, cotangents),)


_attend.defvjp(_forward, _backward)


def _jit(function: Callable) -> Callable:
    """Compile a function that runs kernels.

    Lowering a kernel takes seconds. Under jit, equal layers of a model share one lowered kernel.
    All numbers in the kernels have at most 32 bits, even if `jax_enable_x64` is set.
    """

    @functools.wraps(function)
    def run(*arguments: Any, **named_arguments: Any) -> Any:
        with jax.enable_x64(False):
            return function(*arguments, **named_arguments)

    return jax.jit(run, static_argnames=("make_kernels", "plan"))


@_jit
def forward_block(make_kernels: KernelFactory, plan: Plan, operands: Operands) -> BlockOutputs:
    """Run the forward kernels, for a call or for one block of its keys.

    Args:
      make_kernels: Returns the kernels for a plan and operands.
      plan: Static options of the call.
      operands: Result of `complete_operands`.
    """
    kernels = make_kernels(plan, operands)
    values, logsumexp, weights = kernels.forward()
    ends = None
    if plan.scoring.multiplies_tables:
        weights, ends = None, weights
    if operands.query_mask is not None:
        values, logsumexp, weights, ends = _empty_masked_queries(
            operands.query_mask, values, logsumexp, weights, ends
        )
    received = kernels.received(logsumexp) if plan.received else None
    return BlockOutputs(values, logsumexp, received, weights, ends)


@_jit
def _run_backward(
    make_kernels: KernelFactory, plan: Plan, residuals: Any, cotangents: Any
) -> Operands:
    """Return the gradients of the operands of `_attend`, as `backward_block` returns them.

    Args:
      make_kernels: Returns the kernels for a plan and operands.
      plan: Static options of the call.
      residuals: Pair of the operands and the `BlockOutputs` of the forward pass.
      cotangents: Cotangents of the results of `_attend`.
    """
    operands, block = residuals
    (values_cotangent, received_cotangent, logsumexp_cotangent), weights_cotangent = cotangents
    other_deltas = []  # parts of D besides dO · O
    if received_cotangent is not None:
        kernels = make_kernels(plan, operands)
        other_deltas.append(kernels.attention_given(block.logsumexp, received_cotangent))
    if logsumexp_cotangent is not None:
        other_deltas.append(-logsumexp_cotangent)
    if weights_cotangent is not None:
        if operands.dropout_words is None:
            # The weights of a query sum to 1, so adding one number to all cotangents changes no
            # gradient. With this number, far tiles of relation 0 add nothing.
            weights_cotangent -= weights_cotangent[..., :1]
        other_deltas.append(
            jnp.einsum(
                "btnr,btnr->bnt",
                block.relation_weights,
                weights_cotangent,
                precision=jax.lax.Precision.HIGHEST,
            )
        )
    backward = BackwardOperands(
        values_cotangent,
        received_cotangent,
        block.logsumexp,
        block.values,
        other_delta=functools.reduce(jnp.add, other_deltas) if other_deltas else None,
        relation_cotangent=weights_cotangent,
        end_weights=block.end_weights,
    )
    gradients = backward_block(make_kernels, plan, operands, backward)
    if gradients.bias_table is None:
        return gradients
    total: Any = 0.0
    if logsumexp_cotangent is not None:
        has_keys = block.logsumexp[:, :, : logsumexp_cotangent.shape[2]] < EMPTY_LOGSUMEXP / 2
        total = jnp.where(has_keys, logsumexp_cotangent, 0).sum(axis=2, keepdims=True)
        total *= plan.scoring.gradient_multiplier(None)
        if gradients.bias_table.shape[0] == 1:
            total = total.sum(axis=0, keepdims=True)
    return gradients._replace(bias_table=correct_sum(gradients.bias_table, total))


def correct_sum(
    gradient: Float[Array, "#B N D"], total: Float[Array, "#B N 1"] | float
) -> Float[Array, "#B N D"]:
    """Return a gradient of a bias table that sums to `total`.

    Each number is changed in proportion to its square. If the standard deviation of its error is
    proportional to the number, this is the weighted least-squares solution. If all numbers are 0,
    they stay 0. If the squares leave the range of float32, the numbers are changed less, or not at
    all.
    """
    squares = jnp.square(gradient).sum(axis=2, keepdims=True)
    error = gradient.sum(axis=2, keepdims=True) - total
    return gradient * (1 - gradient / jnp.maximum(squares, SMALLEST_SQUARES) * error)


@_jit
def backward_block(
    make_kernels: KernelFactory, plan: Plan, operands: Operands, backward: BackwardOperands
) -> Operands:
    """Run the backward kernels, for a call or for one block of its keys.

    Args:
      make_kernels: Returns the kernels for a plan and operands.
      plan: Static options of the call.
      operands: Result of `complete_operands`, for the call or for the block.
      backward: Cotangents, and outputs of the forward pass over all keys, even if `operands` holds
        only one block of the keys. The logsumexp is to base 2: see `from_natural_logsumexp`.

    Returns:
      `Operands` with the gradients of the differentiable operands. All other fields are None.
    """
    kernels = make_kernels(plan, operands)
    padding = max(0, kernels.padded_queries - backward.logsumexp.shape[-1])
    logsumexp = jnp.pad(
        backward.logsumexp, ((0, 0), (0, 0), (0, padding)), constant_values=EMPTY_LOGSUMEXP
    )
    backward = backward._replace(logsumexp=logsumexp)
    query_gradients, backward = kernels.query_gradient(backward)
    key, value = kernels.key_gradient(backward)
    if operands.positions is not None and kernels.position_gradient is not None:
        positions = kernels.position_gradient(backward)
        query_gradients = query_gradients._replace(positions=positions)
    no_gradients: Any = (None,) * len(operands)
    return Operands(*no_gradients)._replace(key=key, value=value, **query_gradients._asdict())


def _empty_masked_queries(
    query_mask: Bool[Array, "#B #N T"],
    values: Float[Array, "B T N E"],
    logsumexp: Logsumexp,
    weights: Float[Array, "B T N R"] | None,
    ends: Any,
) -> tuple[Float[Array, "B T N E"], Logsumexp, Float[Array, "B T N R"] | None, Any]:
    """Replace the outputs of masked queries by the outputs of a query without a visible key.

    For such a query, `values`, `weights` and `ends` are 0, and the logsumexp is `EMPTY_LOGSUMEXP`.

    Args:
      query_mask: False for masked queries.
      values: Weighted sum of values for each query.
      logsumexp: Logsumexp of the scores of each query, to base 2, possibly padded.
      weights: Relation weights of each query, or None.
      ends: `BlockOutputs.end_weights`.
    """
    is_visible = jnp.swapaxes(query_mask, 1, 2)[..., None]
    values = jnp.where(is_visible, values, 0)
    weights = None if weights is None else jnp.where(is_visible, weights, 0)
    padding = logsumexp.shape[-1] - query_mask.shape[-1]
    padded = jnp.pad(query_mask, ((0, 0), (0, 0), (0, padding)))
    ends = jax.tree.map(lambda end: jnp.where(padded, end, 0), ends)
    return values, jnp.where(padded, logsumexp, EMPTY_LOGSUMEXP), weights, ends


def to_natural_logsumexp(logsumexp: Logsumexp, queries: int) -> Float[Array, "B N T"]:
    """Convert a logsumexp from base 2 to base e, and remove its padding.

    The result is -inf for a query without a visible key.
    """
    logsumexp = logsumexp[:, :, :queries]
    return jnp.where(logsumexp < EMPTY_LOGSUMEXP / 2, logsumexp / LOG2E, -jnp.inf)


def from_natural_logsumexp(logsumexp: Float[Array, "B N T"]) -> Logsumexp:
    """Convert a logsumexp from base e to base 2, and replace -inf by `EMPTY_LOGSUMEXP`."""
    return jnp.where(jnp.isfinite(logsumexp), logsumexp * LOG2E, EMPTY_LOGSUMEXP)
