"""The five passes: forward, two backward, and two for what each key receives.

    forward      O_i = Σ_j A_ij V_j,  A_ij = 2^(e_ij - z_i)       z_i: log of the row's sum
    of queries   dQ_i = Σ_j dS_ij K_j,  dS_ij = A_ij (dO_i · V_j + g_j - D_i)
    of keys      dK_j = Σ_i dS_ij Q_i,  dV_j = Σ_i A_ij dO_i
    received     m_j = Σ_i A_ij
    given        Σ_j A_ij g_j,  for a gradient g of m

D_i is dO_i · O_i, and what the pass `given` finds if there is a g. A query that asks nothing has
z = NOTHING: whatever its scores, its weights are 0.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distattn_jax import hash
from distattn_jax.attention.fused import mosaic
from distattn_jax.attention.fused.scoring import Numbers, Scored, Scoring
from distattn_jax.attention.fused.sweep import Pass, Place, Tile

NOTHING = 1e30  # stands for infinity where that would make a NaN


class Map(NamedTuple):
    """The map that the passes are about.

    Attributes:
      scoring: what makes scores of products.
      is_causal: whether later keys are invisible.
      has_dropout: whether weights are dropped on their way to the values.
      keys_stay: whether it is turned: a row for every key.
    """

    scoring: Scoring
    is_causal: bool
    has_dropout: bool
    keys_stay: bool


class _Look(NamedTuple):
    """A tile that was looked at: its scores, where they lie and which are visible."""

    scored: Scored
    gap: jax.Array | None
    visible: jax.Array | None
    numbers: Numbers

    @property
    def scores(self) -> jax.Array:
        if self.visible is None:
            return self.scored.scores
        return jnp.where(self.visible, self.scored.scores, -NOTHING)


def _look(map: Map, place: Place, tile: Tile, raw: jax.Array) -> _Look:
    far, masked = tile.section
    numbers = place.scalars.get("coefficients", ())
    needs_gap = (masked and map.is_causal) or (map.scoring.knows_distance and not far)
    gap = _gap(map, place, tile) if needs_gap else None
    scored = map.scoring.score(raw, gap, numbers, far=far)
    visible = _visible(map, place, tile, gap) if masked else None
    return _Look(scored, gap, visible, numbers)


def _visible(map: Map, place: Place, tile: Tile, gap: Any) -> jax.Array:
    """Which entries of a masked tile are seen. Rows that ask nothing have no weight anyway."""
    if map.keys_stay:
        return gap >= 0
    columns = mosaic.by_column(mosaic.column_numbers(tile.shape[1]), tile.shape)
    visible = columns < place.scalars["lengths"][1] - tile.column
    return visible & (gap >= 0) if map.is_causal else visible


def _gap(map: Map, place: Place, tile: Tile) -> jax.Array:
    """Position of the query minus that of the key, a float32: exact up to 2²⁴."""
    offset = place.scalars["lengths"][2]
    rows = mosaic.row_numbers(tile.shape[0]).astype(jnp.float32)
    columns = mosaic.column_numbers(tile.shape[1]).astype(jnp.float32)
    if map.keys_stay:
        start = (tile.column + offset - tile.row).astype(jnp.float32)
        return mosaic.by_column(columns, tile.shape) - mosaic.by_row(rows - start, tile.shape)
    start = (tile.row + offset - tile.column).astype(jnp.float32)
    return mosaic.by_row(rows + start, tile.shape) - mosaic.by_column(columns, tile.shape)


def _kept(map: Map, place: Place, tile: Tile) -> jax.Array:
    """Which weights dropout spares."""
    query_word, key_word, threshold = place.scalars["words"]
    row_word, column_word = (key_word, query_word) if map.keys_stay else (query_word, key_word)
    rows = hash.chain(row_word, mosaic.row_numbers(tile.shape[0]) + tile.row)
    columns = hash.chain(column_word, mosaic.column_numbers(tile.shape[1]) + tile.column)
    words = mosaic.by_row(rows, tile.shape) ^ mosaic.by_column(columns, tile.shape)
    return hash.mix(words) >= threshold


def _dropped(map: Map, place: Place, tile: Tile, weights: jax.Array) -> jax.Array:
    """Weights, or gradients of weights, after dropout; still to be multiplied by 1 / (1 - rate)."""
    return jnp.where(_kept(map, place, tile), weights, 0.0) if map.has_dropout else weights


def _scale(map: Map, place: Place) -> Any:
    return place.scalars["dropout"][0] if map.has_dropout else 1.0


def forward(map: Map, rows: int, width: int) -> Pass:
    """Gives `values` and `log_sum`. Resident: query. Streamed: key, value."""

    def start(place):
        total, count = mosaic.filled((rows, width), 0.0), mosaic.filled((rows,), 0.0)
        peak = mosaic.filled((rows,), -NOTHING)
        if "values" in place.far:
            averaged = mosaic.fetch_columns(place.far["values"])
            number = place.far["count"][0]
            total += mosaic.by_column(averaged, total.shape)
            count += number
            peak = jnp.where(count > 0, 0.0, peak)
        return peak, count, total

    def step(place, tile, state):
        peak, count, total = state
        raw = mosaic.product(place.resident["query"], tile.take("key"))
        tile.done("key")
        look = _look(map, place, tile, raw)
        scores = look.scores
        higher = jnp.maximum(peak, _scaled(map, scores.max(axis=1)))
        shrink = jnp.exp2(peak - higher)
        weights = _weights(map, scores, mosaic.by_row(higher, tile.shape))
        if look.visible is not None:
            weights = jnp.where(look.visible, weights, 0.0)
        count = count * shrink + weights.sum(axis=1)
        total *= mosaic.by_row(shrink, total.shape)
        weights = _dropped(map, place, tile, weights)
        total = mosaic.add_product(total, weights, tile.take("value"), place.stage)
        tile.done("value")
        return higher, count, total

    def finish(place, state):
        peak, count, total = state
        asks = mosaic.row_numbers(rows) < place.scalars["lengths"][0] - place.row
        asks = asks & (count > 0)
        count = jnp.where(asks, count, 1.0)
        share = jnp.where(asks, _scale(map, place) / count, 0.0)
        return {
            "values": total * mosaic.by_row(share, total.shape),
            "log_sum": jnp.where(asks, peak + jnp.log2(count), NOTHING),
        }

    return Pass(start, step, finish)


def _pulled(map, place, tile, look, weights, of_weights, of_rows, of_columns):
    """dS = A (dO · V + what belongs to the row and to the column), taken back through the scoring.

    Returns the gradients of the raw products and of the coefficients, entry by entry.
    """
    of_weights = _dropped(map, place, tile, of_weights)
    if map.has_dropout:
        of_weights *= _scale(map, place)
    if of_rows is not None:
        of_weights += mosaic.by_row(of_rows, tile.shape)
    if of_columns is not None:
        of_weights += mosaic.by_column(of_columns, tile.shape)
    return map.scoring.pull(
        weights * of_weights,
        look.gap,
        look.scored.kept,
        look.numbers,
        far=tile.section.far,
    )


def of_queries(map: Map, rows: int, width: int, *, has_received: bool) -> Pass:
    """Gives `query`, and `coefficients`: parts of their gradients, one vector for each.

    Resident: query, values (their gradient), log_sum, less (-D). Streamed: key, value, and
    received (its gradient) if there is one.
    """

    def start(place):
        parts = [mosaic.filled((rows,), 0.0) for _ in range(map.scoring.coefficients)]
        return mosaic.filled((rows, width), 0.0), parts

    def step(place, tile, state):
        total, parts = state
        key = tile.take("key")
        look = _look(map, place, tile, mosaic.product(place.resident["query"], key))
        log_sum = mosaic.by_row(place.vectors["log_sum"], tile.shape)
        weights = _weights(map, look.scores, log_sum)
        of_weights = mosaic.product(place.resident["values"], tile.take("value"))
        tile.done("value")
        received = tile.take_vector("received") if has_received else None
        of_raw, of_numbers = _pulled(
            map, place, tile, look, weights, of_weights, place.vectors["less"], received
        )
        parts = [
            part if of_number is None else part + of_number.sum(axis=1)
            for part, of_number in zip(parts, of_numbers, strict=True)
        ]
        total = mosaic.add_product(total, of_raw, key, place.stage)
        tile.done("key")
        return total, parts

    def finish(place, state):
        total, parts = state
        unit = map.scoring.unit
        numbered = {f"coefficient_{i}": part * unit for i, part in enumerate(parts)}
        return {"query": total * unit, **numbered}

    return Pass(start, step, finish)


def of_keys(map: Map, rows: int, widths: tuple[int, int], *, has_received: bool) -> Pass:
    """Gives `key` and `value`.

    Resident: key, value, and received (its gradient) if there is one. Streamed: query, values
    (their gradient), log_sum, less (-D).
    """

    def start(place):
        of_key, of_value = (mosaic.filled((rows, width), 0.0) for width in widths)
        if "value" in place.far:
            averaged = mosaic.fetch_columns(place.far["value"])
            of_value += mosaic.by_column(averaged, of_value.shape)
        return of_key, of_value

    def step(place, tile, state):
        of_key, of_value = state
        query = tile.take("query")
        look = _look(map, place, tile, mosaic.product(place.resident["key"], query))
        log_sum = mosaic.by_column(tile.take_vector("log_sum"), tile.shape)
        weights = _weights(map, look.scores, log_sum)
        values = tile.take("values")
        dropped = _dropped(map, place, tile, weights)
        of_value = mosaic.add_product(of_value, dropped, values, place.stage)
        of_weights = mosaic.product(place.resident["value"], values)
        tile.done("values")
        received = place.vectors["received"] if has_received else None
        of_raw, _ = _pulled(
            map, place, tile, look, weights, of_weights, received, tile.take_vector("less")
        )
        of_key = mosaic.add_product(of_key, of_raw, query, place.stage)
        tile.done("query")
        return of_key, of_value

    def finish(place, state):
        of_key, of_value = state
        is_seen = _is_seen(place, rows)
        of_key, of_value = of_key * map.scoring.unit, of_value * _scale(map, place)
        return {
            "key": jnp.where(mosaic.by_row(is_seen, of_key.shape), of_key, 0.0),
            "value": jnp.where(mosaic.by_row(is_seen, of_value.shape), of_value, 0.0),
        }

    return Pass(start, step, finish)


def received(map: Map, rows: int) -> Pass:
    """Gives `received`. Resident: key. Streamed: query, log_sum."""

    def start(place):
        far = place.far["received"][0] if "received" in place.far else 0.0
        return mosaic.filled((rows,), far)

    def step(place, tile, state):
        raw = mosaic.product(place.resident["key"], tile.take("query"))
        tile.done("query")
        scores = _look(map, place, tile, raw).scores
        log_sum = mosaic.by_column(tile.take_vector("log_sum"), tile.shape)
        return state + _weights(map, scores, log_sum).sum(axis=1)

    def finish(place, state):
        return {"received": jnp.where(_is_seen(place, rows), state, 0.0)}

    return Pass(start, step, finish)


def given(map: Map, rows: int) -> Pass:
    """Gives `given`. Resident: query, log_sum. Streamed: key, received (its gradient)."""

    def start(place):
        if "given" not in place.far:
            return mosaic.filled((rows,), 0.0)
        return jnp.exp2(-place.vectors["log_sum"]) * place.far["given"][0]

    def step(place, tile, state):
        raw = mosaic.product(place.resident["query"], tile.take("key"))
        tile.done("key")
        scores = _look(map, place, tile, raw).scores
        weights = _weights(map, scores, mosaic.by_row(place.vectors["log_sum"], tile.shape))
        gradient = mosaic.by_column(tile.take_vector("received"), tile.shape)
        return state + (weights * gradient).sum(axis=1)

    def finish(place, state):
        return {"given": state}

    return Pass(start, step, finish)


def _weights(map: Map, scores: jax.Array, log_sum: jax.Array) -> jax.Array:
    return jnp.exp2(_scaled(map, scores) - log_sum)


def _scaled(map: Map, scores: jax.Array) -> jax.Array:
    factor = map.scoring.factor
    return scores if factor == 1 else scores * factor


def _is_seen(place: Place, rows: int) -> jax.Array:
    return mosaic.row_numbers(rows) < place.scalars["lengths"][1] - place.row
