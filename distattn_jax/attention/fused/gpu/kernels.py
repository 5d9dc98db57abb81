"""Attention in fused passes, with a backward pass of its own.

`attend` is the whole: values and, if asked for, what each key receives. Nothing of the size of the
(T, S) map is ever stored: kept for the backward pass are the operands, the values and one number
per query.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused import saturation, schedule
from distattn_jax.attention.fused.derivative import KernelFactory, Kernels
from distattn_jax.attention.fused.gpu import mosaic, passes
from distattn_jax.attention.fused.gpu.tile_configs import blocks_of
from distattn_jax.attention.fused.gpu.tile_loop import Arrays, Block, sweep
from distattn_jax.attention.fused.gpu.tile_view import NOTHING, Map
from distattn_jax.attention.fused.operands import BackwardOperands, Operands, Plan
from distattn_jax.attention.fused.schedule import Walk


def select_kernels() -> KernelFactory:
    """Return the factory of compiled kernels, or of interpreted ones inside `interpreted()`."""
    return make_interpreted_kernels if mosaic.is_interpreted() else make_kernels


def make_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return the kernels for Hopper GPUs."""
    work = _Work(plan, operands)
    return Kernels(
        forward=work.forward,
        query_gradient=work.query_gradient,
        key_gradient=work.key_gradient,
        received=work.received,
        attention_given=work.attention_given,
    )


def make_interpreted_kernels(plan: Plan, operands: Operands) -> Kernels:
    """Return the kernels for Hopper GPUs, executed by the interpreter of Pallas."""

    def interpret(kernel: Callable) -> Callable:
        def run(*arguments):
            with mosaic.interpreted():
                return kernel(*arguments)

        return run

    with mosaic.interpreted():
        return Kernels(*[interpret(kernel) for kernel in make_kernels(plan, operands)])


class _Work:
    """The passes over the operands of one call."""

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands
        self.saturates = operands.radius is not None
        self.blocks = blocks_of(plan, operands)
        batch, _, heads, _ = operands.query.shape
        self.extent = schedule.Extent(
            query_lengths=operands.query_lengths,
            key_lengths=operands.key_lengths,
            offset=operands.offset,
            radius=operands.radius,
            skips=operands.skips,
        )
        lengths = jnp.stack(
            (operands.query_lengths, operands.key_lengths, operands.offset), axis=-1
        )
        self.scalars = {"lengths": jnp.broadcast_to(lengths[:, None], (batch, heads, 3))}
        if plan.scoring.coefficients:
            self.scalars["coefficients"] = operands.coefficients
        if operands.words is not None and operands.scale is not None:
            self.scalars |= {"words": operands.words, "dropout": operands.scale}

    def forward(self) -> tuple[Float[Array, "B T N E"], Float[Array, "B N _"]]:
        """Values, and the logarithm of each row's sum."""
        query, key, value = self.operands[:3]
        far = {}
        walk = self._walk_of_queries(self.blocks.forward)
        if self.saturates:
            rows = self._valid(value, self.operands.key_lengths)
            ones = self._valid(jnp.ones_like(value[..., :1]), self.operands.key_lengths)
            far = {
                "values": self._outside_keys(rows, walk, self.blocks.forward),
                "count": self._outside_keys(ones, walk, self.blocks.forward),
            }
        outs = sweep(
            passes.forward(self._map(), self.blocks.forward.tile, value.shape[-1]),
            Arrays({"query": query}, {"key": key, "value": value}, self.scalars, walk.bounds, far),
            {"values": _like(query, value.shape[-1]), "log_sum": self._vector(query)},
            walk.sections,
            self.blocks.forward,
            "forward",
        )
        written = walk.bounds.shape[2] * self.blocks.forward.height
        log_sum = outs["log_sum"]
        if written < log_sum.shape[-1]:
            is_written = jnp.arange(log_sum.shape[-1]) < written
            log_sum = jnp.where(is_written[None, None, :], log_sum, NOTHING)
        return outs["values"], log_sum

    def query_gradient(self, backward: BackwardOperands):
        """Gradients of the queries and of the coefficients."""
        query, key, value = self.operands[:3]
        of_values, of_received, log_sum, less = self._padded(backward)
        count = 3 if self.plan.scoring.knows_distance else 0  # of the coefficients have gradients
        walk = self._walk_of_queries(self.blocks.of_queries)
        streamed = {"key": key, "value": value}
        if of_received is not None:
            streamed["received"] = of_received
        outs = sweep(
            passes.of_queries(
                self._map(),
                self.blocks.of_queries.tile,
                query.shape[-1],
                has_received=of_received is not None,
            ),
            Arrays(
                {"query": query, "values": of_values, "log_sum": log_sum, "less": less},
                streamed,
                self.scalars,
                walk.bounds,
                {},
            ),
            {
                "query": _like(query, query.shape[-1]),
                **{f"coefficient_{i}": self._vector(query) for i in range(count)},
            },
            walk.sections,
            self.blocks.of_queries,
            "of_queries",
        )
        parts = [
            outs[f"coefficient_{i}"][:, :, : query.shape[1]].sum(axis=-1) for i in range(count)
        ]
        coefficients = jnp.zeros_like(self.operands.coefficients)
        if parts:
            first, second, log_height = parts
            of_height = log_height / self.operands.coefficients[..., 2]
            nothing = jnp.zeros_like(of_height)
            coefficients = jnp.stack((first, second, of_height, nothing), axis=-1)
        return outs["query"], coefficients

    def key_gradient(self, backward: BackwardOperands):
        """Gradients of keys and values."""
        query, key, value = self.operands[:3]
        of_values, of_received, log_sum, less = self._padded(backward)
        resident = {"key": key, "value": value}
        if of_received is not None:
            resident["received"] = of_received
        far = {}
        walk = self._walk_of_keys(self.blocks.of_keys)
        if self.saturates:
            far["value"] = self._outside_queries(
                of_values * _rows(_far_weight(log_sum), of_values), walk, self.blocks.of_keys
            )
        outs = sweep(
            passes.of_keys(
                self._map(keys_stay=True),
                self.blocks.of_keys.tile,
                (key.shape[-1], value.shape[-1]),
                has_received=of_received is not None,
            ),
            Arrays(
                resident,
                {"query": query, "log_sum": log_sum, "values": of_values, "less": less},
                self.scalars,
                walk.bounds,
                far,
            ),
            {"key": _like(key, key.shape[-1]), "value": _like(value, value.shape[-1])},
            walk.sections,
            self.blocks.of_keys,
            "of_keys",
        )
        return outs["key"], outs["value"]

    def received(self, log_sum: Float[Array, "B N _"]) -> Float[Array, "B N S"]:
        """What each key receives."""
        query, key = self.operands[:2]
        far = {}
        walk = self._walk_of_keys(self.blocks.received)
        if self.saturates:
            weight = _rows(_far_weight(log_sum), query)
            far["received"] = self._outside_queries(weight, walk, self.blocks.received)
        outs = sweep(
            passes.received(self._map(keys_stay=True), self.blocks.received.tile),
            Arrays(
                {"key": key}, {"query": query, "log_sum": log_sum}, self.scalars, walk.bounds, far
            ),
            {"received": self._vector(key)},
            walk.sections,
            self.blocks.received,
            "received",
        )
        return outs["received"][:, :, : key.shape[1]]

    def attention_given(self, log_sum, of_received) -> Float[Array, "B N T"]:
        """What each query gives, weighted by the gradient of what was received."""
        query, key = self.operands[:2]
        of_received = self.whole(of_received)
        far = {}
        walk = self._walk_of_queries(self.blocks.given)
        if self.saturates:
            rows = self._valid(_rows(of_received, key), self.operands.key_lengths)
            far["given"] = self._outside_keys(rows, walk, self.blocks.given)
        outs = sweep(
            passes.given(self._map(), self.blocks.given.tile),
            Arrays(
                {"query": query, "log_sum": log_sum},
                {"key": key, "received": of_received},
                self.scalars,
                walk.bounds,
                far,
            ),
            {"given": self._vector(query)},
            walk.sections,
            self.blocks.given,
            "given",
        )
        return outs["given"][:, :, : query.shape[1]]

    def _map(self, *, keys_stay: bool = False) -> Map:
        has_dropout = self.operands.words is not None
        return Map(self.plan.scoring, self.plan.is_causal, has_dropout, keys_stay)

    def _walk_of_queries(self, block: Block) -> Walk:
        return self._walk(schedule.walk_of_queries, self.operands.query, block)

    def _walk_of_keys(self, block: Block) -> Walk:
        return self._walk(schedule.walk_of_keys, self.operands.key, block)

    def _walk(self, walk_of: Callable[..., Walk], rows: Array, block: Block) -> Walk:
        batch, length, heads, _ = rows.shape
        walk = walk_of(
            self.extent,
            length,
            block.height,
            block.columns,
            is_causal=self.plan.is_causal,
            distance=self.plan.scoring.knows_distance,
        )
        bounds = jnp.broadcast_to(walk.bounds, (batch, heads, *walk.bounds.shape[2:]))
        return walk._replace(bounds=bounds)

    def _outside_keys(self, rows, walk, block) -> Float[Array, "B N blocks W"]:
        sums = saturation.outside(rows, walk.bounds, block.columns, after=not self.plan.is_causal)
        return self._of_skipping(sums)

    def _outside_queries(self, rows, walk, block) -> Float[Array, "B N blocks W"]:
        sums = saturation.outside(rows, walk.bounds, block.columns, before=not self.plan.is_causal)
        return self._of_skipping(sums)

    def _of_skipping(self, sums: Float[Array, "B N blocks W"]) -> Float[Array, "B N blocks W"]:
        assert self.operands.skips is not None, "asked for where f saturates"
        return jnp.where(self.operands.skips[:, :, None, None], sums, 0)

    @staticmethod
    def _valid(rows, lengths):
        inside = jnp.arange(rows.shape[1])[None, :] < lengths[:, None]
        return jnp.where(inside[:, :, None, None], rows, 0)

    def _padded(self, backward: BackwardOperands) -> BackwardOperands:
        """The same, its vectors padded to whole blocks."""
        received = backward.received
        return backward._replace(
            received=None if received is None else self.whole(received),
            negative_delta=self.whole(backward.negative_delta),
        )

    def whole(self, vector: Float[Array, "B N L"]) -> Float[Array, "B N _"]:
        """The vector, padded to whole blocks."""
        return jnp.pad(vector, ((0, 0), (0, 0), (0, -vector.shape[-1] % self.blocks.whole)))

    def _vector(self, rows: Array) -> jax.ShapeDtypeStruct:
        """One number for each row; beyond the last block of a pass none is written."""
        batch, length, heads, _ = rows.shape
        length += -length % self.blocks.whole
        return jax.ShapeDtypeStruct((batch, heads, length), jnp.float32)


def _like(rows: Array, width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*rows.shape[:3], width), rows.dtype)


def _far_weight(log_sum: Float[Array, "B N L"]) -> Float[Array, "B N L"]:
    """The weight that a query gives to a key with score 0."""
    return jnp.exp2(-log_sum)


def _rows(vector: Float[Array, "B N _"], like: Float[Array, "B L N W"]) -> Float[Array, "B L N 1"]:
    """A vector as a matrix of one column."""
    return jnp.moveaxis(vector[:, :, : like.shape[1]], 1, 2)[..., None]
