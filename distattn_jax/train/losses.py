"""Losses per example, and the weighted sum of several losses.

Every loss is a pure function that returns one number per example or per token. The training step
computes the weighted mean over the examples of a batch.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.token_scores import score_logits

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
      terms: Dict from the name of a term to its unweighted values, shape (B,).
    """

    total: Float[Array, " B"]
    terms: dict[str, Float[Array, " B"]]


def compose(
    task_loss: Loss, weighted_losses: Mapping[str, WeightedLoss]
) -> Callable[[Any, dict[str, Array]], ComposedLoss]:
    """Add auxiliary losses to the loss of a task: total = task loss + Σ weight · loss.

    Args:
      task_loss: Loss of the task itself, with weight 1.
      weighted_losses: Dict from name to auxiliary loss and weight.

    Returns:
      A function of the model's outputs and a batch. It returns the total loss of every example and
      the unweighted terms `loss/task` and `loss/<name>`. It raises AssertionError if the shapes of
      an auxiliary loss and the task loss differ.
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

    Examples of weight 0, such as padding, contribute 0 even if their value is NaN.
    """
    return jnp.where(weights > 0, weights * jnp.where(weights > 0, values, 0), 0).sum()


def length_mask(batch: Mapping[str, Array], name: str) -> Bool[Array, "B T"]:
    """Return a mask that is True for the elements of the sequences and False for padding.

    Args:
      batch: Columns of a batch.
      name: Name of a column of sequences. The column `<name>_length` contains their lengths.
    """
    return jnp.arange(batch[name].shape[1])[None, :] < batch[f"{name}_length"][:, None]


def masked_mean(values: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, " B"]:
    """Return the mean of each row over the values where `mask` is True; 0 if there are none."""
    return jnp.where(mask, values, 0).sum(axis=-1) / jnp.maximum(mask.sum(axis=-1), 1)


def token_cross_entropy(
    logits: Float[Array, "B T V"], labels: Int[Array, "B T"], *, smoothing: float = 0.0
) -> Float[Array, "B T"]:
    """Return the cross-entropy of each token, with label smoothing (Szegedy et al. 2016).

    Every token of the vocabulary has the target probability smoothing / V. The label has an
    additional probability of 1 - smoothing:

        loss = logsumexp(z) - (1 - smoothing) z[label] - smoothing mean(z)

    The backward pass recomputes the softmax from the logits z. The only new array of shape (B, T,
    V) in memory is the gradient of the logits. `score_tokens` computes the same loss without an
    array (B, T, V), from the features of a language model.

    Args:
      logits: Logits of every token, z in the equation.
      labels: Index of the correct token.
      smoothing: Probability that is moved from the label to a uniform distribution over the
        vocabulary.
    """
    return score_logits(logits, labels).loss(smoothing)


def cross_entropy(logits: Float[Array, "B C"], labels: Int[Array, " B"]) -> Float[Array, " B"]:
    """Return the cross-entropy of each example, -log softmax(logits)[label]."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)
