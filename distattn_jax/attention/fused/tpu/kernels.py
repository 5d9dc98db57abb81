"""Functions that call the kernels on a TPU."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused import skipped_tiles
from distattn_jax.attention.fused.call_arrays import (
    collect_scalars,
    compute_coefficient_gradients,
    compute_delta,
    name_tables,
    sum_groups,
)
from distattn_jax.attention.fused.call_schedules import CallSchedules
from distattn_jax.attention.fused.kernels import Kernels, Plan, QueryGradients
from distattn_jax.attention.fused.operands import BackwardOperands, Operands
from distattn_jax.attention.fused.runs import Schedule
from distattn_jax.attention.fused.score_map import make_score_map
from distattn_jax.attention.fused.tpu import gradient_kernels, weight_kernels
from distattn_jax.attention.fused.tpu.bands import count_rows
from distattn_jax.attention.fused.tpu.distance_tiles import keep_distances
from distattn_jax.attention.fused.tpu.kernel_arrays import KernelArrays, restore
from distattn_jax.attention.fused.tpu.kernel_body import KernelBody, KernelInputs
from distattn_jax.attention.fused.tpu.registers import LANES
from distattn_jax.attention.fused.tpu.relation_tiles import GRADIENT, expand_inputs
from distattn_jax.attention.fused.tpu.tile_configs import select_tile_config
from distattn_jax.attention.fused.tpu.tile_loop import run_tile_loop


def make_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return the kernels for TPUs, bound to the plan and the operands."""
    call = _KernelCall(plan, operands)
    return Kernels(
        forward=call.forward,
        query_gradient=call.query_gradient,
        key_gradient=call.key_gradient,
        received=call.received,
        attention_given=call.attention_given,
        padded_queries=call.arrays.padded_queries,
    )


class _KernelCall:
    """The kernels of one attention call as methods, and the inputs that all of them share."""

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands
        self.config = select_tile_config(operands.query.shape[1], operands.key.shape[1])
        self.arrays = KernelArrays(operands, self.config)
        # Tiles on both sides of the diagonal read f from VMEM in the same way.
        self.schedules = CallSchedules(plan, operands)
        self.scalars = collect_scalars(plan, operands)
        self.queries = {"query": self.arrays.query}
        if operands.position_query is not None:
            self.queries["position_query"] = self.arrays.transpose_queries(operands.position_query)

    def forward(
        self,
    ) -> tuple[Float[Array, "B T N E"], Float[Array, "B N _"], Float[Array, "B T N R"] | None]:
        """Return the weighted sum of values and the logsumexp of each query, and relation weights.

        The logsumexp is to base 2, and its last axis is padded.
        """
        arrays, (queries, keys) = self.arrays, self.config
        schedule = self.schedules.query_blocks(queries, keys, drops_weights=True)
        width = arrays.value.shape[2]
        outputs = self._run(
            "forward",
            weight_kernels.forward(
                make_score_map(self.plan, self.operands),
                self.config.shape,
                width,
                arrays.value.dtype,
            ),
            schedule,
            resident=self.queries,
            streamed={"key_rows": arrays.key_rows, "value": arrays.value},
            skipped_sums=skipped_tiles.sums_for_forward(self.plan, self.operands, schedule, keys),
            output_types={
                "values": arrays.query_type(width, arrays.query.dtype),
                "logsumexp": arrays.query_type(1),
                **self._relation_types("relation_weights"),
            },
        )
        values = restore(outputs["values"], arrays.queries)
        weights = self._restore_relations(outputs, "relation_weights")
        return values, outputs["logsumexp"][:, :, 0], weights

    def query_gradient(self, backward: BackwardOperands) -> tuple[QueryGradients, Array]:
        """Return the gradients of queries and coefficients, and the negative delta."""
        negative_delta = -compute_delta(backward)
        backward = backward._replace(negative_delta=negative_delta)
        arrays, (queries, keys) = self.arrays, self.config
        width, names = arrays.query.shape[2], self.plan.scoring.gradient_names
        outputs = self._run(
            "query_gradient",
            gradient_kernels.query_gradient(
                make_score_map(self.plan, self.operands),
                queries,
                width,
                has_received=backward.received_cotangent is not None,
                has_bias=self.operands.shares_relation_products,
                origin=arrays.padded_queries,
            ),
            self.schedules.query_blocks(queries, keys, needs_zero_tiles=False),
            resident={**self.queries, **arrays.query_inputs(backward)},
            streamed={
                "key": arrays.key,
                "value": arrays.value,
                **arrays.received_cotangent(backward),
            },
            skipped_sums={},  # f is 0 in skipped tiles, so their gradients are 0
            output_types={
                "query": arrays.query_type(width, arrays.query.dtype),
                **dict.fromkeys(names, arrays.query_type(1)),
                **self._relation_types(GRADIENT),
                **self._position_types(),
            },
            relation_cotangent=backward.relation_cotangent,
        )
        parts = {name: outputs[name][:, :, 0, : arrays.queries] for name in names}
        gradients = QueryGradients(
            query=restore(outputs["query"], arrays.queries),
            coefficients=compute_coefficient_gradients(self.plan, self.operands, parts),
            relation_products=self._restore_relations(outputs, GRADIENT),
            **self._restore_position_gradients(outputs),
        )
        return gradients, negative_delta

    def key_gradient(
        self, backward: BackwardOperands
    ) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K E"]]:
        """Return the gradients of the keys and of the values."""
        arrays, (queries, keys) = self.arrays, self.config
        schedule = self.schedules.key_blocks(keys, queries, drops_weights=True)
        widths = (arrays.key.shape[2], arrays.value.shape[2])
        outputs = self._run(
            "key_gradient",
            gradient_kernels.key_gradient(
                make_score_map(self.plan, self.operands, is_transposed=True),
                keys,
                widths,
                has_received=backward.received_cotangent is not None,
            ),
            schedule,
            resident={
                "key": arrays.key,
                "value": arrays.value,
                **arrays.received_cotangent(backward),
            },
            streamed={**self.queries, **arrays.query_inputs(backward)},
            skipped_sums=skipped_tiles.sums_for_key_gradient(
                self.plan,
                self.operands,
                schedule,
                queries,
                logsumexp=backward.logsumexp,
                values_cotangent=backward.values_cotangent,
            ),
            output_types={
                "key": arrays.key_type(widths[0], arrays.key.dtype),
                "value": arrays.key_type(widths[1], arrays.value.dtype),
            },
            is_transposed=True,
            relation_cotangent=backward.relation_cotangent,
        )
        gradients = [restore(outputs[name], arrays.keys) for name in ("key", "value")]
        key, value = (sum_groups(x, self.operands.key.shape[2]) for x in gradients)
        return key, value

    def received(self, logsumexp: Float[Array, "B N _"]) -> Float[Array, "B N S"]:
        """Return the attention that each key receives, summed over the queries."""
        arrays, (queries, keys) = self.arrays, self.config
        schedule = self.schedules.key_blocks(keys, queries)
        score_map = make_score_map(self.plan, self.operands, is_transposed=True)
        outputs = self._run(
            "received",
            weight_kernels.received(score_map, keys),
            schedule,
            resident={"key": arrays.key},
            streamed={**self.queries, "logsumexp": logsumexp[:, :, None]},
            skipped_sums=skipped_tiles.sums_for_received(
                self.plan, self.operands, schedule, queries, logsumexp=logsumexp
            ),
            output_types={"received": arrays.key_type(1)},
            is_transposed=True,
        )
        return outputs["received"][:, :, 0, : arrays.keys]

    def attention_given(
        self, logsumexp: Float[Array, "B N _"], received_cotangent: Float[Array, "B N S"]
    ) -> Float[Array, "B N T"]:
        """Return Σ_j A_ij g_j for each query i.

        A are the attention weights, and g_j is the cotangent of the attention that key j receives.
        """
        arrays, (queries, keys) = self.arrays, self.config
        schedule = self.schedules.query_blocks(queries, keys)
        outputs = self._run(
            "attention_given",
            weight_kernels.attention_given(make_score_map(self.plan, self.operands), queries),
            schedule,
            resident={**self.queries, "logsumexp": logsumexp[:, :, None]},
            streamed={
                "key_rows": arrays.key_rows,
                "received_cotangent": arrays.pad_keys(received_cotangent),
            },
            skipped_sums=skipped_tiles.sums_for_attention_given(
                self.plan, self.operands, schedule, keys, received_cotangent=received_cotangent
            ),
            output_types={"attention_given": arrays.query_type(1)},
        )
        return outputs["attention_given"][:, :, 0, : arrays.queries]

    def _position_types(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the types of the gradients of position queries and vectors, or an empty dict."""
        if self.operands.positions is None:
            return {}
        arrays, positions = self.arrays, self.operands.positions
        heads, width = arrays.query.shape[1:3]
        rows = (arrays.padded_queries + arrays.padded_keys) // LANES * width
        shape = (positions.shape[0], heads, rows, LANES)
        # Shared vectors of all heads are summed after the kernel, before they are rounded.
        dtype = positions.dtype if positions.shape[2] == heads else jnp.float32
        return {
            "position_query": arrays.query_type(width, arrays.query.dtype),
            "positions": jax.ShapeDtypeStruct(shape, dtype),
        }

    def _restore_position_gradients(self, outputs: dict[str, Array]) -> dict[str, Array | None]:
        """Return the gradients of position queries and vectors in the shape of the operands."""
        positions = self.operands.positions
        if positions is None:
            return {"position_query": None, "positions": None}
        scoring: Any = self.plan.scoring
        gradient = self.arrays.restore_positions(outputs["positions"], positions) * scoring.scale
        return {
            "position_query": restore(outputs["position_query"], self.arrays.queries),
            "positions": gradient.astype(positions.dtype),
        }

    def _relation_types(self, name: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the type of an output by relation by its name, or an empty dict.

        Args:
          name: "relation_weights", or the gradient of the relation products.
        """
        scoring = self.plan.scoring
        if not scoring.clip_distance:
            return {}
        rows = count_rows(scoring.clip_distance)
        if name == GRADIENT and self.operands.shares_relation_products:
            shape = (1, self.arrays.query.shape[1], rows, LANES)
            return {name: jax.ShapeDtypeStruct(shape, jnp.float32)}
        has_output = {"relation_weights": scoring.has_relation_weights}
        has_output[GRADIENT] = scoring.has_relation_products
        return {name: self.arrays.query_type(rows)} if has_output[name] else {}

    def _restore_relations(
        self, outputs: dict[str, Array], name: str
    ) -> Float[Array, "#B #T N R"] | None:
        """Return an output by relation in the shape of the operands, or None if it is absent."""
        if name not in outputs:
            return None
        relations = 2 * self.plan.scoring.clip_distance + 1
        if name == GRADIENT and self.operands.shares_relation_products:
            return outputs[name][:, :, :relations].sum(axis=3)[None]
        return restore(outputs[name], self.arrays.queries)[..., :relations]

    def _run(
        self,
        name: str,
        body: KernelBody,
        schedule: Schedule,
        *,
        resident: dict[str, Array],
        streamed: dict[str, Array],
        skipped_sums: dict[str, Array],
        output_types: dict[str, jax.ShapeDtypeStruct],
        is_transposed: bool = False,
        relation_cotangent: Float[Array, "B T N R"] | None = None,
    ) -> dict[str, Array]:
        """Run one kernel and return its outputs by name.

        Args:
          name: Name of the kernel.
          body: Computation of the kernel.
          schedule: Tiles that each block of rows visits.
          resident: Matrices and vectors that belong to the rows of the score map.
          streamed: Matrices and vectors that belong to the columns of the score map.
          skipped_sums: Sums over the tiles that are skipped, which the kernel adds to its results.
          output_types: Shapes and dtypes of the outputs.
          is_transposed: True if the rows of the score map are keys.
          relation_cotangent: Cotangent of the relation weights in a gradient kernel.
        """
        by_relation = {
            "relation_products": self.operands.relation_products,
            "relation_cotangent": relation_cotangent,
        }
        present = {name: x for name, x in by_relation.items() if x is not None}
        shared, by_query = (
            {
                name: self.arrays.arrange_by_relation(x)
                for name, x in present.items()
                if (x.shape[1] == 1) == is_shared
            }
            for is_shared in (True, False)
        )
        if present:
            body = expand_inputs(
                body,
                make_score_map(self.plan, self.operands, is_transposed=is_transposed),
                dict.fromkeys(shared, LANES) | dict.fromkeys(by_query, self.config.queries),
                streamed=by_query if is_transposed else (),
            )
        if self.plan.scoring.function is not None:
            query_tiles = self.arrays.padded_queries // self.config.queries
            key_tiles = self.arrays.padded_keys // self.config.keys
            body = keep_distances(
                body,
                make_score_map(self.plan, self.operands, is_transposed=is_transposed),
                self.config.shape,
                diagonals=query_tiles + key_tiles - 1,
                needs_distances=name == "query_gradient",
            )
        row_masks, column_masks, entry_masks = self.arrays.masks(is_transposed=is_transposed)
        positions = {}
        if self.operands.positions is not None:
            positions["positions"] = self.arrays.arrange_positions(self.operands.positions)
        tables = name_tables(self.plan, self.operands, name)
        inputs = KernelInputs(
            resident=resident | row_masks | ({} if is_transposed else by_query),
            streamed=streamed | column_masks | (by_query if is_transposed else {}),
            shared=shared,
            entries=entry_masks,
            diagonals={
                name: self.arrays.arrange_by_diagonal(table) for name, table in tables.items()
            },
            positions=positions,
            scalars=self.scalars,
            skipped_sums=skipped_sums,
            runs=schedule.runs,
        )
        return run_tile_loop(
            body,
            inputs,
            output_types,
            schedule,
            self.config,
            name,
            is_transposed=is_transposed,
            origin=self.arrays.padded_keys,
        )
