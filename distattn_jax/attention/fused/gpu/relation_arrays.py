"""Arrays by relation as inputs and outputs of the kernels: see `relations` and `relation_tiles`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused import relations
from distattn_jax.attention.fused.gpu.relation_tiles import SUFFIXES
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.relations import AFTER, BEFORE, Ends, end_sides
from distattn_jax.attention.fused.runs import Schedule

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
    """Inputs and outputs by relation of the kernels of one attention call."""

    def __init__(self, plan: Plan, operands: Operands, length_multiple: int):
        """Prepare the arrays.

        Args:
          plan: Static options of the call.
          operands: Arrays of the call.
          length_multiple: Number of queries is padded to a multiple of this number, so that a
            kernel never reads or writes beyond the end of an array.
        """
        self.operands = operands
        batch, length, heads, _ = operands.query.shape
        self.padding = -length % length_multiple
        self.scoring = plan.scoring
        self.sides = end_sides(is_causal=plan.window.is_causal)
        self.vector_shape = (batch, heads, length + self.padding)

    def inputs(self, cotangent: Float[Array, "B T N R"] | None = None) -> RelationInputs:
        """Return the relation products and the cotangent of the relation weights.

        Args:
          cotangent: Cotangent of the relation weights in a backward kernel, otherwise None.
        """
        result = RelationInputs({}, {})
        if self.operands.relation_products is not None:
            products = self.operands.relation_products
            shape = (*self.operands.query.shape[:3], products.shape[3])
            self._add(result, "relation_products", jnp.broadcast_to(products, shape))
        if cotangent is not None:
            self._add(result, "relation_cotangent", cotangent)
        return result

    def vector_names(self, *, has_cotangent: bool) -> list[str]:
        """Return the names of the vectors in the result of `inputs`."""
        names = ["relation_products"] * (self.operands.relation_products is not None)
        names += ["relation_cotangent"] * has_cotangent
        return [name + SUFFIXES[side] for name in names for side in self._vector_sides(name)]

    def _vector_sides(self, name: str) -> list[int]:
        """Return the sides of the end relations whose numbers are not all 0."""
        has_before = name == "relation_cotangent" and self.operands.dropout_words is not None
        return [side for side in self.sides if side == AFTER or has_before]

    def _add(self, result: RelationInputs, name: str, array: Array) -> None:
        """Add an array by relation to `result`, with the numbers of its ends as vectors."""
        array = jnp.pad(array, ((0, 0), (0, self.padding), (0, 0), (0, 0)))
        result.matrices[name] = array
        for side in self._vector_sides(name):
            end = array[..., 0 if side == BEFORE else -1]
            result.vectors[name + SUFFIXES[side]] = jnp.moveaxis(end, 1, 2)

    def weight_types(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the types of the outputs of the forward kernel for the relation weights."""
        if not self.scoring.has_relation_weights:
            return {}
        return self._types("band_scores", [f"weight{SUFFIXES[side]}" for side in self.sides])

    def gradient_types(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the types of the outputs of `query_gradient` for the relation products."""
        if not self.scoring.has_relation_products:
            return {}
        return self._types("band_gradient", ["gradient_after"] if AFTER in self.sides else [])

    def _types(self, matrix: str, vectors: list[str]) -> dict[str, jax.ShapeDtypeStruct]:
        batch, heads, length = self.vector_shape
        shape = (batch, length, heads, 2 * self.scoring.clip_distance + 1)
        vector_type = jax.ShapeDtypeStruct(self.vector_shape, jnp.float32)
        return {
            matrix: jax.ShapeDtypeStruct(shape, jnp.float32),
            **dict.fromkeys(vectors, vector_type),
        }

    def assemble_weights(
        self,
        outputs: Outputs,
        logsumexp: Float[Array, "B N _"],
        schedule: Schedule,
        config: TileConfig,
    ) -> Float[Array, "B T N R"] | None:
        """Return the relation weights, or None if they are not requested.

        Args:
          outputs: Outputs of the forward kernel.
          logsumexp: Logsumexp of each query to base 2.
          schedule: Tiles that the kernel visits.
          config: Tile configuration of the kernel.
        """
        if not self.scoring.has_relation_weights:
            return None
        is_kept = self._find_written_entries(schedule, config)
        operands, clip_distance = self.operands, self.scoring.clip_distance
        if operands.dropout_words is not None:
            queries = operands.query.shape[1]
            is_kept &= relations.find_kept_entries(
                operands.dropout_words, queries, operands.offset, clip_distance
            )
        return relations.assemble_weights(
            outputs["band_scores"][:, : self.operands.query.shape[1]],
            Ends(outputs["weight_before"], outputs.get("weight_after")),
            logsumexp,
            is_kept,
            multiplier=self.scoring.score_multiplier(None),
            dropout_scale=self.operands.dropout_scale,
        )

    def assemble_gradient(
        self, outputs: Outputs, schedule: Schedule, config: TileConfig
    ) -> Float[Array, "#B #T N R"] | None:
        """Return the gradient of the relation products, or None if there are no products.

        Args:
          outputs: Outputs of the kernel `query_gradient`.
          schedule: Tiles that the kernel visits.
          config: Tile configuration of the kernel.
        """
        if not self.scoring.has_relation_products:
            return None
        gradient = relations.assemble_product_gradient(
            outputs["band_gradient"][:, : self.operands.query.shape[1]],
            outputs.get("gradient_after"),
            self._find_written_entries(schedule, config),
            self.scoring.scale,
        )
        if self.operands.shares_relation_products:
            return gradient.sum(axis=(0, 1), keepdims=True)
        return gradient

    def _find_written_entries(self, schedule: Schedule, config: TileConfig) -> Array:
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
