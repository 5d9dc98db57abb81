"""Attention in fused passes, with a backward pass of its own.

`attend` is the whole: values and, if asked for, what each key receives. Nothing of the size of the
(T, S) map is ever stored: kept for the backward pass are the operands, the values and one number
per query.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.attention.fused import passes, ranges, saturation
from distattn_jax.attention.fused.operands import Operands, Plan
from distattn_jax.attention.fused.passes import Map
from distattn_jax.attention.fused.scoring import Distance
from distattn_jax.attention.fused.sweep import Arrays, Block, sweep

FORWARD = Block(rows=64, columns=128)
OF_QUERIES = Block(rows=64, columns=64)
OF_KEYS = Block(rows=64, columns=64)
RECEIVED = Block(rows=64, columns=128)
GIVEN = Block(rows=64, columns=128)
# Vectors are as long as whole blocks, so that no copy of them ends outside.
WHOLE = max(block.height for block in (FORWARD, OF_QUERIES, OF_KEYS, RECEIVED, GIVEN))


Attended = tuple[Float[Array, "B T N E"], Float[Array, "B N S"] | None]


def attend(plan: Plan, operands: Operands) -> Attended:
    """Values, and what each key receives if the plan says so."""
    if plan.tolerance and isinstance(plan.scoring, Distance):
        radius, skips = saturation.radius_of(plan.scoring, operands, plan.tolerance)
        operands = operands._replace(radius=radius, skips=skips)
    return _attend(plan, operands)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, operands: Operands) -> Attended:
    return _forward(plan, operands)[0]


def _forward(plan: Plan, operands: Operands):
    work = _Work(plan, operands)
    values, log_sum = work.forward()
    received = work.received(log_sum) if plan.received else None
    return (values, received), (operands, values, log_sum)


def _backward(plan: Plan, residuals: Any, gradients: Any):
    operands, values, log_sum = residuals
    of_values, of_received = gradients
    work = _Work(plan, operands)
    less = jnp.einsum("btne,btne->bnt", values, of_values, preferred_element_type=jnp.float32)
    less = -_whole(less)
    if of_received is not None:
        of_received = _whole(of_received)
        less -= work.given(log_sum, of_received)
    streams = (of_values, log_sum, less, of_received)
    query, coefficients = work.of_queries(*streams)
    key, value = work.of_keys(*streams)
    nothing: Any = (None,) * (len(operands) - 4)
    return (Operands(query, key, value, coefficients, *nothing),)


_attend.defvjp(_forward, _backward)


class _Work:
    """The passes over the operands of one call."""

    def __init__(self, plan: Plan, operands: Operands):
        self.plan, self.operands = plan, operands
        self.saturates = operands.radius is not None
        batch, _, heads, _ = operands.query.shape
        each = jnp.zeros((batch, heads), jnp.int32)
        self.extent = ranges.Extent(
            query_lengths=operands.query_lengths[:, None],
            key_lengths=operands.key_lengths[:, None],
            offset=operands.offset[:, None],
            radius=operands.radius if operands.radius is not None else each,
            skips=operands.skips if operands.skips is not None else each > 0,
            is_causal=plan.is_causal,
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
        bounds = self._ranges_of_queries(FORWARD)
        if self.saturates:
            rows = self._valid(value, self.operands.key_lengths)
            ones = self._valid(jnp.ones_like(value[..., :1]), self.operands.key_lengths)
            far = {
                "values": self._outside_keys(rows, bounds, FORWARD),
                "count": self._outside_keys(ones, bounds, FORWARD),
            }
        outs = self._queries(
            passes.forward(self._map(), FORWARD.rows, value.shape[-1]),
            Arrays({"query": query}, {"key": key, "value": value}, self.scalars, bounds, far),
            {"values": _like(query, value.shape[-1]), "log_sum": self._vector(query)},
            FORWARD,
            "forward",
        )
        return outs["values"], outs["log_sum"]

    def of_queries(self, of_values, log_sum, less, of_received):
        """Gradients of the queries and of the coefficients."""
        query, key, value = self.operands[:3]
        count = self.plan.scoring.coefficients
        streamed = {"key": key, "value": value}
        if of_received is not None:
            streamed["received"] = of_received
        outs = self._queries(
            passes.of_queries(
                self._map(), OF_QUERIES.rows, query.shape[-1], has_received=of_received is not None
            ),
            Arrays(
                {"query": query, "values": of_values, "log_sum": log_sum, "less": less},
                streamed,
                self.scalars,
                self._ranges_of_queries(OF_QUERIES),
                {},
            ),
            {
                "query": _like(query, query.shape[-1]),
                **{f"coefficient_{i}": self._vector(query) for i in range(count)},
            },
            OF_QUERIES,
            "of_queries",
        )
        parts = [outs[f"coefficient_{i}"].sum(axis=-1) for i in range(count)]
        coefficients = (
            jnp.stack(parts, axis=-1) if parts else jnp.zeros_like(self.operands.coefficients)
        )
        return outs["query"], coefficients

    def of_keys(self, of_values, log_sum, less, of_received):
        """Gradients of keys and values."""
        query, key, value = self.operands[:3]
        resident = {"key": key, "value": value}
        if of_received is not None:
            resident["received"] = of_received
        far = {}
        bounds = self._ranges_of_keys(OF_KEYS)
        if self.saturates:
            far["value"] = self._outside_queries(
                of_values * _rows(_far_weight(log_sum), of_values), bounds, OF_KEYS
            )
        outs = self._keys(
            passes.of_keys(
                self._map(keys_stay=True),
                OF_KEYS.rows,
                (key.shape[-1], value.shape[-1]),
                has_received=of_received is not None,
            ),
            Arrays(
                resident,
                {"query": query, "log_sum": log_sum, "values": of_values, "less": less},
                self.scalars,
                bounds,
                far,
            ),
            {"key": _like(key, key.shape[-1]), "value": _like(value, value.shape[-1])},
            OF_KEYS,
            "of_keys",
        )
        return outs["key"], outs["value"]

    def received(self, log_sum: Float[Array, "B N _"]) -> Float[Array, "B N S"]:
        """What each key receives."""
        query, key = self.operands[:2]
        far = {}
        bounds = self._ranges_of_keys(RECEIVED)
        if self.saturates:
            weight = _rows(_far_weight(log_sum), query)
            far["received"] = self._outside_queries(weight, bounds, RECEIVED)
        outs = self._keys(
            passes.received(self._map(keys_stay=True), RECEIVED.rows),
            Arrays({"key": key}, {"query": query, "log_sum": log_sum}, self.scalars, bounds, far),
            {"received": self._vector(key)},
            RECEIVED,
            "received",
        )
        return outs["received"][:, :, : key.shape[1]]

    def given(self, log_sum, of_received) -> Float[Array, "B N _"]:
        """What each query gives, weighted by the gradient of what was received."""
        query, key = self.operands[:2]
        far = {}
        bounds = self._ranges_of_queries(GIVEN)
        if self.saturates:
            rows = self._valid(_rows(of_received, key), self.operands.key_lengths)
            far["given"] = self._outside_keys(rows, bounds, GIVEN)
        outs = self._queries(
            passes.given(self._map(), GIVEN.rows),
            Arrays(
                {"query": query, "log_sum": log_sum},
                {"key": key, "received": of_received},
                self.scalars,
                bounds,
                far,
            ),
            {"given": self._vector(query)},
            GIVEN,
            "given",
        )
        return outs["given"]

    def _map(self, *, keys_stay: bool = False) -> Map:
        has_dropout = self.operands.words is not None
        return Map(self.plan.scoring, self.plan.is_causal, has_dropout, keys_stay)

    def _ranges_of_queries(self, block: Block) -> Int[Array, "B N blocks bounds"]:
        length = self.operands.query.shape[1]
        return self._everywhere(
            ranges.ranges_of_queries(
                self.extent, length, block.height, block.columns, saturates=self.saturates
            )
        )

    def _ranges_of_keys(self, block: Block) -> Int[Array, "B N blocks bounds"]:
        length = self.operands.key.shape[1]
        return self._everywhere(
            ranges.ranges_of_keys(
                self.extent, length, block.height, block.columns, saturates=self.saturates
            )
        )

    def _everywhere(self, bounds: Array) -> Int[Array, "B N blocks bounds"]:
        batch, _, heads, _ = self.operands.query.shape
        return jnp.broadcast_to(bounds, (batch, heads, *bounds.shape[2:]))

    def _queries(self, way, arrays, outputs, block, name):
        sections = ranges.sections_of_queries(self.saturates)
        return sweep(way, arrays, outputs, sections, block, name)

    def _keys(self, way, arrays, outputs, block, name):
        sections = ranges.sections_of_keys(self.saturates, self.plan.is_causal)
        return sweep(way, arrays, outputs, sections, block, name)

    def _outside_keys(self, rows, bounds, block) -> Float[Array, "B N blocks W"]:
        sums = saturation.outside(rows, bounds, block.columns, after=not self.plan.is_causal)
        return jnp.where(self.extent.skips[:, :, None, None], sums, 0)

    def _outside_queries(self, rows, bounds, block) -> Float[Array, "B N blocks W"]:
        sums = saturation.outside(rows, bounds, block.columns, before=not self.plan.is_causal)
        return jnp.where(self.extent.skips[:, :, None, None], sums, 0)

    @staticmethod
    def _valid(rows, lengths):
        inside = jnp.arange(rows.shape[1])[None, :] < lengths[:, None]
        return jnp.where(inside[:, :, None, None], rows, 0)

    @staticmethod
    def _vector(rows: Array) -> jax.ShapeDtypeStruct:
        batch, length, heads, _ = rows.shape
        return jax.ShapeDtypeStruct((batch, heads, length + -length % WHOLE), jnp.float32)


def _like(rows: Array, width: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*rows.shape[:3], width), rows.dtype)


def _whole(vector: Float[Array, "B N L"]) -> Float[Array, "B N _"]:
    return jnp.pad(vector, ((0, 0), (0, 0), (0, -vector.shape[-1] % WHOLE)))


def _far_weight(log_sum: Float[Array, "B N L"]) -> Float[Array, "B N L"]:
    """The weight that a query gives to a key with score 0."""
    return jnp.exp2(-log_sum)


def _rows(vector: Float[Array, "B N _"], like: Float[Array, "B L N W"]) -> Float[Array, "B L N 1"]:
    """A vector as a matrix of one column."""
    return jnp.moveaxis(vector[:, :, : like.shape[1]], 1, 2)[..., None]
