"""Documents and their ratings, as a task."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.data import TextBuilder
from distattn_jax.models import DocumentRegressor, RegressionOutput
from distattn_jax.train.documents import Documents
from distattn_jax.train.losses import weighted_sum
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Batch


class DocumentRegression(Documents):
    """How many stars a document gives: the labels of the data are taken as numbers.

    The first guess of every model is the mean rating of the training set.
    """

    criterion: ClassVar[str] = "rmse"

    @classmethod
    def labels_of(cls, builder: TextBuilder) -> tuple[str, ...]:
        return ()

    @classmethod
    def answers(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
        # TFDS numbers the labels "1" to "5" from 0.
        return {"rating": np.asarray([row["label"] + 1 for row in rows], np.float32)}

    def model(self, setting: Setting, *, rngs: nnx.Rngs) -> DocumentRegressor:
        return DocumentRegressor(rngs=rngs, **self.arguments(setting))

    def initial(self) -> Mapping[tuple[str | int, ...], np.ndarray]:
        given = dict(super().initial())
        if "train" in self.tables:
            given["rating", "bias"] = self._mean()[None]
        return given

    def loss(self, outputs: RegressionOutput, batch: Batch) -> Float[Array, " B"]:
        return jnp.square(outputs.rating - batch["rating"])

    def counts(self, outputs: RegressionOutput, batch: Batch) -> dict[str, Array]:
        error = outputs.rating - batch["rating"]
        return {
            "squared": weighted_sum(jnp.square(error), batch["weight"]),
            "absolute": weighted_sum(jnp.abs(error), batch["weight"]),
            "examples": batch["weight"].sum(),
        }

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "rmse": float(np.sqrt(counts["squared"] / counts["examples"])),
            "mae": float(counts["absolute"] / counts["examples"]),
        }

    def baseline(self, split: str) -> dict[str, float]:
        """The mean rating of the training set, for everything."""
        error = self.tables[split].columns["rating"] - self._mean()
        return {"rmse": float(np.sqrt((error**2).mean())), "mae": float(np.abs(error).mean())}

    def said(self, outputs: RegressionOutput) -> list[str]:
        return [f"{rating:.2f}" for rating in np.asarray(outputs.rating)]

    def _mean(self) -> np.ndarray:
        return np.asarray(self.tables["train"].columns["rating"].mean(), np.float32)
