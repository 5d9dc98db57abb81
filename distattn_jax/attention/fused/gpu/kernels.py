"""The six attention kernels on a GPU: tile sizes, conversion of arrays, and calls.

The module `kernel_calls` of the package `fused` lists the inputs and outputs of each kernel.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused.gpu import (
    dropout_tiles,
    gradient_kernels,
    mosaic,
    tile_weights,
    weight_kernels,
)
from distattn_jax.attention.fused.gpu.block_order import BlockOrder, have_uneven_work
from distattn_jax.attention.fused.gpu.kernel_arrays import (
    KernelArrays,
    pad_moving_rows,
    shift_rows,
    tabulate_function,
)
from distattn_jax.attention.fused.gpu.kernel_body import KernelInputs
from distattn_jax.attention.fused.gpu.kernel_types import computes_delta_outside, list_types
from distattn_jax.attention.fused.gpu.relation_arrays import RelationArrays
from distattn_jax.attention.fused.gpu.shared_memory import (
    KernelTypes,
    SharedMemory,
    allocate,
    collect_types,
    count_bytes,
)
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig, TileConfigs
from distattn_jax.attention.fused.gpu.tile_loop import run_tile_loop
from distattn_jax.attention.fused.gpu.tile_selection import select_tile_configs
from distattn_jax.attention.fused.kernel_calls import (
    RELATION_MATRICES,
    KernelCall,
    KernelCalls,
    compute_delta,
)
from distattn_jax.attention.fused.kernels import Kernels, Plan
from distattn_jax.attention.fused.operands import EMPTY_LOGSUMEXP, BackwardOperands, Operands
from distattn_jax.attention.fused.schedule import TileSizes
from distattn_jax.attention.fused.scoring import MASKED_SCORE
from distattn_jax.attention.fused.skipped_tiles import visits_bias

BODIES = {
    "forward": weight_kernels.forward,
    "query_gradient": gradient_kernels.query_gradient,
    "key_gradient": gradient_kernels.key_gradient,
    "position_gradient": gradient_kernels.position_gradient,
    "received": weight_kernels.received,
    "attention_given": weight_kernels.attention_given,
}


class Form(NamedTuple):
    """Form of the kernels: the part of their code that depends on the instructions of the chip.

    Attributes:
      select_tile_configs: Function of the plan and the operands of a call. It returns the tile
        sizes of each kernel.
      allocate: Returns the types of the shared-memory buffers of a kernel.
      run_tile_loop: Runs a kernel.
    """

    select_tile_configs: Callable[[Plan, Operands], TileConfigs]
    allocate: Callable[[KernelTypes, TileConfig, int], SharedMemory]
    run_tile_loop: Callable[..., dict[str, Array]]


HOPPER = Form(select_tile_configs, allocate, run_tile_loop)


def make_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return functions that run the kernels of one attention call on a Hopper GPU.

    Args:
      plan: Static options of the call.
      operands: Arrays of the call.
    """
    return GpuKernels(HOPPER, plan, operands).bind()


class GpuKernels(KernelCalls):
    """The kernels of one attention call on a GPU.

    Attributes:
      form: Instructions of the kernels.
      configs: Tile sizes of each kernel.
      arrays: Converts the operands to inputs of the kernels.
      relations: Converts the arrays with one number for each query and relation.
      function_table: Result of `tabulate_function`.
      hashes: Result of `hash_vectors`.
    """

    separates_small_scores = True

    def __init__(self, form: Form, plan: Plan, operands: Operands):
        super().__init__(plan, operands)
        self.form = form
        self.configs = form.select_tile_configs(plan, operands)
        self.arrays = KernelArrays(operands, self.configs.vector_multiple)
        self.relations = RelationArrays(plan, operands, self.configs.vector_multiple)
        self.function_table = tabulate_function(plan, operands)
        self.hashes = dropout_tiles.hash_vectors(operands)

    def tile_sizes(self, kernel: str) -> TileSizes:
        config = getattr(self.configs, kernel)
        return TileSizes(config.block_rows, config.columns, parts=config.warpgroups)

    @property
    def padded_queries(self) -> int:
        return self.arrays.padded_length(self.operands.query.shape[1])

    @property
    def key_gradient_width(self) -> int:
        width = self.operands.key.shape[-1]
        return min(mosaic.round_up_width(self.plan.trained_key_width or width), width)

    def delta_inputs(self, backward: BackwardOperands) -> dict[str, Array]:
        if computes_delta_outside(self.plan, self.operands):
            return {"negative_delta": -compute_delta(backward)}
        inputs = {"values": backward.values, "other_delta": backward.other_delta}
        return {name: x for name, x in inputs.items() if x is not None}

    def table_gradients(
        self, outputs: dict[str, Array], backward: BackwardOperands
    ) -> dict[str, Array]:
        return self.relations.table_gradients(outputs, backward.values_cotangent)

    def position_gradient(self, backward: BackwardOperands) -> Float[Array, "#B D #N H"]:
        """Return the gradient of the position vectors, `Operands.positions`.

        The scoring must have position vectors.
        """
        query, key = self.operands[:2]
        assert self.operands.positions is not None, "other scorings have no position vectors"
        positions = self.arrays.arrange_by_diagonal(self.operands.positions, is_transposed=True)
        origin = self.arrays.padded_length(query.shape[1])
        length = origin + self.arrays.padded_length(key.shape[1])
        # Two tiles of diagonals belong to each warpgroup. They begin at its first row in arrays of
        # which one is shifted by a tile.
        shifts = {"lower_positions": self.configs.position_gradient.rows, "upper_positions": 0}
        shape = (query.shape[0], length, *query.shape[2:])
        call = self.make_call(
            "position_gradient",
            self.schedules.diagonal_blocks(self.tile_sizes("position_gradient"), length, origin),
            resident={name: shift_rows(positions, shift, length) for name, shift in shifts.items()},
            streamed=self.query_inputs(backward),
            moving=self.key_inputs(backward),
            skipped_sums={},
            output_types=dict.fromkeys(shifts, jax.ShapeDtypeStruct(shape, positions.dtype)),
            is_transposed=True,
        )
        outputs = self.run(call)
        parts = [
            shift_rows(outputs[name].astype(jnp.float32), -shift, positions.shape[1])
            for name, shift in shifts.items()
        ]
        return self.arrays.sum_positions(parts[0] + parts[1], self.operands.positions)

    def run(self, call: KernelCall) -> dict[str, Array]:
        config, is_transposed = getattr(self.configs, call.name), call.score_map.is_transposed
        row_hash, column_hash = self._hash_rows_and_columns(call)
        resident, streamed = call.resident, {**call.streamed, **column_hash}
        moving = call.moving
        if moving:
            moving = {**moving, **row_hash}
        else:
            resident = {**resident, **row_hash}
        resident, streamed, moving = map(self.arrays.pad_vectors, (resident, streamed, moving))
        gathered, vectors = self.relations.inputs(call.relations)
        relation_tables, first_value = self.relations.table_inputs(call.name)
        if visits_bias(self.plan, self.operands):
            if call.name == "query_gradient":
                gathered |= self.arrays.weigh_bias(config)
            elif call.name == "key_gradient":
                streamed[tile_weights.RECIPROCAL_SUM] = jnp.exp2(-streamed["logsumexp"])
        (streamed if is_transposed else resident).update(vectors)
        tables = {**self.function_table, **call.position_tables}
        if self.operands.positions is not None and not call.score_map.has_moving_rows:
            tables["positions"] = self.operands.positions
        batch, _, heads, _ = self.operands.query.shape
        body = BODIES[call.name](call, config.tile_shape)
        sums_tables = bool(body.summed)
        is_uneven = sums_tables and have_uneven_work(self.operands)
        order = BlockOrder(
            config, batch, heads, call.schedule.blocks, sums_tables, is_uneven=is_uneven
        )
        inputs = KernelInputs(
            resident=resident,
            streamed=streamed,
            diagonals={
                name: self.arrays.arrange_by_diagonal(table, is_transposed=is_transposed)
                for name, table in tables.items()
            },
            moving={name: pad_moving_rows(x, config) for name, x in moving.items()},
            entries=self.arrays.mask_entries(call.score_map, config),
            scalars={**self.scalars, **self._initial_maximum(call)},
            runs=call.schedule.runs,
            skipped_sums=call.skipped_sums,
            gathered={**gathered, **first_value},
            tables=relation_tables,
            shares=order.divide_work(call.schedule) if order.is_uneven else None,
        )
        output_types = self.arrays.pad_types(call.output_types)
        output_types |= self.relations.output_types(call.name)
        if body.summed:
            output_types |= dict.fromkeys(body.summed, self.arrays.table_type(order))
        types = collect_types(body, inputs, output_types)
        expected = list_types(call.name, self.plan, self.operands, config)
        size, expected_size = (
            count_bytes(self.form.allocate(x, config, 1)) for x in (types, expected)
        )
        assert size == expected_size, f"`list_types` must list the arrays of {call.name}"
        columns = self.operands.query if is_transposed else self.operands.key
        outputs = self.form.run_tile_loop(
            call,
            body,
            inputs,
            output_types,
            order,
            origin=self.arrays.padded_length(columns.shape[1]),
        )
        written = call.schedule.blocks * config.block_rows
        for name, number in (("logsumexp", EMPTY_LOGSUMEXP), ("negative_delta", 0.0)):
            if name in outputs:
                outputs[name] = self._fill_unwritten(outputs[name], written, number)
        for name in RELATION_MATRICES:
            if name in outputs:
                by_query = jnp.moveaxis(outputs[name], 1, -1)
                filled = self._fill_unwritten(by_query, written, 0.0)
                outputs[name] = jnp.moveaxis(filled, -1, 1)
        for name in body.summed:
            multiplier = self.plan.scoring.gradient_multiplier(None)
            outputs[name] = self.arrays.sum_table(outputs[name], order, inputs.shares) * multiplier
        return {**outputs, **self.relations.assemble(outputs, call, config)}

    def _hash_rows_and_columns(self, call: KernelCall) -> list[dict[str, Array]]:
        """Return two dicts from name to vector: the hashes of rows and of columns, for dropout.

        Both dicts are empty if the kernel drops no weights.
        """
        if not dropout_tiles.drops_weights(call.name, self.operands):
            return [{}, {}]
        queries, keys = ({name: self.hashes[name]} for name in dropout_tiles.HASH_NAMES)
        return [keys, queries] if call.score_map.is_transposed else [queries, keys]

    def _initial_maximum(self, call: KernelCall) -> dict[str, Array]:
        """Return {"initial_maximum": x}: the running maximum with which the online softmax starts.

        x has the shape (B, N, 1). It is 0 for heads with small scores (see `small_scores`), and
        -1e30 for all other heads. The dict is empty if no tile of the schedule has the property
        `TileKind.has_small_scores`. All heads then start at -1e30.
        """
        if not any(kind.has_small_scores for kind in call.schedule.kinds):
            return {}
        has_small_scores: Any = self.operands.has_small_scores
        return {"initial_maximum": jnp.where(has_small_scores, 0.0, MASKED_SCORE)[..., None]}

    def _fill_unwritten(
        self, vector: Float[Array, "B *_ L"], written: int, number: float
    ) -> Float[Array, "B *_ L"]:
        """Return `vector` with all numbers from index `written` on set to `number`.

        A kernel writes only the first `written` numbers of a padded output vector. The vector has
        one number per query. Kernels whose columns are queries read whole tiles of it. Their last
        tile may reach beyond the written numbers. If no tile of any kernel does, the vector is
        returned unchanged.
        """
        queries = self.operands.query.shape[1]
        if all(queries + -queries % config.columns <= written for config in self.configs):
            return vector
        is_written = jnp.arange(vector.shape[-1]) < written
        return jnp.where(jnp.expand_dims(is_written, range(vector.ndim - 1)), vector, number)
