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
    """Model, loss and metrics of one run; it holds no examples and no parameters.

    A batch is a dictionary with the columns of the task's tables and `weight` (B,), which is 0 for
    examples that only fill up the batch.

    Attributes:
      config: Options of the run.
      criterion: Name of the metric by which the best parameters are chosen.
      length_columns: Columns whose length, the longest of them, decides the bucket of an example.
      length_unit: Unit of that length, for messages.
      layout: Partition specs of the parameters.
      constants: Arrays that every batch holds besides its columns, during training.
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
        """True if a training step draws random numbers."""
        return False

    @abc.abstractmethod
    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> nnx.Module:
        """Return a model with random parameters. The values of the setting may be traced."""

    @abc.abstractmethod
    def apply(self, model: Any, batch: Batch) -> Any:
        """Return the outputs of the model for a batch, without dropout."""

    @abc.abstractmethod
    def apply_for_training(
        self, model: Any, batch: Batch, setting: Setting, rngs: nnx.Rngs | None
    ) -> Any:
        """Return outputs with dropout and with all that `weighted_losses` read."""

    @abc.abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        """Return the loss of every example."""

    def weighted_losses(self, setting: Setting) -> Mapping[str, WeightedLoss]:
        """Return further losses by name, weighted as the setting says."""
        return {}

    @abc.abstractmethod
    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        """Return weighted sums over the examples of a batch, from which `metrics` follow.

        The sums are added over batches and devices.
        """

    @abc.abstractmethod
    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics of one model, from the counts of a whole split."""

    def baseline(self, train_table: Any, table: Any) -> dict[str, float]:
        """Return the metrics of a predictor without parameters; empty if the task has none."""
        return {}

    def learning_rate_multiplier(self, path: tuple[str, ...], setting: Setting) -> Any:
        """Return the factor on the learning rate of the parameter with this path."""
        return 1.0
