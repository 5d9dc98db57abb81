"""The five kernels on a TPU: their tile sizes, their arrays, and the function that runs them.

The module `fused.kernel_calls` lists the inputs and outputs of each kernel.
"""

import jax.numpy as jnp
from jaxtyping import Array

from distattn_jax.attention.fused.kernel_calls import KernelCall, KernelCalls, compute_delta
from distattn_jax.attention.fused.kernels import Kernels, Plan
from distattn_jax.attention.fused.operands import BackwardOperands, Operands
from distattn_jax.attention.fused.schedule import TileSizes
from distattn_jax.attention.fused.tpu import gradient_kernels, weight_kernels
from distattn_jax.attention.fused.tpu.distance_tiles import keep_distances
from distattn_jax.attention.fused.tpu.kernel_arrays import KernelArrays
from distattn_jax.attention.fused.tpu.kernel_body import KernelBody, KernelInputs
from distattn_jax.attention.fused.tpu.relation_tiles import expand_inputs
from distattn_jax.attention.fused.tpu.tile_configs import select_tile_config
from distattn_jax.attention.fused.tpu.tile_loop import run_tile_loop

BODIES = {
    "forward": weight_kernels.forward,
    "query_gradient": gradient_kernels.query_gradient,
    "key_gradient": gradient_kernels.key_gradient,
    "received": weight_kernels.received,
    "attention_given": weight_kernels.attention_given,
}
READS_KEY_ROWS = ("forward", "attention_given")  # kernels that read `key_rows` instead of `key`


def make_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return the kernels for TPUs, bound to the plan and the operands."""
    return _TPUKernels(plan, operands).bind()


class _TPUKernels(KernelCalls):
    """The kernels of one attention call on a TPU."""

    def __init__(self, plan: Plan, operands: Operands):
        super().__init__(plan, operands)
        self.config = select_tile_config(operands.query.shape[1], operands.key.shape[1])
        self.arrays = KernelArrays(operands, self.config)

    def tile_sizes(self, kernel: str) -> TileSizes:
        is_transposed = kernel in ("key_gradient", "received")
        return TileSizes(*self.config.divide(is_transposed=is_transposed))

    @property
    def padded_queries(self) -> int:
        return self.arrays.padded_queries

    def delta_inputs(self, backward: BackwardOperands) -> dict[str, Array]:
        return {"negative_delta": -compute_delta(backward)}

    def run(self, call: KernelCall) -> dict[str, Array]:
        arrays, is_transposed = self.arrays, call.score_map.is_transposed
        resident = arrays.arrange(call.resident, is_keys=is_transposed)
        streamed = arrays.arrange(call.streamed, is_keys=not is_transposed)
        if call.name in READS_KEY_ROWS:
            streamed["key_rows"] = jnp.swapaxes(streamed.pop("key"), 2, 3)
        by_query = streamed if is_transposed else resident
        by_query |= {name: arrays.arrange_by_relation(x) for name, x in call.relations.items()}
        positions: dict[str, Array] = {}
        if self.operands.positions is not None:
            positions["positions"] = arrays.arrange_positions(self.operands.positions)
        runs, (batch, _, heads, _) = call.schedule.runs, self.operands.query.shape
        inputs = KernelInputs(
            resident=resident,
            streamed=streamed,
            entries=arrays.mask_entries(),
            diagonals={
                name: arrays.arrange_by_diagonal(table)
                for name, table in call.position_tables.items()
            },
            positions=positions,
            scalars=self.scalars,
            skipped_sums=call.skipped_sums,
            runs=jnp.broadcast_to(runs, (batch, heads, *runs.shape[2:])),
        )
        outputs = run_tile_loop(
            call,
            self._make_body(call, inputs),
            inputs,
            arrays.output_types(call),
            self.config,
            origin=arrays.padded_keys,
        )
        return arrays.restore_outputs(outputs, call)

    def _make_body(self, call: KernelCall, inputs: KernelInputs) -> KernelBody:
        """Return the body of a kernel: the functions that compute one block tile by tile.

        The body of `BODIES` is extended in two ways. If the call has relations, the body converts
        inputs with one row per relation to bands (see `expand_inputs`). If the scoring has a
        distance function, the body stores it in VMEM (see `keep_distances`).
        """
        body = BODIES[call.name](call, self.config.shape)
        if call.relations:
            is_streamed = call.score_map.is_transposed
            body = expand_inputs(body, [*call.relations], self.config.queries, is_streamed)
        if call.score_map.scoring.function is not None:
            query_tiles = self.arrays.padded_queries // self.config.queries
            key_tiles = self.arrays.padded_keys // self.config.keys
            body = keep_distances(
                body,
                call.score_map,
                self.config.shape,
                diagonals=query_tiles + key_tiles - 1,
                needs_distances=call.name == "query_gradient",
            )
        return body
