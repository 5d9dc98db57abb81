"""Position parameters of the heads of an attention variant, as numbers, curves and tables.

Position parameters are the parameters of a head that act on distances or relative positions. They
are described in a different way for each variant:

- `DistanceAware`: the numbers w and v, and the coefficient f(w|i - j|) as a curve.
- `TwoSided`: w, v and the parameters of the bias for keys before and after the query, and the
  factor f and the bias g as curves over both sides.
- `DistanceBias`: the parameters of the bias, such as a slope, and the bias as a curve.
- `TransformerXL` and `Adapted` (TENER): the part of the score that depends only on the relative
  position, as a curve.
- `RelativePosition` (Shaw et al. 2018): the norms of the position vectors as a curve, and the
  cosine similarities of all pairs of position vectors as a table.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from distattn_jax.attention import (
    BIAS_PARAMETER_NAMES,
    MAPPING_PARAMETER_NAMES,
    SIDES,
    Adapted,
    DistanceAware,
    DistanceBias,
    RelativePosition,
    TransformerXL,
    TwoSided,
    Variant,
    sinusoid,
)
from distattn_jax.plot.style import KEY_OFFSET_LABEL

MAX_RELATION = 16  # largest |j - i| of a relation table on the page, to keep the file small


class Curves(NamedTuple):
    """One curve for each of the N heads of a layer.

    Attributes:
      title: Title of the chart.
      x_label: Label of the horizontal axis.
      x: Horizontal coordinates, shape (K,).
      y: Vertical coordinates, shape (N, K).
      baseline: Value of y at which the position has no effect on attention, such as the coefficient
        1. It is drawn as a dotted line. None draws no line.
    """

    title: str
    x_label: str
    x: np.ndarray
    y: np.ndarray
    baseline: float | None = None


class Similarities(NamedTuple):
    """Cosine similarities of the position vectors of each of the N heads of a layer.

    Attributes:
      title: Title of the table.
      positions: Relative positions j - i of query i and key j, shape (R,).
      cosines: Cosine similarity of each pair of position vectors, shape (N, R, R).
    """

    title: str
    positions: np.ndarray
    cosines: np.ndarray


class HeadPositions(NamedTuple):
    """Position parameters of the N heads of a layer. Empty fields do not apply to the variant.

    Attributes:
      numbers: Dict from the name of a parameter, such as "w", to its values, shape (N,).
      curves: Curves of the heads, such as the coefficient against the distance.
      tables: Cosine similarities of the position vectors of the heads.
    """

    numbers: dict[str, np.ndarray]
    curves: list[Curves]
    tables: list[Similarities]


def describe_heads(
    variant: Variant, heads: int, queries: int, keys: int, *, causal: bool
) -> HeadPositions:
    """Return the position parameters of the heads of one layer: numbers, curves and tables.

    Args:
      variant: Attention variant of the layer. The first axis of its arrays has size `heads` or 1.
      heads: Number of heads N.
      queries: Number of queries T.
      keys: Number of keys S.
      causal: True if no query attends to a later key. Relative positions of later keys are then
        omitted.
    """
    for leaf in jax.tree.leaves(variant):
        if leaf.ndim < 1 or leaf.shape[0] not in (1, heads):
            raise ValueError(
                f"variants must have arrays with a leading axis of {heads} heads or 1; "
                f"got a {type(variant).__name__} with an array of shape {leaf.shape}."
            )
    every_head = jax.tree.map(
        lambda leaf: jnp.broadcast_to(jnp.asarray(leaf, jnp.float32), (heads, *leaf.shape[1:])),
        variant,
    )
    offsets = np.arange(1 - queries, 1 if causal else keys)  # j - i: keys before come first
    if isinstance(variant, DistanceAware):
        return _describe_distance_aware(every_head, np.arange(max(queries, keys)))
    if isinstance(variant, TwoSided):
        return _describe_sides(every_head, offsets, causal)
    if isinstance(variant, RelativePosition):
        return _describe_relations(every_head, causal)
    if isinstance(variant, DistanceBias):
        y = _evaluate(every_head, lambda head, positions: head.bias(positions), -offsets)
        names = BIAS_PARAMETER_NAMES.get(variant.function, ())  # type: ignore[arg-type]
        curves = [Curves("bias f(i − j)", KEY_OFFSET_LABEL, offsets, y, 0.0)]
        return HeadPositions(_name_numbers(names, every_head.parameters), curves, [])
    if isinstance(variant, TransformerXL | Adapted):
        y = _evaluate(every_head, _score_position, -offsets)
        title = "score of the position, without the query"
        return HeadPositions({}, [Curves(title, KEY_OFFSET_LABEL, offsets, y, 0.0)], [])
    return HeadPositions({}, [], [])


def _describe_distance_aware(every_head: DistanceAware, distances: np.ndarray) -> HeadPositions:
    """Return w, the parameters of the mapping such as v, and the curve of the coefficient."""
    names = MAPPING_PARAMETER_NAMES.get(every_head.mapping, ())  # type: ignore[arg-type]
    numbers = _name_numbers(("w", *names), (every_head.weight, every_head.shape))
    y = _evaluate(every_head, lambda head, positions: head.coefficients(positions), distances)
    curves = [Curves("coefficient f(w|i − j|)", "distance |i − j|", distances, y, 1.0)]
    return HeadPositions(numbers, curves, [])


def _describe_sides(every_head: TwoSided, offsets: np.ndarray, causal: bool) -> HeadPositions:
    """Return the parameters of both sides, and the curves of the factor f and of the bias g."""
    curves: list[Curves] = []
    numbers: dict[str, np.ndarray] = {}
    if every_head.weight is not None:
        names = ("w", *MAPPING_PARAMETER_NAMES.get(every_head.mapping, ()))  # type: ignore[arg-type]
        numbers |= _name_numbers(names, (every_head.weight, every_head.shape))
        y = _evaluate(every_head, lambda head, positions: head.factor(positions), -offsets)
        curves.append(Curves("factor f(w|i − j|)", KEY_OFFSET_LABEL, offsets, y, 1.0))
    for function, parameters in zip(every_head.bias, every_head.bias_parameters, strict=True):
        names = BIAS_PARAMETER_NAMES.get(function, ())  # type: ignore[arg-type]
        numbers |= _name_numbers(names, parameters)
    if every_head.bias:
        y = _evaluate(every_head, lambda head, positions: head.bias_sum(positions), -offsets)
        curves.append(Curves("bias g(|i − j|)", KEY_OFFSET_LABEL, offsets, y, 0.0))
    sides = SIDES[:1] if causal else SIDES
    by_side = {
        f"{name} {side}": values[:, index]
        for name, values in numbers.items()
        for index, side in enumerate(sides)
    }
    return HeadPositions(by_side, curves, [])


def _name_numbers(names: Sequence[str], parameters: Any) -> dict[str, np.ndarray]:
    """Return a dict from names to the arrays of a pytree, in order. Omit arrays without a name."""
    arrays = map(np.asarray, jax.tree.leaves(parameters))
    return dict(zip(names, arrays, strict=False))


def _describe_relations(every_head: RelativePosition, causal: bool) -> HeadPositions:
    """Return norms and cosine similarities of the position vectors of keys and of values.

    The mean of the position vectors of a head is subtracted first, because adding the same vector
    to all keys does not change the attention weights.
    """
    curves, tables = [], []
    for kind, table in (("keys", every_head.keys), ("values", every_head.values)):
        if table is None:
            continue
        k = table.shape[1] // 2
        farthest = min(k, MAX_RELATION)
        positions = np.arange(-farthest, (0 if causal else farthest) + 1)
        vectors = np.asarray(table, np.float64)[:, positions + k]
        vectors -= vectors.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(vectors, axis=-1)
        unit = vectors / np.maximum(norms, np.finfo(np.float64).tiny)[..., None]
        title = f"norm of the position vectors of {kind}"
        curves.append(Curves(title, KEY_OFFSET_LABEL, positions, norms, 0.0))
        title = f"similarity of the position vectors of {kind}"
        tables.append(Similarities(title, positions, np.einsum("nrh,nsh->nrs", unit, unit)))
    return HeadPositions({}, curves, tables)


def _score_position(head: Any, positions: jax.Array) -> jax.Array:
    """Return the part of the score of one head that depends only on the relative position."""
    width = head.position_bias.shape[-1]
    if isinstance(head, Adapted):
        return sinusoid(positions, width, jnp.float32) @ head.position_bias
    projected = sinusoid(positions, head.projection.shape[0], jnp.float32) @ head.projection
    return projected @ head.position_bias / np.sqrt(width)


def _evaluate(
    every_head: Variant, function: Callable[[Any, jax.Array], jax.Array], positions: np.ndarray
) -> np.ndarray:
    """Return `function(head, positions)` for every head as an array, with one row per head.

    Args:
      every_head: Variant whose arrays have a leading axis of N heads.
      function: Function of the variant of one head, and of the positions.
      positions: Distances, or relative positions i - j, shape (K,).
    """
    integers = jnp.asarray(positions, jnp.int32)
    return np.asarray(jax.vmap(lambda head: function(head, integers))(every_head), np.float32)
