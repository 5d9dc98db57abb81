"""Functions that call the six kernels on a Hopper GPU."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused import skipped_tiles
from distattn_jax.attention.fused.call_arrays import (
    compute_coefficient_gradients,
    compute_delta,
    sum_groups,
)
from distattn_jax.attention.fused.gpu import gradient_kernels, mosaic, weight_kernels
from distattn_jax.attention.fused.gpu.kernel_arrays import matrix_type, shift_rows
from distattn_jax.attention.fused.gpu.kernel_call import KernelCall
from distattn_jax.attention.fused.gpu.tile_configs import MAX_WIDE_WIDTH
from distattn_jax.attention.fused.kernels import Kernels, Plan, QueryGradients
from distattn_jax.attention.fused.operands import EMPTY_LOGSUMEXP, BackwardOperands, Operands
from distattn_jax.attention.fused.score_map import make_score_map
from distattn_jax.attention.fused.scoring import MASKED_SCORE


def make_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return the kernels for Hopper GPUs, bound to the plan and the operands."""
    call = _Kernels(plan, operands)
    return Kernels(
        forward=call.forward,
        query_gradient=call.query_gradient,
        key_gradient=call.key_gradient,
        received=call.received,
        attention_given=call.attention_given,
        padded_queries=call.arrays.padded_length(operands.query.shape[1]),
        position_gradient=call.position_gradient,
    )


class _Kernels(KernelCall):
    """The six kernels of one attention call as methods."""

    def forward(
        self,
    ) -> tuple[Float[Array, "B T N E"], Float[Array, "B N _"], Float[Array, "B T N R"] | None]:
        """Return the weighted sum of values, the logsumexp and the relation weights of each query.

        The logsumexp is to base 2, and its last axis is padded. The relation weights are None if
        they are not requested.
        """
        query, key, value = self.operands[:3]
        config = self.configs.forward
        schedule = self.schedules.query_blocks(
            config.block_rows,
            config.columns,
            drops_weights=True,
            parts=config.warpgroups,
            uses_small_scores=True,
        )
        scalars = {}
        if any(kind.has_small_scores for kind in schedule.kinds):
            has_small_scores: Any = self.operands.has_small_scores
            maximum = jnp.where(has_small_scores, 0.0, MASKED_SCORE)
            scalars["initial_maximum"] = maximum[..., None]
        relations = self.relations.inputs()
        skipped_sums = skipped_tiles.sums_for_forward(
            self.plan, self.operands, schedule, config.columns
        )
        outputs = self.run(
            "forward",
            weight_kernels.forward(
                make_score_map(self.plan, self.operands), config.tile_shape, value.shape[-1]
            ),
            schedule,
            resident={"query": query, **self.position_query, **relations.vectors},
            streamed={"key": key, "value": value},
            gathered=relations.matrices,
            skipped_sums=skipped_sums,
            scalars=scalars,
            output_types={
                "values": matrix_type(query, value.shape[-1]),
                "logsumexp": self.arrays.vector_type(query),
                **self.relations.weight_types(),
            },
        )
        written = schedule.blocks * config.block_rows
        logsumexp = self.fill_unwritten(outputs["logsumexp"], written, EMPTY_LOGSUMEXP)
        weights = self.relations.assemble_weights(outputs, logsumexp, schedule, config)
        return outputs["values"], logsumexp, weights

    def query_gradient(self, backward: BackwardOperands) -> tuple[QueryGradients, Array]:
        """Return the gradients of queries, coefficients and relation products, and -D.

        -D is `BackwardOperands.negative_delta`.
        """
        query, key, value = self.operands[:3]
        delta_inputs = {"values": backward.values}
        if key.shape[-1] > MAX_WIDE_WIDTH:  # The values would need too much shared memory.
            delta_inputs = {}
            backward = backward._replace(other_delta=compute_delta(backward))
        backward = self.arrays.pad(backward)
        if backward.other_delta is not None:
            delta_inputs["other_delta"] = backward.other_delta
        relations = self.relations.inputs(backward.relation_cotangent)
        config = self.configs.query_gradient
        schedule = self.schedules.query_blocks(
            config.block_rows, config.columns, needs_zero_tiles=False, parts=config.warpgroups
        )
        streamed = {"key": key, "value": value}
        if backward.received_cotangent is not None:
            streamed["received_cotangent"] = backward.received_cotangent
        names = self.plan.scoring.gradient_names
        outputs = self.run(
            "query_gradient",
            gradient_kernels.query_gradient(
                make_score_map(self.plan, self.operands),
                config.tile_shape,
                query.shape[-1],
                query.dtype,
                has_received=backward.received_cotangent is not None,
            ),
            schedule,
            resident={
                "query": query,
                "values_cotangent": backward.values_cotangent,
                "logsumexp": backward.logsumexp,
                **delta_inputs,
                **self.position_query,
                **relations.vectors,
            },
            streamed=streamed,
            gathered=relations.matrices,
            skipped_sums={},  # f is 0 in skipped tiles, so their gradients are 0
            output_types={
                "query": matrix_type(query, query.shape[-1]),
                **{name: matrix_type(x, x.shape[-1]) for name, x in self.position_query.items()},
                **dict.fromkeys(("negative_delta", *names), self.arrays.vector_type(query)),
                **self.relations.gradient_types(),
            },
        )
        parts = {name: outputs[name][:, :, : query.shape[1]] for name in names}
        gradients = QueryGradients(
            query=outputs["query"],
            coefficients=compute_coefficient_gradients(self.plan, self.operands, parts),
            relation_products=self.relations.assemble_gradient(outputs, schedule, config),
            position_query=outputs.get("position_query"),
        )
        written = schedule.blocks * config.block_rows
        return gradients, self.fill_unwritten(outputs["negative_delta"], written, 0.0)

    def key_gradient(
        self, backward: BackwardOperands
    ) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K E"]]:
        """Return the gradients of the keys and of the values."""
        query, key, value = self.operands[:3]
        backward = self.arrays.pad(backward)
        relations = self.relations.inputs(backward.relation_cotangent)
        config = self.configs.key_gradient
        schedule = self.schedules.key_blocks(
            config.block_rows, config.columns, drops_weights=True, parts=config.warpgroups
        )
        trained_width = self.plan.trained_key_width or key.shape[-1]
        key_width = min(mosaic.round_up_width(trained_width), key.shape[-1])
        resident = {"key": key, "value": value}
        if backward.received_cotangent is not None:
            resident["received_cotangent"] = backward.received_cotangent
        skipped_sums = skipped_tiles.sums_for_key_gradient(
            self.plan,
            self.operands,
            schedule,
            config.columns,
            logsumexp=backward.logsumexp,
            values_cotangent=backward.values_cotangent,
        )
        outputs = self.run(
            "key_gradient",
            gradient_kernels.key_gradient(
                make_score_map(self.plan, self.operands, is_transposed=True),
                config.tile_shape,
                (key_width, value.shape[-1]),
                has_received=backward.received_cotangent is not None,
            ),
            schedule,
            resident=resident,
            streamed={
                "query": query,
                **_collect_query_inputs(backward),
                **self.position_query,
                **relations.vectors,
            },
            gathered=relations.matrices,
            skipped_sums=skipped_sums,
            output_types={
                "key": self.arrays.key_type(key, key_width),
                "value": self.arrays.key_type(value, value.shape[-1]),
            },
            is_transposed=True,
        )
        heads = key.shape[2]
        key_gradient = sum_groups(outputs["key"], heads)
        padding = (0, key.shape[-1] - key_width)
        key_gradient = jnp.pad(key_gradient, ((0, 0), (0, 0), (0, 0), padding))
        return key_gradient, sum_groups(outputs["value"], heads)

    def position_gradient(self, backward: BackwardOperands) -> Float[Array, "#B D #N H"]:
        """Return the gradient of the position vectors."""
        query, key, value = self.operands[:3]
        backward = self.arrays.pad(backward)
        config = self.configs.position_gradient
        assert self.operands.positions is not None, "other scorings have no position vectors"
        positions = self.arrays.arrange_by_diagonal(self.operands.positions, is_transposed=True)
        origin = self.arrays.padded_length(query.shape[1])
        length = origin + self.arrays.padded_length(key.shape[1])
        # Two tiles of diagonals belong to each warpgroup. They begin at its first row in arrays of
        # which one is shifted by a tile.
        shifts = {"lower_positions": config.rows, "upper_positions": 0}
        moving = {"key": key, "value": value}
        if backward.received_cotangent is not None:
            moving["received_cotangent"] = backward.received_cotangent
        outputs = self.run(
            "position_gradient",
            gradient_kernels.position_gradient(
                make_score_map(self.plan, self.operands, is_transposed=True, has_moving_rows=True),
                config.tile_shape,
                key.shape[-1],
                query.dtype,
                has_received=backward.received_cotangent is not None,
            ),
            self.schedules.diagonal_blocks(config.block_rows, config.columns, length, origin),
            resident={name: shift_rows(positions, shift, length) for name, shift in shifts.items()},
            streamed={
                "query": query,
                **_collect_query_inputs(backward),
                **self.position_query,
            },
            gathered={},
            skipped_sums={},
            output_types={
                name: jax.ShapeDtypeStruct(
                    (query.shape[0], length, *query.shape[2:]), positions.dtype
                )
                for name in shifts
            },
            moving=moving,
            is_transposed=True,
        )
        parts = [
            shift_rows(outputs[name].astype(jnp.float32), -shift, positions.shape[1])
            for name, shift in shifts.items()
        ]
        return self.arrays.sum_positions(parts[0] + parts[1], self.operands.positions)

    def received(self, logsumexp: Float[Array, "B N _"]) -> Float[Array, "B N S"]:
        """Return the attention that each key receives, summed over the queries."""
        query, key = self.operands[:2]
        config = self.configs.received
        schedule = self.schedules.key_blocks(
            config.block_rows, config.columns, parts=config.warpgroups
        )
        skipped_sums = skipped_tiles.sums_for_received(
            self.plan, self.operands, schedule, config.columns, logsumexp=logsumexp
        )
        relations = self.relations.inputs()
        outputs = self.run(
            "received",
            weight_kernels.received(
                make_score_map(self.plan, self.operands, is_transposed=True), config.tile_shape
            ),
            schedule,
            resident={"key": key},
            streamed={
                "query": query,
                "logsumexp": logsumexp,
                **self.position_query,
                **relations.vectors,
            },
            gathered=relations.matrices,
            skipped_sums=skipped_sums,
            output_types={"received": self.arrays.vector_type(key)},
            is_transposed=True,
        )
        return outputs["received"][:, :, : key.shape[1]]

    def attention_given(
        self, logsumexp: Float[Array, "B N _"], received_cotangent: Float[Array, "B N S"]
    ) -> Float[Array, "B N T"]:
        """Return Σ_j A_ij g_j for each query i.

        A are the attention weights, and g_j is the cotangent of the attention that key j receives.
        """
        query, key = self.operands[:2]
        received_cotangent = self.arrays.pad_vector(received_cotangent)
        config = self.configs.attention_given
        schedule = self.schedules.query_blocks(
            config.block_rows, config.columns, parts=config.warpgroups
        )
        skipped_sums = skipped_tiles.sums_for_attention_given(
            self.plan,
            self.operands,
            schedule,
            config.columns,
            received_cotangent=received_cotangent,
        )
        relations = self.relations.inputs()
        outputs = self.run(
            "attention_given",
            weight_kernels.attention_given(
                make_score_map(self.plan, self.operands), config.tile_shape
            ),
            schedule,
            resident={
                "query": query,
                "logsumexp": logsumexp,
                **self.position_query,
                **relations.vectors,
            },
            gathered=relations.matrices,
            streamed={"key": key, "received_cotangent": received_cotangent},
            skipped_sums=skipped_sums,
            output_types={"attention_given": self.arrays.vector_type(query)},
        )
        return outputs["attention_given"][:, :, : query.shape[1]]


def _collect_query_inputs(backward: BackwardOperands) -> dict[str, Any]:
    """Return the inputs of a gradient kernel whose columns are queries, besides the queries."""
    names = ("values_cotangent", "logsumexp", "negative_delta")
    return {name: getattr(backward, name) for name in names}
