"""What a task is: data, model, loss and metrics. The training knows nothing more of it."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.sharding import Layout
from distattn_jax.train.config import DataConfig
from distattn_jax.train.losses import WeightedLoss
from distattn_jax.train.members import Setting

Batch = dict[str, Array]


class Task(abc.ABC):
    """One thing to learn. A batch holds what the table's columns are called, and `weight` (B,).

    Attributes:
      tables: the examples of each split: train, validation, test, and any others.
      by: the columns of the tables whose length, the longest, decides the bucket of an example.
      unit: what that length counts.
      criterion: the metric by which the best parameters are chosen.
      layout: where the parameters lie on a mesh.
      guides: what else is asked of the model, by name.
      constants: arrays that the guides read as if every batch held them.
    """

    tables: Mapping[str, Any]
    by: ClassVar[tuple[str, ...]]
    unit: ClassVar[str] = "tokens"
    criterion: ClassVar[str]
    layout: Layout = Layout()
    guides: Mapping[str, WeightedLoss] = {}
    constants: Mapping[str, np.ndarray] = {}

    def longest(self, config: DataConfig) -> int | None:
        """What examples are cut to, in its unit; None: they are never cut."""
        return config.longest

    @abc.abstractmethod
    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> nnx.Module:
        """A model with its first parameters; the numbers of the setting may be traced."""

    def initial(self) -> Mapping[tuple[str | int, ...], np.ndarray]:
        """Parameters that are not drawn but given, by their paths; the same for all members."""
        return {}

    @abc.abstractmethod
    def outputs(
        self, model: Any, batch: Batch, *, dropout_rate: Any = 0.0, rngs: nnx.Rngs | None = None
    ) -> Any:
        """What the model says of a batch; without `rngs`, without dropout."""

    def outputs_to_learn(self, model: Any, batch: Batch, **dropout: Any) -> Any:
        """The outputs of a step of training: with all that the guides look at."""
        return self.outputs(model, batch, **dropout)

    def guides_of(self, setting: Setting) -> Mapping[str, WeightedLoss]:
        """The guides with the weights they have in a setting, whose numbers may be traced."""
        return self.guides

    @abc.abstractmethod
    def loss(self, outputs: Any, batch: Batch) -> Float[Array, " B"]:
        """Of every example, unreduced."""

    @abc.abstractmethod
    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        """Sums over the examples, each counted by its weight, from which `metrics` follow.

        They are added over batches and devices, so that no partial batch counts for more.
        """

    @abc.abstractmethod
    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        """What the counts of a whole split come to, for one member."""

    def baseline(self, split: str) -> dict[str, float]:
        """What comes out without any model; empty where there is no such thing."""
        return {}
