"""Calls of the kernels: the inputs, tiles and outputs of each kernel, for every type of chip.

The score map is the matrix of the scores of all queries and keys. Arrays that belong to its rows
stay in the memory near the processor. Arrays that belong to its columns are streamed tile by tile:

    rows      columns    kernels
    queries   keys       forward, query_gradient, attention_given
    keys      queries    key_gradient, received

Each type of chip has a subclass of `KernelCalls`. The subclass adds the sizes of tiles, the layout
of arrays in memory, and the bodies of the kernels.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused.kernels import Kernels, Plan, QueryGradients
from distattn_jax.attention.fused.operands import BackwardOperands, Operands, select_precision
from distattn_jax.attention.fused.relations import multiply_inner_relations
from distattn_jax.attention.fused.schedule import CallSchedules, TileSizes
from distattn_jax.attention.fused.score_map import ScoreMap, make_score_map
from distattn_jax.attention.fused.skipped_tiles import SkippedTiles
from distattn_jax.attention.fused.tile_runs import TileSchedule

Arrays = dict[str, Array]  # by name
# Outputs of `query_gradient` that `key_gradient` reads if the kernels multiply tables of relations.
RELATION_VECTORS = (
    "relation_products_after",
    "relation_cotangent_before",
    "relation_cotangent_after",
)
RELATION_MATRICES = ("relation_weights", "relation_gradient")
END_WEIGHTS = ("weight_before", "weight_after")  # names of `BackwardOperands.end_weights`


class KernelCall(NamedTuple):
    """Inputs, schedule and output types of one kernel, in a layout that all types of chips share.

    The rows of the score map are queries and the columns are keys, or the rows are keys and the
    columns are queries: see `ScoreMap.is_transposed`.

    Matrices have the shape (B, L, N, W), and vectors have the shape (B, N, L), where L is the
    number of queries or keys. The length L of a vector may be padded.

    Attributes:
      name: Name of the kernel, a field of `Kernels`.
      score_map: Scoring, masks and orientation of the score map.
      schedule: Tiles that each block of rows visits.
      resident: Matrices and vectors that belong to the rows of the score map.
      streamed: Matrices and vectors that belong to the columns of the score map.
      moving: Matrices and vectors that belong to keys, in the GPU kernel `position_gradient`: see
        `ScoreMap.has_moving_rows`. `resident` belongs to diagonals in this kernel.
      relations: Arrays of the shape (B, T, N, R) with one number for each query and relation: see
        `relations`.
      position_tables: Functions of the relative position, for `TableScoring`, by name: see
        `Operands.position_tables`.
      skipped_sums: Sums over the tiles that the kernel skips, which it adds to its results.
      output_types: Dict from name to shape and dtype of each output. Outputs belong to the rows of
        the score map.
    """

    name: str
    score_map: ScoreMap
    schedule: TileSchedule
    resident: Arrays
    streamed: Arrays
    moving: Arrays
    relations: Arrays
    position_tables: Arrays
    skipped_sums: Arrays
    output_types: dict[str, jax.ShapeDtypeStruct]

    @property
    def has_received_cotangent(self) -> bool:
        """True if the kernel reads the cotangent of the attention that each key receives."""
        return "received_cotangent" in {**self.resident, **self.streamed, **self.moving}


class KernelCalls(abc.ABC):
    """Kernels of one attention call. Each kernel is a method: see `Kernels`.

    Attributes:
      plan: Static options of the call.
      operands: Arrays of the call.
      schedules: Tiles that the blocks of each kernel visit.
      scalars: Dict from name to a few numbers for each example and head, shape (B, N, count). Axes
        0 and 1 may have size 1.
      queries: Matrices with one row per query that all kernels need: a dict with `query` and, for
        `PositionScoring`, `position_query`.
      separates_small_scores: True if the kernel `forward` has separate loops for heads with small
        scores (see `small_scores`).
      position_gradient: The kernel `position_gradient`, or None if `query_gradient` computes the
        gradient of the position vectors.
    """

    separates_small_scores = False
    position_gradient: Callable[[BackwardOperands], Array] | None = None

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands
        self.schedules = CallSchedules(plan, operands)
        self.scalars = _collect_scalars(plan, operands)
        self.queries = {"query": operands.query}
        if operands.position_query is not None:
            self.queries["position_query"] = operands.position_query

    @abc.abstractmethod
    def tile_sizes(self, kernel: str) -> TileSizes:
        """Return the sizes of the blocks and tiles of a kernel.

        Args:
          kernel: Name of the kernel, such as "forward".
        """

    @abc.abstractmethod
    def delta_inputs(self, backward: BackwardOperands) -> Arrays:
        """Return a dict of the inputs from which the kernel `query_gradient` gets -D.

        -D is `BackwardOperands.negative_delta`, one number for each query. Either the dict contains
        `negative_delta`, or the kernel computes it from the dict and returns it as an output of
        this name.
        """

    @abc.abstractmethod
    def run(self, call: KernelCall) -> Arrays:
        """Run a kernel. Return a dict from name to output, in the layout of `KernelCall`.

        The dict has more entries than `KernelCall.output_types` if the scoring needs them:
        `relation_weights` of `forward`, and `relation_products`, `positions` and the names of
        `Scoring.table_names` of `query_gradient`.
        """

    @property
    @abc.abstractmethod
    def padded_queries(self) -> int:
        """Number of queries after padding: the length of the logsumexp that the kernels read."""

    @property
    def key_gradient_width(self) -> int:
        """Number of columns of the keys that get a gradient from the kernel `key_gradient`.

        These are the first columns. The gradient of all other columns is 0.
        """
        return self.operands.key.shape[-1]

    def bind(self) -> Kernels:
        """Return a `Kernels` whose fields are the methods of this object."""
        return Kernels(
            forward=self.forward,
            query_gradient=self.query_gradient,
            key_gradient=self.key_gradient,
            received=self.received,
            attention_given=self.attention_given,
            padded_queries=self.padded_queries,
            position_gradient=self.position_gradient,
        )

    def forward(
        self,
    ) -> tuple[Float[Array, "B T N E"], Float[Array, "B N _"], Any]:
        """Return the weighted sum of values, the logsumexp and the relation weights of each query.

        The logsumexp is to base 2, and its last axis may be padded. The relation weights (see
        `relations`) are None if the scoring does not need them. With `Scoring.multiplies_tables`,
        return `BackwardOperands.end_weights` instead of the relation weights.
        """
        query, key, value = self.operands[:3]
        sizes = self.tile_sizes("forward")
        schedule = self.schedules.blocks(
            sizes, drops_weights=True, separates_small_scores=self.separates_small_scores
        )
        call = self.make_call(
            "forward",
            schedule,
            resident=self.queries,
            streamed={"key": key, "value": value},
            skipped_sums=self._skipped_tiles(schedule, sizes).sums_for_forward(),
            output_types={
                "values": self._matrix_type(query, value.shape[-1]),
                "logsumexp": self._vector_type(query),
            },
        )
        outputs = self.run(call)
        weights: Any = outputs.get("relation_weights")
        if self.plan.scoring.multiplies_tables and END_WEIGHTS[0] in outputs:
            weights = tuple(outputs.get(name) for name in END_WEIGHTS)
        return outputs["values"], outputs["logsumexp"], weights

    def query_gradient(self, backward: BackwardOperands) -> tuple[QueryGradients, BackwardOperands]:
        """Run the kernel `query_gradient`. Return its gradients, and a completed `backward`.

        The kernel computes -D, shape (B, N, T), possibly padded, for the other gradient kernels:
        see `BackwardOperands.negative_delta`. If the kernels multiply the tables of relations, it
        also computes the fields `relation_vectors` and `relation_matrices`.
        """
        query = self.operands.query
        names = self.plan.scoring.gradient_names
        delta_inputs = self.delta_inputs(backward)
        ends = backward.end_weights or ()
        vectors = [*names] if "negative_delta" in delta_inputs else ["negative_delta", *names]
        sizes = self.tile_sizes("query_gradient")
        # Only a bias has a gradient in tiles whose products q · k are treated as 0.
        has_bias = self.operands.bias_table is not None
        schedule = self.schedules.blocks(sizes, needs_zero_tiles=has_bias)
        call = self.make_call(
            "query_gradient",
            schedule,
            resident={
                **self.queries,
                "values_cotangent": backward.values_cotangent,
                "logsumexp": backward.logsumexp,
                **delta_inputs,
                **{name: x for name, x in zip(END_WEIGHTS, ends, strict=False) if x is not None},
            },
            streamed=self.key_inputs(backward),
            relation_cotangent=backward.relation_cotangent,
            skipped_sums={},  # f is 0 in skipped tiles, so that the gradient of q · k is 0
            output_types={
                **{name: self._matrix_type(x, x.shape[-1]) for name, x in self.queries.items()},
                **dict.fromkeys(vectors, self._vector_type(query)),
            },
        )
        outputs = self.run(call)
        parts = [outputs[name][:, :, : query.shape[1]] for name in names]
        gradients = QueryGradients(
            query=outputs["query"],
            coefficients=self._combine_coefficient_gradients(parts),
            factor_table=outputs.get("factor_table"),
            bias_table=outputs.get("bias_table"),
            relation_products=outputs.get("relation_products"),
            position_query=outputs.get("position_query"),
            positions=outputs.get("positions"),
            **self.table_gradients(outputs, backward),
        )
        completed = backward._replace(
            negative_delta={**delta_inputs, **outputs}["negative_delta"],
            relation_vectors={name: outputs[name] for name in RELATION_VECTORS if name in outputs},
            relation_matrices={
                name: outputs[name] for name in RELATION_MATRICES if name in outputs
            },
        )
        if self.operands.far_weights is not None:
            skipped = self._skipped_tiles(schedule, sizes)
            far = skipped.far_bias_gradient(completed, sizes.block_rows // schedule.parts)
            bias_table: Any = gradients.bias_table
            far *= self.plan.scoring.gradient_multiplier(None)
            bias_table = bias_table.at[:, :, -1].add(far[..., 0]).at[:, :, 0].add(far[..., 1])
            gradients = gradients._replace(bias_table=bias_table)
        return self._sum_shared_tables(gradients), completed

    def _sum_shared_tables(self, gradients: QueryGradients) -> QueryGradients:
        """Sum the gradients of the position tables that all examples share over the examples."""
        sums = {
            name: getattr(gradients, name).sum(axis=0, keepdims=True)
            for name, table in self.operands.position_tables.items()
            if table.shape[0] == 1
        }
        return gradients._replace(**sums)

    def table_gradients(self, outputs: Arrays, backward: BackwardOperands) -> Arrays:
        """Return the gradients of the tables of relations that the kernels multiply, by name.

        See `QueryGradients`. The dict is empty unless `Scoring.multiplies_tables` is True.

        Args:
          outputs: Outputs of the kernel `query_gradient`.
          backward: Inputs of the gradient kernels.
        """
        return {}

    def key_gradient(
        self, backward: BackwardOperands
    ) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K E"]]:
        """Return the gradients of the keys and of the values."""
        key, value = self.operands[1:3]
        sizes = self.tile_sizes("key_gradient")
        schedule = self.schedules.blocks(sizes, is_transposed=True, drops_weights=True)
        call = self.make_call(
            "key_gradient",
            schedule,
            resident=self.key_inputs(backward),
            streamed={**self.query_inputs(backward), **(backward.relation_vectors or {})},
            relation_cotangent=backward.relation_cotangent,
            relation_matrices=backward.relation_matrices,
            skipped_sums=self._skipped_tiles(schedule, sizes).sums_for_key_gradient(
                backward.logsumexp, backward.values_cotangent
            ),
            output_types={
                "key": self._matrix_type(key, self.key_gradient_width),
                "value": self._matrix_type(value, value.shape[-1]),
            },
            is_transposed=True,
        )
        outputs = self.run(call)
        key_gradient, value_gradient = (
            _sum_groups(outputs[name], key.shape[2]) for name in ("key", "value")
        )
        padding = (0, key.shape[-1] - self.key_gradient_width)
        return jnp.pad(key_gradient, ((0, 0), (0, 0), (0, 0), padding)), value_gradient

    def received(self, logsumexp: Float[Array, "B N _"]) -> Float[Array, "B N S"]:
        """Return the attention that each key j receives, Σ_i A_ij, summed over the queries i.

        A are the attention weights.

        Args:
          logsumexp: Logsumexp of the scores of each query, to base 2, possibly padded.
        """
        key = self.operands.key
        sizes = self.tile_sizes("received")
        schedule = self.schedules.blocks(sizes, is_transposed=True)
        call = self.make_call(
            "received",
            schedule,
            resident={"key": key},
            streamed={**self.queries, "logsumexp": logsumexp},
            skipped_sums=self._skipped_tiles(schedule, sizes).sums_for_received(logsumexp),
            output_types={"received": self._vector_type(key)},
            is_transposed=True,
        )
        return self.run(call)["received"][:, :, : key.shape[1]]

    def attention_given(
        self, logsumexp: Float[Array, "B N _"], received_cotangent: Float[Array, "B N S"]
    ) -> Float[Array, "B N T"]:
        """Return Σ_j A_ij g_j for each query i.

        A are the attention weights.

        Args:
          logsumexp: Logsumexp of the scores of each query, to base 2, possibly padded.
          received_cotangent: Cotangent g_j of the attention that each key j receives.
        """
        query, key = self.operands[:2]
        sizes = self.tile_sizes("attention_given")
        schedule = self.schedules.blocks(sizes)
        call = self.make_call(
            "attention_given",
            schedule,
            resident={**self.queries, "logsumexp": logsumexp},
            streamed={"key": key, "received_cotangent": received_cotangent},
            skipped_sums=self._skipped_tiles(schedule, sizes).sums_for_attention_given(
                received_cotangent
            ),
            output_types={"attention_given": self._vector_type(query)},
        )
        return self.run(call)["attention_given"][:, :, : query.shape[1]]

    def make_call(
        self,
        name: str,
        schedule: TileSchedule,
        *,
        resident: Arrays,
        streamed: Arrays,
        output_types: dict[str, jax.ShapeDtypeStruct],
        skipped_sums: Arrays,
        moving: Arrays | None = None,
        relation_cotangent: Float[Array, "B T N R"] | None = None,
        relation_matrices: dict[str, Array] | None = None,
        is_transposed: bool = False,
    ) -> KernelCall:
        """Return a `KernelCall` with the given arrays, the masks and the tables of the call.

        The arguments that are not listed here are fields of `KernelCall`.

        Args:
          moving: Arrays of the keys in the GPU kernel `position_gradient`. None in all other
            kernels.
          relation_cotangent: Cotangent of the relation weights, in a gradient kernel.
          relation_matrices: `BackwardOperands.relation_matrices`, in the kernel `key_gradient`.
          is_transposed: True if the rows of the score map are keys, False if they are queries.
        """
        score_map = make_score_map(
            self.plan,
            self.operands,
            is_transposed=is_transposed,
            has_moving_rows=moving is not None,
        )
        row_masks, column_masks = _collect_masks(self.operands, is_transposed=is_transposed)
        if moving is None:
            resident, moving = {**resident, **row_masks}, {}
        else:
            moving = {**moving, **row_masks}
        products = self.operands.relation_products
        if self.plan.scoring.multiplies_tables and name in ("received", "attention_given"):
            products = multiply_inner_relations(self.operands)
        relations = {
            "relation_products": products,
            "relation_cotangent": relation_cotangent,
            **(relation_matrices or {}),
        }
        return KernelCall(
            name,
            score_map,
            schedule,
            resident=resident,
            streamed={**streamed, **column_masks},
            moving=moving,
            relations={name: x for name, x in relations.items() if x is not None},
            position_tables=self.operands.position_tables,
            skipped_sums=skipped_sums,
            output_types=output_types,
        )

    def query_inputs(self, backward: BackwardOperands) -> Arrays:
        """Return a dict of the inputs of a gradient kernel that have one row or number per query.

        This function is for `key_gradient` and `position_gradient`. The columns of their score map
        are queries.
        """
        names = ("values_cotangent", "logsumexp", "negative_delta")
        return {**self.queries, **{name: getattr(backward, name) for name in names}}

    def key_inputs(self, backward: BackwardOperands) -> Arrays:
        """Return a dict of the inputs of a gradient kernel that have one row or number per key."""
        inputs = {"key": self.operands.key, "value": self.operands.value}
        if backward.received_cotangent is not None:
            inputs["received_cotangent"] = backward.received_cotangent
        return inputs

    def _skipped_tiles(self, schedule: TileSchedule, sizes: TileSizes) -> SkippedTiles:
        return SkippedTiles(self.plan, self.operands, schedule, sizes.columns)

    def _matrix_type(self, rows: Float[Array, "B L _ _"], width: int) -> jax.ShapeDtypeStruct:
        """Return the shape (B, L, N, width) and the dtype of a matrix.

        B, L and the dtype are those of `rows`. N is the number of query heads.
        """
        batch, length, *_ = rows.shape
        return jax.ShapeDtypeStruct(
            (batch, length, self.operands.query.shape[2], width), rows.dtype
        )

    def _vector_type(self, rows: Float[Array, "B L _ _"]) -> jax.ShapeDtypeStruct:
        """Return the shape (B, N, L) and the dtype float32 of a vector.

        B and L are those of `rows`. N is the number of query heads.
        """
        batch, length, *_ = rows.shape
        return jax.ShapeDtypeStruct((batch, self.operands.query.shape[2], length), jnp.float32)

    def _combine_coefficient_gradients(
        self, parts: list[Float[Array, "B N T"]]
    ) -> Float[Array, "1 N C"]:
        """Return the gradient of `Operands.coefficients`.

        Args:
          parts: Contribution of each query to the gradients: one array for each name in
            `Scoring.gradient_names`. The list is empty if the scoring has no coefficients.
        """
        coefficients = self.operands.coefficients
        if not parts:
            return jnp.zeros_like(coefficients)
        # One sum of stacked arrays is one operation on the chip instead of several.
        sums = jnp.stack(parts).sum(axis=(1, 3))[:, None]
        return self.plan.scoring.combine_gradients(sums, coefficients)


def compute_delta(backward: BackwardOperands) -> Float[Array, "B N T"]:
    """Return D_i = dO_i · O_i + `other_delta` for each query i: see `BackwardOperands`.

    Call this function if the kernel `query_gradient` does not compute D.
    """
    delta = jnp.einsum(
        "btne,btne->bnt",
        backward.values,
        backward.values_cotangent,
        preferred_element_type=jnp.float32,
        precision=select_precision(backward.values.dtype),
    )
    return delta if backward.other_delta is None else backward.other_delta + delta


def _collect_scalars(plan: Plan, operands: Operands) -> Arrays:
    """Return the lengths, coefficients and dropout numbers of each example and head.

    The result is a dict from name to array, shape (B, N, count), where B or N may be 1.
    """
    lengths = operands.query_lengths, operands.key_lengths, operands.offset
    scalars = {"lengths": jnp.stack(jnp.broadcast_arrays(*lengths), axis=-1)[:, None]}
    if plan.scoring.function is not None:
        scalars["coefficients"] = operands.coefficients
    if operands.dropout_words is not None and operands.dropout_scale is not None:
        scalars["dropout_words"] = operands.dropout_words
        scalars["dropout_scale"] = operands.dropout_scale
    return scalars


def _collect_masks(operands: Operands, *, is_transposed: bool) -> tuple[Arrays, Arrays]:
    """Return two dicts of masks: one for the rows and one for the columns of the score map.

    The dicts contain the key mask, the segments of the queries and the segments of the keys, as far
    as the call has them.

    Args:
      operands: Arrays of the call.
      is_transposed: True if the rows are keys, False if the rows are queries.
    """
    rows: Arrays = {}
    columns: Arrays = {}
    if operands.key_mask is not None:
        key_mask = operands.key_mask.astype(jnp.float32)
        (rows if is_transposed else columns)["key_mask"] = key_mask
    if operands.query_segments is not None and operands.key_segments is not None:
        query_segments = operands.query_segments.astype(jnp.int32)[:, None]
        key_segments = operands.key_segments.astype(jnp.int32)[:, None]
        rows["row_segments"] = key_segments if is_transposed else query_segments
        columns["column_segments"] = query_segments if is_transposed else key_segments
    return rows, columns


def _sum_groups(gradient: Float[Array, "B S N W"], key_heads: int) -> Float[Array, "B S K W"]:
    """Sum a gradient over each group of N / K query heads that share one of K key heads."""
    if gradient.shape[2] == key_heads:
        return gradient
    parts = gradient.reshape(*gradient.shape[:2], key_heads, -1, gradient.shape[3])
    return parts.astype(jnp.float32).sum(axis=3).astype(gradient.dtype)
