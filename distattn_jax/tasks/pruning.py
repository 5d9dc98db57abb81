"""Pruning of attention heads: how much a trained model loses without some of its heads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from distattn_jax import sharding
from distattn_jax.tasks.inspection import distance_parameters
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train import evaluate
from distattn_jax.train.state import model_graph

DRAWS = 5  # random orders of the heads


class PruningResult(NamedTuple):
    """Main metric of M models before and after pruning heads.

    Attributes:
      criterion: Name of the metric.
      counts: Numbers of pruned heads.
      whole: Metric of the models before pruning.
      orders: Dict from the name of an order of pruning to the metric of the pruned models.
    """

    criterion: str
    counts: tuple[int, ...]
    whole: Float[np.ndarray, " M"]
    orders: dict[str, Float[np.ndarray, "counts M"]]


def measure_pruning(
    task: TextTask, params: Any, table: Any, counts: Sequence[int], *, examples: int = 64
) -> PruningResult:
    """Prune the heads of distance-aware models in several orders, and evaluate the models.

    There are four orders: heads with the smallest |w| first, heads with the largest |w| first,
    heads with the most evenly spread attention first (see `received_concentration`), and random. w
    is the distance weight of a head. The metric of the random order is a mean over several draws.

    Args:
      task: Task of the run.
      params: Parameters of all models, with a leading axis over models.
      table: Examples for the evaluation.
      counts: Numbers of heads to prune.
      examples: Number of examples, from the start of the table, for `received_concentration`.
    """
    ((weight, _),) = distance_parameters(params).values()  # (M, L, N)
    heads = weight[0].size
    if not all(0 <= count <= heads for count in counts):
        raise ValueError(f"counts must be from 0 to {heads}, the number of heads; got {counts}.")
    mesh = sharding.make_mesh(1, 1)

    def measure(pruned: Bool[np.ndarray, "M L N"]) -> np.ndarray:
        return evaluate(task, prune_heads(params, pruned), table, mesh)[task.criterion]

    def measure_order(scores: Float[np.ndarray, "M L N"]) -> np.ndarray:
        """Return the metric after pruning the heads with the smallest scores."""
        ranks = scores.reshape(len(scores), -1).argsort(axis=1).argsort(axis=1)
        return np.stack([measure((ranks < count).reshape(scores.shape)) for count in counts])

    generator = np.random.default_rng(0)
    draws = [measure_order(generator.random(weight.shape)) for _ in range(DRAWS)]
    orders = {
        "smallest absolute w": measure_order(np.abs(weight)),
        "largest absolute w": measure_order(-np.abs(weight)),
        "most even attention": measure_order(received_concentration(task, params, table, examples)),
        "random": np.mean(draws, axis=0),
    }
    whole = measure(np.zeros(weight.shape, bool))
    return PruningResult(task.criterion, tuple(counts), whole, orders)


def prune_heads(params: Any, pruned: Bool[np.ndarray, "M L N"]) -> Any:
    """Return a copy of the parameters in which the output weights of the pruned heads are 0.

    Args:
      params: Parameters of all models, with a leading axis over models. Each model must have
        exactly one encoder or decoder.
      pruned: True for the heads to prune, for each of M models, L layers and N heads.
    """
    flat = nnx.traversals.flatten_mapping(params)
    paths = [path for path in flat if path[-3:] == ("attention", "out", "kernel")]
    if len(paths) != pruned.shape[1]:
        raise ValueError(
            f"params must have one output layer for each of {pruned.shape[1]} layers; got "
            f"{len(paths)}."
        )
    for layer, path in enumerate(sorted(paths, key=lambda path: path[-4])):
        kept = jnp.asarray(~pruned[:, layer], flat[path].dtype)
        flat[path] = flat[path] * kept[:, :, None, None]  # (M, N, H, D)
    return nnx.traversals.unflatten_mapping(flat)


def received_concentration(
    task: TextTask, params: Any, table: Any, examples: int
) -> Float[np.ndarray, "M L N"]:
    """Return the concentration of the attention of each head on few keys.

    m_j is the attention that key j of S keys receives, summed over all queries:

        concentration = S Σ m_j² / (Σ m_j)²

    The concentration is 1 if all keys receive equal attention, and S if one key receives all
    attention. The result is a mean over examples.

    Args:
      task: Task of the run. Its model must have exactly one encoder or decoder.
      params: Parameters of all models, with a leading axis over models.
      table: Examples.
      examples: Number of examples, from the start of the table.
    """
    rows = np.arange(min(examples, len(table)))
    lengths = table.lengths(task.length_columns)[rows]
    length = int(min(lengths.max(), task.max_length or lengths.max()))
    batch = jax.device_put(table.take(rows, length))
    sizes = jnp.asarray(np.minimum(lengths, length), jnp.float32)

    def measure_model(own: Any) -> Float[Array, "L N"]:
        model = nnx.merge(model_graph(task), own)
        received = task.call_model(model, batch, weights=True).weights.sum(axis=-2)  # (B, L, N, S)
        squares = jnp.square(received).sum(axis=-1) / jnp.square(received.sum(axis=-1))
        return (squares * sizes[:, None, None]).mean(axis=0)

    return np.asarray(jax.lax.map(measure_model, params))
