"""Interface between the training system and a task: a model, its loss and its metrics."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.sharding import Layout
from distattn_jax.train.config import Config
from distattn_jax.train.losses import WeightedLoss
from distattn_jax.train.members import Setting

Batch = dict[str, Array]


class Task(abc.ABC):
    """Model, loss and metrics of one run. A task object stores neither examples nor parameters.

    A batch is a dict of the columns of the task's tables and the column `weight` (B,), which is 0
    for padding rows.

    Attributes:
      config: Options of the run.
      criterion: Name of the metric by which the best parameters are chosen.
      length_columns: Names of sequence columns. The longest of these sequences determines the
        length bucket of an example.
      length_unit: Unit of the sequence lengths, for messages.
      layout: Partition specs of the parameters.
      constants: Dict of arrays that are the same for all training batches. The training step adds
        them to each batch, where the losses find them.
    """

    config: Config
    criterion: ClassVar[str]
    length_columns: tuple[str, ...]
    length_unit: ClassVar[str] = "tokens"
    layout: Layout = Layout()
    constants: Mapping[str, np.ndarray] = {}

    @property
    def max_length(self) -> int | None:
        """Largest length of an example, in `length_unit`; None if examples are never truncated."""
        return None

    @property
    def uses_dropout(self) -> bool:
        """True if a training step draws random numbers for dropout."""
        return False

    @abc.abstractmethod
    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> nnx.Module:
        """Return a model with random parameters.

        Args:
          setting: Dict from the name of a hyperparameter to its value, which may be a JAX tracer.
          rngs: Random streams for the parameters.
        """

    @abc.abstractmethod
    def apply(self, model: Any, batch: Batch) -> Any:
        """Return the outputs of the model for a batch, without dropout."""

    @abc.abstractmethod
    def apply_for_training(
        self, model: Any, batch: Batch, setting: Setting, rngs: nnx.Rngs | None
    ) -> Any:
        """Return the outputs of the model for a training batch, with dropout.

        The outputs include all arrays that the losses of `weighted_losses` need.

        Args:
          model: Model of this task.
          batch: Columns of the examples.
          setting: Hyperparameters of the model, e.g. its dropout rate.
          rngs: Random streams for dropout; None if the task uses no dropout.
        """

    @abc.abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        """Return the loss of every example."""

    def example_weights(self, batch: Batch) -> Float[Array, " B"]:
        """Return the weight of every example in the mean loss of a batch and of a split.

        By default, all examples have the same weight. Padding rows must have the weight 0.
        """
        return batch["weight"]

    def weighted_losses(self, setting: Setting) -> Mapping[str, WeightedLoss]:
        """Return a dict from name to auxiliary loss and weight; by default an empty dict.

        Args:
          setting: Hyperparameters of the model, which include the weights.
        """
        return {}

    @abc.abstractmethod
    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        """Return a dict from name to a weighted sum over the examples of a batch.

        The sums of all batches and devices are added. The method `metrics` computes the metrics
        from these totals. A task that computes the losses of the examples here anyway may include
        their weighted sum `loss`. Otherwise, the evaluation calls the method `loss` for this sum.
        """

    @abc.abstractmethod
    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Compute the metrics of one model from its counts, summed over a whole split."""

    def baseline(self, train_table: Any, table: Any) -> dict[str, float]:
        """Return the metrics of a simple predictor, for comparison; by default an empty dict.

        Args:
          train_table: Training examples, to which the predictor may be fitted.
          table: Examples on which the predictor is evaluated.
        """
        return {}

    def learning_rate_multiplier(self, path: tuple[str, ...], setting: Setting) -> Any:
        """Return the factor of the learning rate for the parameter at `path`; by default 1."""
        return 1.0
