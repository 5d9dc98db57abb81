"""Arrays by relation as inputs and outputs of the kernels: see `relations` and `relation_tiles`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from distattn_jax.attention.fused import relations
from distattn_jax.attention.fused.gpu.relation_tiles import SUFFIXES
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.relations import AFTER, BEFORE, Ends, end_sides
from distattn_jax.attention.fused.tile_runs import TileSchedule

Outputs = dict[str, Array]


class RelationInputs(NamedTuple):
    """Inputs of a kernel by relation. Both dicts are empty for other scorings.

    Attributes:
      matrices: Arrays of the shape (B, T, N, R), with a padded second axis.
      vectors: Numbers of the end relations, shape (B, N, T), with a padded last axis.
    """

    matrices: dict[str, Array]
    vectors: dict[str, Array]


class RelationArrays:
    """Inputs and outputs by relation of the kernels of one attention call.

    The number of queries is padded to a multiple of `length_multiple`, so that a kernel never reads
    or writes beyond the end of an array.
    """

    def __init__(self, plan: Plan, operands: Operands, length_multiple: int):
        self.operands = operands
        batch, length, heads, _ = operands.query.shape
        self.padding = -length % length_multiple
        self.scoring = plan.scoring
        self.sides = end_sides(is_causal=plan.window.is_causal)
        self.vector_shape = (batch, heads, length + self.padding)

    def inputs(self, arrays: dict[str, Float[Array, "#B #T N R"]]) -> RelationInputs:
        """Return the inputs of a kernel from `KernelCall.relations`."""
        result = RelationInputs({}, {})
        for name, array in arrays.items():
            shape = (*self.operands.query.shape[:3], array.shape[3])
            self._add(result, name, jnp.broadcast_to(array, shape))
        return result

    def vector_names(self, *, has_cotangent: bool) -> list[str]:
        """Return the names of the vectors in the result of `inputs`."""
        names = ["relation_products"] * (self.operands.relation_products is not None)
        names += ["relation_cotangent"] * has_cotangent
        return [name + SUFFIXES[side] for name in names for side in self._vector_sides(name)]

    def _vector_sides(self, name: str) -> list[int]:
        """Return the sides of the end relations whose numbers are not all 0.

        The products of relation 0 are 0, and without dropout its cotangent is 0, too: see
        `derivative`.
        """
        has_before = name == "relation_cotangent" and self.operands.dropout_words is not None
        return [side for side in self.sides if side == AFTER or has_before]

    def _add(self, result: RelationInputs, name: str, array: Array) -> None:
        """Add an array by relation to `result`, with the numbers of its ends as vectors."""
        array = jnp.pad(array, ((0, 0), (0, self.padding), (0, 0), (0, 0)))
        result.matrices[name] = array
        for side in self._vector_sides(name):
            end = array[..., 0 if side == BEFORE else -1]
            result.vectors[name + SUFFIXES[side]] = jnp.moveaxis(end, 1, 2)

    def output_types(self, kernel: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the types of the outputs by relation of a kernel, given its name."""
        if kernel == "forward" and self.scoring.has_relation_weights:
            return self._types("band_scores", [f"weight{SUFFIXES[side]}" for side in self.sides])
        if kernel == "query_gradient" and self.scoring.has_relation_products:
            return self._types("band_gradient", ["gradient_after"] if AFTER in self.sides else [])
        return {}

    def _types(self, matrix: str, vectors: list[str]) -> dict[str, jax.ShapeDtypeStruct]:
        batch, heads, length = self.vector_shape
        shape = (batch, length, heads, 2 * self.scoring.clip_distance + 1)
        vector_type = jax.ShapeDtypeStruct(self.vector_shape, jnp.float32)
        return {
            matrix: jax.ShapeDtypeStruct(shape, jnp.float32),
            **dict.fromkeys(vectors, vector_type),
        }

    def assemble(self, outputs: Outputs, call: KernelCall, config: TileConfig) -> Outputs:
        """Return the relation weights, or the gradient of the relation products, by name.

        The dict is empty if the kernel has no outputs by relation.
        """
        if "band_scores" in outputs:
            is_written = self._find_written_entries(call.schedule, config)
            return {"relation_weights": self._assemble_weights(outputs, is_written)}
        if "band_gradient" in outputs:
            is_written = self._find_written_entries(call.schedule, config)
            return {"relation_products": self._assemble_gradient(outputs, is_written)}
        return {}

    def _assemble_weights(
        self, outputs: Outputs, is_kept: Bool[Array, "B T N R"]
    ) -> Float[Array, "B T N R"]:
        """Return the relation weights from the outputs of the forward kernel."""
        operands, queries = self.operands, self.operands.query.shape[1]
        if operands.dropout_words is not None:
            is_kept &= relations.find_kept_entries(
                operands.dropout_words, queries, operands.offset, self.scoring.clip_distance
            )
        return relations.assemble_weights(
            outputs["band_scores"][:, :queries],
            Ends(outputs["weight_before"], outputs.get("weight_after")),
            outputs["logsumexp"],
            is_kept,
            multiplier=self.scoring.score_multiplier(None),
            dropout_scale=operands.dropout_scale,
        )

    def _assemble_gradient(
        self, outputs: Outputs, is_written: Bool[Array, "B T N R"]
    ) -> Float[Array, "#B #T N R"]:
        """Return the gradient of the relation products from the outputs of `query_gradient`."""
        gradient = relations.assemble_product_gradient(
            outputs["band_gradient"][:, : self.operands.query.shape[1]],
            outputs.get("gradient_after"),
            is_written,
            self.scoring.scale,
        )
        if self.operands.shares_relation_products:
            return gradient.sum(axis=(0, 1), keepdims=True)
        return gradient

    def _find_written_entries(self, schedule: TileSchedule, config: TileConfig) -> Array:
        """Return True for each query and relation whose key is in a visited tile."""
        length = self.operands.query.shape[1]
        first, end = (
            jnp.repeat(bound * config.columns, config.block_rows // schedule.parts, axis=2)
            for bound in (schedule.start, schedule.end)
        )
        return relations.find_written_entries(
            (first[:, :, :length], end[:, :, :length]),
            self.operands.offset,
            self.scoring.clip_distance,
        )
