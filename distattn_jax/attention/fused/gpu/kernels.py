"""Functions that call the six kernels on a Hopper GPU, and prepare their schedules and inputs.

Vectors have one number per query or key and shape (B, N, L). They are padded to a multiple of all
block sizes, so that a kernel never reads or writes beyond their end. The same holds for tables,
which have one number per relative position. Matrices need no such padding: the copy engine of the
GPU reads zeros beyond their end, and writes nothing there.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from distattn_jax.attention.fused import skipped_tiles
from distattn_jax.attention.fused.derivative import KernelFactory, Kernels, QueryGradients
from distattn_jax.attention.fused.distance_functions import Coefficients, unstack_coefficients
from distattn_jax.attention.fused.gpu import mosaic, passes
from distattn_jax.attention.fused.gpu.relation_arrays import RelationArrays
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig, select_tile_configs
from distattn_jax.attention.fused.gpu.tile_loop import (
    KernelBody,
    KernelInputs,
    count_leading_rows,
    run_tile_loop,
)
from distattn_jax.attention.fused.gpu.tile_view import ScoreMap
from distattn_jax.attention.fused.operands import (
    EMPTY_LOGSUMEXP,
    BackwardOperands,
    Operands,
    Plan,
)
from distattn_jax.attention.fused.runs import Schedule
from distattn_jax.attention.fused.schedule import (
    ScheduleInputs,
    schedule_diagonal_blocks,
    schedule_key_blocks,
    schedule_query_blocks,
)
from distattn_jax.attention.fused.scoring import DistanceScoring, TableScoring


def select_kernels() -> KernelFactory:
    """Return `make_interpreted_kernels` inside `mosaic.interpreted()`, otherwise `make_kernels`."""
    return make_interpreted_kernels if mosaic.is_interpreted() else make_kernels


def make_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return the kernels for Hopper GPUs, bound to the plan and the operands."""
    call = _KernelCall(plan, operands)
    return Kernels(
        forward=call.forward,
        query_gradient=call.query_gradient,
        key_gradient=call.key_gradient,
        received=call.received,
        attention_given=call.attention_given,
        position_gradient=call.position_gradient,
    )


def make_interpreted_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return the kernels for Hopper GPUs, run by the Pallas interpreter on a CPU."""

    def interpret(kernel: Callable) -> Callable:
        def run(*arguments):
            with mosaic.interpreted():
                return kernel(*arguments)

        return run

    with mosaic.interpreted():
        return Kernels(*[interpret(kernel) for kernel in make_kernels(plan, operands)])


class _KernelCall:
    """The six kernels of one attention call as methods, and the inputs that all of them share."""

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands
        self.configs = select_tile_configs(plan, operands)
        self.relations = RelationArrays(plan, operands, self.configs.vector_multiple)
        batch, _, heads, _ = operands.query.shape
        self.schedule_inputs = ScheduleInputs(
            query_lengths=operands.query_lengths,
            key_lengths=operands.key_lengths,
            offset=operands.offset,
            window=plan.window,
            radius=operands.radius,
            is_zero_beyond_radius=operands.is_zero_beyond_radius,
            key_mask=operands.key_mask,
            query_segments=operands.query_segments,
            key_segments=operands.key_segments,
            has_mask=operands.mask is not None,
        )
        lengths = jnp.stack(
            (operands.query_lengths, operands.key_lengths, operands.offset), axis=-1
        )
        self.has_dropout = operands.dropout_words is not None
        self.position_query = {}
        if operands.position_query is not None:
            self.position_query["position_query"] = operands.position_query
        self.scalars = {"lengths": jnp.broadcast_to(lengths[:, None], (batch, heads, 3))}
        if isinstance(plan.scoring, DistanceScoring):
            self.scalars["coefficients"] = operands.coefficients
        if operands.dropout_words is not None and operands.dropout_scale is not None:
            self.scalars["dropout_words"] = operands.dropout_words
            self.scalars["dropout_scale"] = operands.dropout_scale

    def forward(
        self,
    ) -> tuple[Float[Array, "B T N E"], Float[Array, "B N _"], Float[Array, "B T N R"] | None]:
        """Return the weighted sum of values, the logsumexp and the relation weights of each query.

        The logsumexp is to base 2, and its last axis is padded. The relation weights are None if
        they are not requested.
        """
        query, key, value = self.operands[:3]
        config = self.configs.forward
        schedule = self._schedule_query_blocks(config, drops_weights=True)
        relations = self.relations.inputs()
        skipped_sums = skipped_tiles.sums_for_forward(
            self.plan, self.operands, schedule, config.columns
        )
        outputs = self._run(
            "forward",
            passes.forward(self._score_map(), config.tile_shape, value.shape[-1]),
            schedule,
            resident={"query": query, **self.position_query, **relations.vectors},
            streamed={"key": key, "value": value},
            gathered=relations.matrices,
            skipped_sums=skipped_sums,
            output_types={
                "values": _matrix_type(query, value.shape[-1]),
                "logsumexp": self._vector_type(query),
                **self.relations.weight_types(),
            },
        )
        # The vector may be longer than all blocks together. Its end is not written by the kernel.
        written = schedule.start.shape[2] * config.block_rows
        logsumexp = outputs["logsumexp"]
        if written < logsumexp.shape[-1]:
            is_written = jnp.arange(logsumexp.shape[-1]) < written
            logsumexp = jnp.where(is_written[None, None, :], logsumexp, EMPTY_LOGSUMEXP)
        weights = self.relations.assemble_weights(outputs, logsumexp, schedule, config)
        return outputs["values"], logsumexp, weights

    def query_gradient(self, backward: BackwardOperands) -> QueryGradients:
        """Return the gradients of queries, coefficients and relation products."""
        query, key, value = self.operands[:3]
        values_cotangent, received_cotangent, logsumexp, negative_delta, _ = self._pad(backward)
        relations = self.relations.inputs(backward.relation_cotangent)
        config = self.configs.query_gradient
        schedule = self._schedule_query_blocks(config, needs_zero_tiles=False)
        streamed = {"key": key, "value": value}
        if received_cotangent is not None:
            streamed["received_cotangent"] = received_cotangent
        names = self.plan.scoring.gradient_names
        outputs = self._run(
            "query_gradient",
            passes.query_gradient(
                self._score_map(),
                config.tile_shape,
                query.shape[-1],
                query.dtype,
                has_received=received_cotangent is not None,
            ),
            schedule,
            resident={
                "query": query,
                "values_cotangent": values_cotangent,
                "logsumexp": logsumexp,
                "negative_delta": negative_delta,
                **self.position_query,
                **relations.vectors,
            },
            streamed=streamed,
            gathered=relations.matrices,
            skipped_sums={},  # f is 0 in skipped tiles, so their gradients are 0
            output_types={
                "query": _matrix_type(query, query.shape[-1]),
                **{name: _matrix_type(x, x.shape[-1]) for name, x in self.position_query.items()},
                **dict.fromkeys(names, self._vector_type(query)),
                **self.relations.gradient_types(),
            },
        )
        sums = {name: outputs[name][:, :, : query.shape[1]].sum(axis=-1) for name in names}
        return QueryGradients(
            query=outputs["query"],
            coefficients=self._coefficient_gradients(sums),
            relation_products=self.relations.assemble_gradient(outputs, schedule, config),
            position_query=outputs.get("position_query"),
        )

    def _coefficient_gradients(self, sums: dict[str, Array]) -> Float[Array, "B N C"]:
        """Return the gradients of all coefficients: slope, shift, height and far value.

        The gradient of the height is computed from the gradient of its logarithm. The gradient of
        the far value is 0, because the far value is treated as a constant. If tables contain the
        function, the coefficients are its parameters, and `sums` are their gradients.

        Args:
          sums: Gradients `slope`, `shift` and `log_height` (logarithm of the height), or one
            gradient per parameter. Each has the shape (B, N). The dict is empty for the dot
            product, which has no coefficients.
        """
        coefficients = self.operands.coefficients
        if not sums:
            return jnp.zeros_like(coefficients)
        if isinstance(self.plan.scoring, TableScoring):
            return jnp.stack(list(sums.values()), axis=-1)
        height = sums["log_height"] / unstack_coefficients(coefficients).height
        far = jnp.zeros_like(height)
        return jnp.stack(Coefficients(sums["slope"], sums["shift"], height, far), axis=-1)

    def key_gradient(
        self, backward: BackwardOperands
    ) -> tuple[Float[Array, "B S K H"], Float[Array, "B S K E"]]:
        """Return the gradients of the keys and of the values."""
        query, key, value = self.operands[:3]
        values_cotangent, received_cotangent, logsumexp, negative_delta, _ = self._pad(backward)
        relations = self.relations.inputs(backward.relation_cotangent)
        config = self.configs.key_gradient
        schedule = self._schedule_key_blocks(config, drops_weights=True)
        resident = {"key": key, "value": value}
        if received_cotangent is not None:
            resident["received_cotangent"] = received_cotangent
        skipped_sums = skipped_tiles.sums_for_key_gradient(
            self.plan,
            self.operands,
            schedule,
            config.columns,
            logsumexp=logsumexp,
            values_cotangent=values_cotangent,
        )
        outputs = self._run(
            "key_gradient",
            passes.key_gradient(
                self._score_map(is_transposed=True),
                config.tile_shape,
                (key.shape[-1], value.shape[-1]),
                has_received=received_cotangent is not None,
            ),
            schedule,
            resident=resident,
            streamed={
                "query": query,
                "values_cotangent": values_cotangent,
                "logsumexp": logsumexp,
                "negative_delta": negative_delta,
                **self.position_query,
                **relations.vectors,
            },
            gathered=relations.matrices,
            skipped_sums=skipped_sums,
            output_types={
                "key": self._key_type(key),
                "value": self._key_type(value),
            },
            is_transposed=True,
        )
        return self._sum_groups(outputs["key"]), self._sum_groups(outputs["value"])

    def position_gradient(self, backward: BackwardOperands) -> Float[Array, "#B D #N H"]:
        """Return the gradient of the position vectors."""
        query, key, value = self.operands[:3]
        values_cotangent, received_cotangent, logsumexp, negative_delta, _ = self._pad(backward)
        config = self.configs.position_gradient
        assert self.operands.positions is not None, "other scorings have no position vectors"
        positions = self._arrange_by_diagonal(self.operands.positions, is_transposed=True)
        origin = self._padded_length(query.shape[1])
        length = origin + self._padded_length(key.shape[1])
        # Two tiles of diagonals belong to each warpgroup. They begin at its first row in arrays of
        # which one is shifted by a tile.
        shifts = {"lower_positions": config.rows, "upper_positions": 0}
        moving = {"key": key, "value": value}
        if received_cotangent is not None:
            moving["received_cotangent"] = received_cotangent
        outputs = self._run(
            "position_gradient",
            passes.position_gradient(
                self._score_map(is_transposed=True, has_moving_rows=True),
                config.tile_shape,
                key.shape[-1],
                query.dtype,
                has_received=received_cotangent is not None,
            ),
            self._schedule_diagonal_blocks(config, length, origin),
            resident={
                name: _shift_rows(positions, shift, length) for name, shift in shifts.items()
            },
            streamed={
                "query": query,
                "values_cotangent": values_cotangent,
                "logsumexp": logsumexp,
                "negative_delta": negative_delta,
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
            _shift_rows(outputs[name].astype(jnp.float32), -shift, positions.shape[1])
            for name, shift in shifts.items()
        ]
        return self._sum_positions(parts[0] + parts[1], self.operands.positions)

    def _sum_positions(
        self, gradient: Float[Array, "B _ N H"], positions: Float[Array, "#B D #N H"]
    ) -> Float[Array, "#B D #N H"]:
        """Return the gradient of position vectors, in their own order.

        Args:
          gradient: Gradient in the order of `_arrange_by_diagonal`, of each example and head.
          positions: Position vectors, which examples or heads may share.
        """
        queries = self.operands.query.shape[1]
        start = self._padded_length(queries) - queries
        gradient = jnp.flip(gradient[:, start : start + positions.shape[1]], axis=1)
        axes = [axis for axis in (0, 2) if positions.shape[axis] == 1]
        return gradient.sum(axis=axes, keepdims=True).astype(positions.dtype)

    def received(self, logsumexp: Float[Array, "B N _"]) -> Float[Array, "B N S"]:
        """Return the attention that each key receives, summed over the queries."""
        query, key = self.operands[:2]
        config = self.configs.received
        schedule = self._schedule_key_blocks(config)
        skipped_sums = skipped_tiles.sums_for_received(
            self.plan, self.operands, schedule, config.columns, logsumexp=logsumexp
        )
        relations = self.relations.inputs()
        outputs = self._run(
            "received",
            passes.received(self._score_map(is_transposed=True), config.tile_shape),
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
            output_types={"received": self._vector_type(key)},
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
        received_cotangent = self._pad_vector(received_cotangent)
        config = self.configs.attention_given
        schedule = self._schedule_query_blocks(config)
        skipped_sums = skipped_tiles.sums_for_attention_given(
            self.plan,
            self.operands,
            schedule,
            config.columns,
            received_cotangent=received_cotangent,
        )
        relations = self.relations.inputs()
        outputs = self._run(
            "attention_given",
            passes.attention_given(self._score_map(), config.tile_shape),
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
            output_types={"attention_given": self._vector_type(query)},
        )
        return outputs["attention_given"][:, :, : query.shape[1]]

    def _run(
        self,
        name: str,
        body: KernelBody,
        schedule: Schedule,
        *,
        resident: dict[str, Array],
        streamed: dict[str, Array],
        gathered: dict[str, Array],
        skipped_sums: dict[str, Array],
        output_types: dict[str, jax.ShapeDtypeStruct],
        moving: dict[str, Array] | None = None,
        is_transposed: bool = False,
    ) -> dict[str, Array]:
        """Run one kernel and return its outputs by name.

        Args:
          name: Name of the kernel, which is also the name of a field of `TileConfigs`.
          body: Computation of the kernel.
          schedule: Tiles that each block of rows visits.
          resident: Matrices and vectors that belong to the rows of the score map.
          streamed: Matrices and vectors that belong to the columns of the score map.
          gathered: Matrices of which the kernel reads single entries.
          skipped_sums: Sums over the tiles that are skipped, which the kernel adds to its results.
          output_types: Shapes and dtypes of the outputs.
          moving: Matrices and vectors that belong to rows which move with the columns, in a kernel
            whose blocks are blocks of diagonals. None in all other kernels.
          is_transposed: True if the rows of the score map are keys.
        """
        names = ("table", *self.plan.scoring.gradient_names)
        if name != "query_gradient":  # only this kernel needs derivatives
            names = names[:1]
        tables = dict(zip(names, self.operands.tables, strict=False))
        if moving is None and self.operands.positions is not None:
            tables["positions"] = self.operands.positions
        config = getattr(self.configs, name)
        row_masks, column_masks, entry_masks = self._masks(is_transposed=is_transposed)
        if moving is not None:
            moving = {
                name: _add_leading_rows(x, config) for name, x in {**moving, **row_masks}.items()
            }
            entry_masks = {
                name: jnp.pad(
                    x,
                    ((0, 0), (0, 0), (count_leading_rows(config), config.block_rows), (0, 0)),
                )
                for name, x in entry_masks.items()
            }
            row_masks = {}
        inputs = KernelInputs(
            resident={**resident, **row_masks},
            streamed={**streamed, **column_masks},
            diagonals={
                name: self._arrange_by_diagonal(table, is_transposed=is_transposed)
                for name, table in tables.items()
            },
            moving={} if moving is None else moving,
            entries=entry_masks,
            scalars=self.scalars,
            runs=schedule.runs,
            skipped_sums=skipped_sums,
            gathered=gathered,
        )
        columns = self.operands.query if is_transposed else self.operands.key
        origin = self._padded_length(columns.shape[1])
        return run_tile_loop(body, inputs, output_types, schedule, config, name, origin)

    def _arrange_by_diagonal(
        self, table: Float[Array, "..."], *, is_transposed: bool
    ) -> Float[Array, "..."]:
        """Arrange a table of relative positions by row - column, and pad rows and columns.

        Entry (row, column) of a padded score map has the number row - column + (padded columns).

        Args:
          table: One number or vector for each relative position, as in `Operands.tables` or
            `Operands.positions`.
          is_transposed: True if the rows of the score map are keys.
        """
        rows, columns = self.operands.query.shape[1], self.operands.key.shape[1]
        axis = 2 if table.ndim == 3 else 1
        if is_transposed:
            rows, columns, table = columns, rows, jnp.flip(table, axis=axis)
        padding = self._padded_length(columns) - columns, self._padded_length(rows) - rows
        # Seven more numbers make the length a multiple of 8, as the copy engine requires.
        widths = [(0, 0)] * table.ndim
        widths[axis] = (padding[0], padding[1] + 7)
        return jnp.pad(table, widths)

    def _masks(self, *, is_transposed: bool) -> tuple[dict[str, Array], ...]:
        """Return the masks and segments of rows, of columns and of entries, by name."""
        operands = self.operands
        rows: dict[str, Array] = {}
        columns: dict[str, Array] = {}
        entries: dict[str, Array] = {}
        if operands.key_mask is not None:
            key_mask = self._pad_vector(operands.key_mask.astype(jnp.float32))
            (rows if is_transposed else columns)["key_mask"] = key_mask
        if operands.query_segments is not None and operands.key_segments is not None:
            segments = [
                self._pad_vector(x.astype(jnp.int32)[:, None])
                for x in (operands.query_segments, operands.key_segments)
            ]
            query_segments, key_segments = segments
            rows["row_segments"] = key_segments if is_transposed else query_segments
            columns["column_segments"] = query_segments if is_transposed else key_segments
        if operands.mask is not None:
            mask = jnp.swapaxes(operands.mask, 2, 3) if is_transposed else operands.mask
            entries["mask"] = mask
        return rows, columns, entries

    def _score_map(self, *, is_transposed: bool = False, has_moving_rows: bool = False) -> ScoreMap:
        return ScoreMap(
            self.plan.scoring,
            self.plan.window,
            has_key_mask=self.operands.key_mask is not None,
            has_segments=self.operands.query_segments is not None,
            has_mask=self.operands.mask is not None,
            has_dropout=self.has_dropout,
            is_transposed=is_transposed,
            has_moving_rows=has_moving_rows,
        )

    def _schedule_query_blocks(self, config: TileConfig, **arguments: bool) -> Schedule:
        """Return the tiles of keys that each block of queries visits: see `_schedule`."""
        return self._schedule(schedule_query_blocks, self.operands.query, config, **arguments)

    def _schedule_key_blocks(self, config: TileConfig, **arguments: bool) -> Schedule:
        """Return the tiles of queries that each block of keys visits: see `_schedule`."""
        return self._schedule(schedule_key_blocks, self.operands.key, config, **arguments)

    def _schedule_diagonal_blocks(self, config: TileConfig, length: int, origin: int) -> Schedule:
        """Return the tiles that each block of diagonals visits.

        Args:
          config: Tile configuration of the kernel.
          length: Number of diagonals.
          origin: Index of the diagonal of query 0 and key 0.
        """
        blocks = length // config.block_rows
        result = schedule_diagonal_blocks(
            self.schedule_inputs, blocks, config.block_rows, config.columns, origin
        )
        return self._broadcast_schedule(result)

    def _broadcast_schedule(self, schedule: Schedule) -> Schedule:
        """Broadcast a schedule to all examples and heads."""
        batch, _, heads, _ = self.operands.query.shape
        runs, start, end = (
            jnp.broadcast_to(x, (batch, heads, *x.shape[2:])) for x in schedule[1:4]
        )
        return schedule._replace(runs=runs, start=start, end=end)

    def _schedule(
        self,
        make_schedule: Callable[..., Schedule],
        rows: Array,
        config: TileConfig,
        *,
        drops_weights: bool = False,
        needs_zero_tiles: bool = True,
    ) -> Schedule:
        """Return a schedule for all examples and heads.

        Args:
          make_schedule: `schedule_query_blocks` or `schedule_key_blocks`.
          rows: Query or key, the array that is divided into blocks.
          config: Tile configuration of the kernel.
          drops_weights: True if dropout applies to the weights that the kernel sums.
          needs_zero_tiles: False if tiles whose scores are treated as 0 change no result.
        """
        has_sums = skipped_tiles.has_sums(self.plan, self.operands, drops_weights=drops_weights)
        has_zeros = self.operands.is_zero_beyond_radius is not None
        result = make_schedule(
            self.schedule_inputs,
            rows.shape[1],
            config.block_rows,
            config.columns,
            distinctions=self.plan.scoring.distinctions,
            visits_zero_tiles=needs_zero_tiles and has_zeros and not has_sums,
            # Neighbouring tiles share position vectors, which are copied once.
            keeps_column_order=self.plan.scoring.has_positions,
        )
        return self._broadcast_schedule(result)

    def _pad(self, backward: BackwardOperands) -> BackwardOperands:
        """Pad the vectors of the backward pass to a multiple of all block sizes."""
        cotangent = backward.received_cotangent
        return backward._replace(
            received_cotangent=None if cotangent is None else self._pad_vector(cotangent),
            negative_delta=self._pad_vector(backward.negative_delta),
        )

    def _pad_vector(self, vector: Num[Array, "#B #N L"]) -> Num[Array, "#B #N _"]:
        """Pad a vector with zeros to a multiple of all block sizes."""
        padding = self._padded_length(vector.shape[-1]) - vector.shape[-1]
        return jnp.pad(vector, ((0, 0), (0, 0), (0, padding)))

    def _padded_length(self, length: int) -> int:
        """Return the next multiple of all block sizes."""
        return length + -length % self.configs.vector_multiple

    def _key_type(self, rows: Float[Array, "B S K W"]) -> jax.ShapeDtypeStruct:
        """Return the type of a gradient of keys or values, with one part for each query head."""
        batch, length, _, width = rows.shape
        return jax.ShapeDtypeStruct(
            (batch, length, self.operands.query.shape[2], width), rows.dtype
        )

    def _sum_groups(self, gradient: Float[Array, "B S N W"]) -> Float[Array, "B S K W"]:
        """Sum the parts of a gradient over the query heads that share a key head."""
        heads, key_heads = gradient.shape[2], self.operands.key.shape[2]
        if heads == key_heads:
            return gradient
        parts = gradient.reshape(*gradient.shape[:2], key_heads, -1, gradient.shape[3])
        return parts.astype(jnp.float32).sum(axis=3).astype(gradient.dtype)

    def _vector_type(self, rows: Float[Array, "B L N W"]) -> jax.ShapeDtypeStruct:
        """Return the type of a padded vector with one number for each row of each query head."""
        batch, length, *_ = rows.shape
        heads = self.operands.query.shape[2]
        return jax.ShapeDtypeStruct((batch, heads, self._padded_length(length)), jnp.float32)


def _shift_rows(
    x: Float[Array, "B L N W"], shift: int, length: int
) -> Float[Array, "B {length} N W"]:
    """Move row i to row i + shift, and cut or pad the rows to `length`."""
    x = x[:, max(-shift, 0) : length - shift]
    start = max(shift, 0)
    return jnp.pad(x, ((0, 0), (start, length - start - x.shape[1]), (0, 0), (0, 0)))


def _add_leading_rows(x: Num[Array, "..."], config: TileConfig) -> Num[Array, "..."]:
    """Pad a matrix or a vector of moving rows, so that a kernel never reads beyond its ends."""
    widths = [(0, 0)] * x.ndim
    widths[2 if x.ndim == 3 else 1] = (count_leading_rows(config), config.block_rows)
    return jnp.pad(x, widths)


def _matrix_type(rows: Float[Array, "B L N _"], width: int) -> jax.ShapeDtypeStruct:
    """Return the dtype of `rows`, and its shape with `width` as the size of the last axis."""
    return jax.ShapeDtypeStruct((*rows.shape[:3], width), rows.dtype)
