"""Losses: pure, one number per example, added up by `compose` and averaged in one place."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

Loss = Callable[[Any, dict[str, Array]], Float[Array, " B"]]  # of a model's outputs and a batch


class Guide(NamedTuple):
    """A further loss, on the attention or on anything else in a model's outputs, and its weight."""

    loss: Loss
    weight: float | Float[Array, ""]


class Composed(NamedTuple):
    """The loss of every example, and the terms it is the sum of."""

    total: Float[Array, " B"]
    terms: dict[str, Float[Array, " B"]]


def compose(task: Loss, guides: Mapping[str, Guide]) -> Callable[[Any, dict[str, Array]], Composed]:
    """total = task + Σ weight · guide, example by example.

    Args:
      task: what is learned.
      guides: what else is asked of the model, by name.

    Returns:
      A function of outputs and batch, which also gives every term before it is weighted:
      `loss/task` and `loss/<name of the guide>`.
    """

    def composed(outputs: Any, batch: dict[str, Array]) -> Composed:
        total = task(outputs, batch)
        terms = {"loss/task": total}
        for name, guide in guides.items():
            terms[f"loss/{name}"] = guide.loss(outputs, batch)
            total += guide.weight * terms[f"loss/{name}"]
        return Composed(total, terms)

    return composed


def weighted_sum(values: Float[Array, " B"], weights: Float[Array, " B"]) -> Float[Array, ""]:
    """Σ weight · value; an example of weight 0 does not count, whatever its value, NaN included."""
    return jnp.where(weights > 0, weights * jnp.where(weights > 0, values, 0), 0).sum()


def cross_entropy(logits: Float[Array, "B C"], labels: Int[Array, " B"]) -> Float[Array, " B"]:
    """-log softmax(logits)[label]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
