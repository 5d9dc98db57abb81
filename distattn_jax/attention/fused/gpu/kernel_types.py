"""Types (shapes and dtypes) of the arrays of each kernel, for the selection of its tile sizes.

The tile sizes must be known before the arrays are made, because the arrays are padded to multiples
of the tile sizes. Tile sizes are selected by the shared memory that they need. The size of a buffer
in shared memory depends only on the number of axes of its array, on the width W (the last axis) of
a matrix, and on the dtype. All other axes have size 1 in the types of this module.
"""

from typing import Any

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import (
    diagonal_sums,
    dropout_tiles,
    gradient_kernels,
    mosaic,
    relation_rows,
)
from distattn_jax.attention.fused.gpu.kernel_body import TABLE_PADDING
from distattn_jax.attention.fused.gpu.position_tiles import scratch_buffers
from distattn_jax.attention.fused.gpu.relation_arrays import RelationArrays
from distattn_jax.attention.fused.gpu.shared_memory import KernelTypes
from distattn_jax.attention.fused.gpu.tile_configs import MAX_WIDE_WIDTH, MAX_WIDTH, TileConfig
from distattn_jax.attention.fused.gpu.tile_weights import RECIPROCAL_SUM
from distattn_jax.attention.fused.kernel_calls import RELATION_MATRICES
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.score_map import make_score_map
from distattn_jax.attention.fused.skipped_tiles import visits_bias

Types = dict[str, Any]
VECTOR = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32)  # integers have as many bytes
KEY_ROWS = ("key_gradient", "received")  # kernels whose rows are keys
# Outputs that are never in shared memory.
SCATTERED = ("band_scores", "band_gradient", *RELATION_MATRICES)


def list_types(kernel: str, plan: Plan, operands: Operands, config: TileConfig) -> KernelTypes:
    """Return the types of the arrays that a kernel copies to or from shared memory.

    The width of a matrix (its last axis) is correct. All other axes have size 1, because they do
    not influence the size of a buffer in shared memory.

    Args:
      kernel: Name of the kernel: the name of a field of `TileConfigs`.
      plan: Static options of the call.
      operands: Arrays of the call, or their types.
      config: Tile sizes of the kernel.
    """
    scoring = plan.scoring
    queries, keys = _list_inputs(kernel, plan, operands)
    outputs = _list_outputs(kernel, plan, operands)
    resident, streamed, moving = queries, keys, {}
    if kernel in KEY_ROWS:
        resident, streamed = keys, queries
    diagonals: Types = dict.fromkeys(scoring.table_names, VECTOR)
    if scoring.function is not None and not scoring.function.is_cheap:
        diagonals["function"] = VECTOR
    if kernel == "position_gradient":
        resident, streamed, moving = outputs, queries, keys
    elif scoring.has_positions:
        diagonals["positions"] = queries["query"]
    is_transposed = kernel in (*KEY_ROWS, "position_gradient")
    is_query_gradient = kernel == "query_gradient"
    tables_of_relations = _list_tables(kernel, plan, operands)
    scratch = scratch_buffers(
        make_score_map(plan, operands, is_transposed=is_transposed),
        operands.query,
        sorts_gradient=kernel in ("query_gradient", "position_gradient"),
    )
    if tables_of_relations:
        scratch |= relation_rows.scratch_buffers(scoring, has_cotangent=is_query_gradient)
    if is_query_gradient and scoring.table_names:
        scratch |= diagonal_sums.scratch_buffers(config.columns)
    return KernelTypes(
        resident,
        streamed,
        diagonals,
        moving,
        entries=_drop_absent({"mask": operands.mask}),
        outputs=outputs,
        scratch=scratch,
        late_vectors=gradient_kernels.late_vectors(scoring) if kernel == "key_gradient" else (),
        tables=tables_of_relations,
    )


def computes_delta_outside(plan: Plan, operands: Operands) -> bool:
    """Return True if D is computed before the kernel `query_gradient`: see `BackwardOperands`.

    Otherwise, the kernel computes D from the attention output. If heads are wide and have position
    vectors, or if keys are very wide, the output would need too much shared memory.
    """
    limit = MAX_WIDTH if plan.scoring.has_positions else MAX_WIDE_WIDTH
    return operands.key.shape[-1] > limit


def _list_inputs(kernel: str, plan: Plan, operands: Operands) -> tuple[Types, Types]:
    """Return the types of the inputs of a kernel, as two dicts from name to type.

    The first dict contains the inputs with one row or number per query, and the second dict those
    with one row or number per key.
    """
    query, key, value = (_matrix_type(x, x.shape[-1]) for x in operands[:3])
    is_gradient, is_query_gradient = kernel.endswith("gradient"), kernel == "query_gradient"
    has_weights = plan.scoring.has_relation_weights
    multiplies_tables = plan.scoring.multiplies_tables
    has_weight_cotangent = has_weights and not multiplies_tables
    has_delta = computes_delta_outside(plan, operands)
    has_other_delta = not has_delta and (plan.received or plan.logsumexp or has_weight_cotangent)
    has_received_cotangent = kernel == "attention_given" or (is_gradient and plan.received)
    drops_weights = dropout_tiles.drops_weights(kernel, operands)
    has_reciprocal_sum = kernel == "key_gradient" and visits_bias(plan, operands)
    relations = RelationArrays(plan, operands, length_multiple=1)
    vectors = relations.vector_names(has_cotangent=is_gradient and has_weights)
    if multiplies_tables and kernel in ("forward", "query_gradient"):  # not inputs, but computed
        vectors = []
        if is_query_gradient:
            vectors = [*relations.output_types("forward")]  # the end weights
    queries = {
        "query": query,
        "position_query": query if plan.scoring.has_positions else None,
        "values": value if is_query_gradient and not has_delta else None,
        "values_cotangent": value if is_gradient else None,
        "logsumexp": VECTOR if kernel != "forward" else None,
        "other_delta": VECTOR if is_query_gradient and has_other_delta else None,
        "negative_delta": VECTOR if is_gradient and (has_delta or not is_query_gradient) else None,
        "query_segments": VECTOR if operands.query_segments is not None else None,
        RECIPROCAL_SUM: VECTOR if has_reciprocal_sum else None,
        dropout_tiles.QUERY_HASH: VECTOR if drops_weights else None,
        **dict.fromkeys(vectors, VECTOR),
    }
    keys = {
        "key": key,
        "value": value if kernel == "forward" or is_gradient else None,
        "received_cotangent": VECTOR if has_received_cotangent else None,
        "key_mask": VECTOR if operands.key_mask is not None else None,
        "key_segments": VECTOR if operands.key_segments is not None else None,
        dropout_tiles.KEY_HASH: VECTOR if drops_weights else None,
    }
    return _drop_absent(queries), _drop_absent(keys)


def _list_outputs(kernel: str, plan: Plan, operands: Operands) -> Types:
    """Return a dict from name to type of the outputs that a kernel writes via shared memory."""
    query, key, value = (_matrix_type(x, x.shape[-1]) for x in operands[:3])
    relations = RelationArrays(plan, operands, length_multiple=1)
    outputs: Types = {kernel: VECTOR}
    if kernel == "forward":
        outputs = {"values": value, "logsumexp": VECTOR, **relations.output_types(kernel)}
    elif kernel == "query_gradient":
        names = plan.scoring.gradient_names
        if not computes_delta_outside(plan, operands):
            names = ("negative_delta", *names)
        vectors = dict.fromkeys(names, VECTOR)
        outputs = {"query": query, **vectors, **relations.output_types(kernel)}
        outputs |= {"position_query": query} if plan.scoring.has_positions else {}
    elif kernel == "key_gradient":
        trained_width = plan.trained_key_width or key.shape[-1]
        width = min(mosaic.round_up_width(trained_width), key.shape[-1])
        outputs = {"key": _matrix_type(key, width), "value": value}
    elif kernel == "position_gradient":
        outputs = dict.fromkeys(("lower_positions", "upper_positions"), query)
    return {name: x for name, x in outputs.items() if name not in SCATTERED}


def _list_tables(kernel: str, plan: Plan, operands: Operands) -> Types:
    """Return a dict from name to type of the tables of relations that a kernel multiplies."""
    scoring, dtype = plan.scoring, operands.query.dtype
    if not scoring.multiplies_tables or kernel not in ("forward", "query_gradient"):
        return {}
    rows = relation_rows.count_columns(scoring.clip_distance) + TABLE_PADDING
    widths = {}
    if scoring.has_relation_products:
        widths["key_table"] = operands.key.shape[-1]
    if scoring.has_relation_weights:
        widths["value_table"] = operands.value.shape[-1]
    return {name: jax.ShapeDtypeStruct((1, rows, 1, x), dtype) for name, x in widths.items()}


def _matrix_type(x: Any, width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, 1, 1, width), x.dtype)


def _drop_absent(types: dict[str, Any]) -> Types:
    return {name: x for name, x in types.items() if x is not None}
