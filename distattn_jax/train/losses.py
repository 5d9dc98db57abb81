"""Losses per example, and the weighted sum of several losses.

Every loss is a pure function that returns one number per example. The training step averages these
numbers over a batch.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

# A function of the model's outputs and a batch.
Loss = Callable[[Any, dict[str, Array]], Float[Array, " B"]]


class WeightedLoss(NamedTuple):
    """An auxiliary loss and its weight in the total.

    Attributes:
      loss: Function of the model's outputs and a batch that returns one loss per example.
      weight: Factor of this loss in the total.
    """

    loss: Loss
    weight: float | Float[Array, ""]


class ComposedLoss(NamedTuple):
    """Total loss of every example, and the separate terms of the total.

    Attributes:
      total: Weighted sum of the terms, shape (B,).
      terms: Terms by name, before weighting, each of shape (B,).
    """

    total: Float[Array, " B"]
    terms: dict[str, Float[Array, " B"]]


def compose(
    task_loss: Loss, weighted_losses: Mapping[str, WeightedLoss]
) -> Callable[[Any, dict[str, Array]], ComposedLoss]:
    """Add auxiliary losses to the loss of a task: total = task loss + Σ weight · loss.

    Args:
      task_loss: Loss of the task itself, with weight 1.
      weighted_losses: Auxiliary losses and their weights, by name.

    Returns:
      A function of the model's outputs and a batch. It returns the total of every example and the
      unweighted terms `loss/task` and `loss/<name>`. It raises AssertionError if an auxiliary loss
      does not have the shape of the task loss.
    """

    def composed_loss(outputs: Any, batch: dict[str, Array]) -> ComposedLoss:
        total = task_loss(outputs, batch)
        terms = {"loss/task": total}
        for name, (loss, weight) in weighted_losses.items():
            term = loss(outputs, batch)
            # A loss that is already averaged would be broadcast silently.
            chex.assert_equal_shape(
                [total, term],
                custom_message=f"The loss {name!r} must return one number per example.",
            )
            terms[f"loss/{name}"] = term
            total += weight * term
        return ComposedLoss(total, terms)

    return composed_loss


def weighted_sum(values: Float[Array, " B"], weights: Float[Array, " B"]) -> Float[Array, ""]:
    """Return Σ weight · value over the examples of a batch.

    Examples of weight 0, such as padding, contribute 0 even where their value is NaN.
    """
    return jnp.where(weights > 0, weights * jnp.where(weights > 0, values, 0), 0).sum()


def cross_entropy(logits: Float[Array, "B C"], labels: Int[Array, " B"]) -> Float[Array, " B"]:
    """Return the cross-entropy of each example, -log softmax(logits)[label]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
