"""The five passes: forward, two backward, and two for what each key receives.

    forward      O_i = Σ_j A_ij V_j,  A_ij = 2^(e_ij - z_i)       z_i: log of the row's sum
    of queries   dQ_i = Σ_j dS_ij K_j,  dS_ij = A_ij (dO_i · V_j + g_j - D_i)
    of keys      dK_j = Σ_i dS_ij Q_i,  dV_j = Σ_i A_ij dO_i
    received     m_j = Σ_i A_ij
    given        Σ_j A_ij g_j,  for a gradient g of m

D_i is dO_i · O_i, and what the pass `given` finds if there is a g. A query that asks nothing has
z = NOTHING: whatever its scores, its weights are 0.
"""

from typing import Any

import jax
import jax.numpy as jnp

from distattn_jax.attention.fused.gpu import mosaic
from distattn_jax.attention.fused.gpu.tile_loop import Pass, Place, Tile
from distattn_jax.attention.fused.gpu.tile_view import (
    NOTHING,
    Look,
    Map,
    Shape,
    look,
    numbers_of,
    spared,
)


def _dropped(map: Map, place: Place, tile: Tile, weights: jax.Array) -> jax.Array:
    """Weights, or gradients of weights, after dropout; still to be multiplied by 1 / (1 - rate)."""
    return jnp.where(spared(map, place, tile), weights, 0.0) if map.has_dropout else weights


def _scale(map: Map, place: Place) -> Any:
    return place.scalars["dropout"][0] if map.has_dropout else 1.0


def forward(map: Map, shape: Shape, width: int) -> Pass:
    """Gives `values` and `log_sum`. Resident: query. Streamed: key, value."""

    def start(place):
        total, count = mosaic.filled((shape[0], width), 0.0), mosaic.filled(shape[:1], 0.0)
        peak = mosaic.filled(shape[:1], -NOTHING)
        if "values" in place.far:
            averaged = mosaic.fetch_columns(place.far["values"])
            number = place.far["count"][0]
            total += mosaic.by_column(averaged, total.shape)
            count += number
            peak = jnp.where(count > 0, 0.0, peak)
        return peak, count, total

    def step(place, tile, state):
        peak, count, total = state
        (raw,) = mosaic.products((place.resident["query"], tile.take("key")))
        tile.done("key")
        seen = look(map, place, tile, raw)
        higher = jnp.maximum(peak, seen.scores.max(axis=1) * seen.factor)
        shrink = jnp.exp2(peak - higher)
        weights = _weights(seen, mosaic.by_row(higher, tile.shape))
        if seen.visible is not None:
            weights = jnp.where(seen.visible, weights, 0.0)
        count = count * shrink + weights.sum(axis=1)
        total *= mosaic.by_row(shrink, total.shape)
        weights = _dropped(map, place, tile, weights)
        value = tile.take("value")
        (total,) = mosaic.add_products((total,), (weights, value), stage=place.stage)
        tile.done("value")
        return higher, count, total

    def finish(place, state):
        peak, count, total = state
        asks = mosaic.row_numbers(shape[0]) < place.scalars["lengths"][0] - place.row
        asks = asks & (count > 0)
        count = jnp.where(asks, count, 1.0)
        share = jnp.where(asks, _scale(map, place) / count, 0.0)
        return {
            "values": total * mosaic.by_row(share, total.shape),
            "log_sum": jnp.where(asks, peak + jnp.log2(count), NOTHING),
        }

    return Pass(start, step, finish)


def _gradient(map, place, tile, weights, of_weights, of_rows, of_columns) -> jax.Array:
    """dS = A (dO · V + what belongs to the row and to the column)."""
    of_weights = _dropped(map, place, tile, of_weights)
    if map.has_dropout:
        of_weights *= _scale(map, place)
    if of_rows is not None:
        of_weights += mosaic.by_row(of_rows, tile.shape)
    if of_columns is not None:
        of_weights += mosaic.by_column(of_columns, tile.shape)
    return weights * of_weights


def of_queries(map: Map, shape: Shape, width: int, *, has_received: bool) -> Pass:
    """Gives `query`, and `coefficients`: parts of their gradients, one vector for each.

    Resident: query, values (their gradient), log_sum, less (-D). Streamed: key, value, and
    received (its gradient) if there is one.
    """

    def start(place):
        parts = [mosaic.filled(shape[:1], 0.0) for _ in range(map.scoring.summed)]
        return mosaic.filled((shape[0], width), 0.0), parts

    def step(place, tile, state):
        total, parts = state
        key, value = tile.take("key"), tile.take("value")
        raw, of_weights = mosaic.products(
            (place.resident["query"], key),
            (place.resident["values"], value),
        )
        tile.done("value")
        seen = look(map, place, tile, raw, keep=True)
        weights = _weights(seen, mosaic.by_row(place.vectors["log_sum"], tile.shape))
        received = tile.take_vector("received") if has_received else None
        less = place.vectors["less"]
        grad = _gradient(map, place, tile, weights, of_weights, less, received)
        of_raw = seen.pull(grad)
        parts = [
            part if more is None else part + more.sum(axis=1)
            for part, more in zip(parts, seen.parts(grad, of_raw), strict=True)
        ]
        (total,) = mosaic.add_products((total,), (of_raw, key), stage=place.stage)
        tile.done("key")
        return total, parts

    def finish(place, state):
        total, parts = state
        if len(parts) == 2:  # the third is that of the height: see `Distance.summed`
            query = mosaic.load_tile(place.resident["query"])
            parts = [*parts, (total * query).sum(axis=1)]
        unit = _unit(map, place)
        numbered = {f"coefficient_{i}": part * unit for i, part in enumerate(parts)}
        return {"query": total * unit, **numbered}

    return Pass(start, step, finish)


def of_keys(map: Map, shape: Shape, widths: tuple[int, int], *, has_received: bool) -> Pass:
    """Gives `key` and `value`.

    Resident: key, value, and received (its gradient) if there is one. Streamed: query, values
    (their gradient), log_sum, less (-D).
    """

    def start(place):
        of_key, of_value = (mosaic.filled((shape[0], width), 0.0) for width in widths)
        if "value" in place.far:
            averaged = mosaic.fetch_columns(place.far["value"])
            of_value += mosaic.by_column(averaged, of_value.shape)
        return of_key, of_value

    def step(place, tile, state):
        of_key, of_value = state
        query, values = tile.take("query"), tile.take("values")
        raw, of_weights = mosaic.products(
            (place.resident["key"], query), (place.resident["value"], values)
        )
        seen = look(map, place, tile, raw, keep=True)
        weights = _weights(seen, mosaic.by_column(tile.take_vector("log_sum"), tile.shape))
        received = place.vectors["received"] if has_received else None
        less = tile.take_vector("less")
        grad = _gradient(map, place, tile, weights, of_weights, received, less)
        of_raw = seen.pull(grad)
        dropped = _dropped(map, place, tile, weights)
        of_key, of_value = mosaic.add_products(
            (of_key, of_value), (of_raw, query), (dropped, values), stage=place.stage
        )
        tile.done("query")
        tile.done("values")
        return of_key, of_value

    def finish(place, state):
        of_key, of_value = state
        is_seen = _is_seen(place, shape[0])
        of_key, of_value = of_key * _unit(map, place), of_value * _scale(map, place)
        return {
            "key": jnp.where(mosaic.by_row(is_seen, of_key.shape), of_key, 0.0),
            "value": jnp.where(mosaic.by_row(is_seen, of_value.shape), of_value, 0.0),
        }

    return Pass(start, step, finish)


def received(map: Map, shape: Shape) -> Pass:
    """Gives `received`. Resident: key. Streamed: query, log_sum."""

    def start(place):
        far = place.far["received"][0] if "received" in place.far else 0.0
        return mosaic.filled(shape[:1], far)

    def step(place, tile, state):
        (raw,) = mosaic.products((place.resident["key"], tile.take("query")))
        tile.done("query")
        seen = look(map, place, tile, raw)
        log_sum = mosaic.by_column(tile.take_vector("log_sum"), tile.shape)
        return state + _weights(seen, log_sum).sum(axis=1)

    def finish(place, state):
        return {"received": jnp.where(_is_seen(place, shape[0]), state, 0.0)}

    return Pass(start, step, finish)


def given(map: Map, shape: Shape) -> Pass:
    """Gives `given`. Resident: query, log_sum. Streamed: key, received (its gradient)."""

    def start(place):
        if "given" not in place.far:
            return mosaic.filled(shape[:1], 0.0)
        return jnp.exp2(-place.vectors["log_sum"]) * place.far["given"][0]

    def step(place, tile, state):
        (raw,) = mosaic.products((place.resident["query"], tile.take("key")))
        tile.done("key")
        seen = look(map, place, tile, raw)
        weights = _weights(seen, mosaic.by_row(place.vectors["log_sum"], tile.shape))
        gradient = mosaic.by_column(tile.take_vector("received"), tile.shape)
        return state + (weights * gradient).sum(axis=1)

    def finish(place, state):
        return {"given": state}

    return Pass(start, step, finish)


def _weights(seen: Look, log_sum: jax.Array) -> jax.Array:
    return jnp.exp2(seen.scores * seen.factor - log_sum)


def _unit(map: Map, place: Place) -> Any:
    return map.scoring.unit(numbers_of(place))


def _is_seen(place: Place, rows: int) -> jax.Array:
    return mosaic.row_numbers(rows) < place.scalars["lengths"][1] - place.row
