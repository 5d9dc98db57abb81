"""Fine-tuning of a pre-trained encoder, optionally with auxiliary losses on its attention.

This module contains the base class of all tasks on pre-trained models. The tokenizer of the model
makes the columns `tokens` and `types` (token types) of the examples. A guide is a set of auxiliary
losses on the attention (see the module `guides`). An experiment compares guides, and each guide has
its own run. Some guides need additional columns in the training set.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import Table, TextBuilder
from distattn_jax.models import PretrainedClassifier, PretrainedConfig
from distattn_jax.tasks.configs import ALL_LAYERS, FineTuningConfig, FineTuningData, GuidingConfig
from distattn_jax.tasks.fine_tuning_data import EncoderTexts, make_table, prepare_fine_tuning
from distattn_jax.tasks.guides import GUIDES, GuideOptions
from distattn_jax.tasks.preparation import PreparedData
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train import Batch, Loss, Setting, WeightedLoss

PERIODS = (".", "Ġ.", "▁.")  # spelled by each family of tokenizers, with and without a space
DELIMITERS = ("[SEP]", "</s>")


class FineTuningTask(TextTask):
    """Task that fine-tunes a pre-trained encoder, with the auxiliary losses of a guide.

    The only entry of `config.methods` is the name of the guide.

    Attributes:
      losses: Dict from name to auxiliary loss on the attention, not multiplied by its weight.
    """

    length_columns = ("tokens",)

    def __init__(self, config: FineTuningConfig, **arguments: Any):
        super().__init__(config, **arguments)
        self.guide = GUIDES[config.method]
        options = guide_options(config.guiding, self.tokenizer)
        self._single_layer = options.single_layer
        losses = self.guide.losses(options)
        self.losses = {name: self.per_example(loss) for name, loss in losses.items()}
        constants = self.constants
        self.constants = {name: constants[name] for name in self.guide.constants if constants}

    @property
    def logits(self) -> int:
        """Number of logits of the model for each text or pair."""
        return len(self.labels)

    def make_model(self, setting: Setting, *, rngs: nnx.Rngs) -> PretrainedClassifier:
        """Return a model with random parameters and the architecture of the pre-trained model."""
        config = self.config.model
        return PretrainedClassifier(
            PretrainedConfig(**self.data["pretrained"]["config"]),
            self.logits,
            implementation=config.implementation or None,
            precision=config.precision or None,
            dtype=jnp.dtype(config.dtype),
            remat=config.remat,
            rngs=rngs,
        )

    def per_example(self, loss: Loss) -> Loss:
        """Convert a loss function with one value per text into one with one value per example.

        By default, an example is a single text or pair, and `loss` is returned unchanged.
        """
        return loss

    def apply_for_training(
        self, model: Any, batch: Batch, setting: Setting, rngs: nnx.Rngs | None
    ) -> Any:
        rate = setting["dropout_rate"]
        attention = {"received": self.guide.received, "weights": self.guide.maps}
        return self.call_model(model, batch, dropout_rate=rate, rngs=rngs, **attention)

    def weighted_losses(self, setting: Setting) -> Mapping[str, WeightedLoss]:
        return self.guide.weigh(self.losses, setting, single_layer=self._single_layer)

    def select_columns(self, table: Table) -> Table:
        """Return a copy of the training table without the columns that only other guides need."""
        unused = {name for guide in GUIDES.values() for name in guide.columns}
        unused -= set(self.guide.columns)
        columns = {name: c for name, c in table.columns.items() if name not in unused}
        return dataclasses.replace(table, columns=columns)

    @classmethod
    @abc.abstractmethod
    def read_texts(cls, dataset: TextBuilder, split: str, config: FineTuningData) -> EncoderTexts:
        """Return the texts of a split, and the columns that the model predicts, e.g. `label`."""

    @classmethod
    def prepare(cls, config: Any) -> PreparedData:
        """Prepare a data set and load the parameters of the pre-trained model."""
        return prepare_fine_tuning(config, cls.read_texts, cls.list_labels)

    @classmethod
    def read_table(
        cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer
    ) -> Table:
        """Return the examples of a split.

        The table has the token ids and token types of each text, and the columns that the model
        predicts, e.g. `label`.
        """
        texts = cls.read_texts(dataset, split, config.data)
        return make_table(texts, tokenizer, config.data.longest)[0]


def guide_options(config: GuidingConfig, tokenizer: Tokenizer) -> GuideOptions:
    """Return the options of the auxiliary attention losses.

    The options include the token ids of periods and separators in this tokenizer.
    """
    return GuideOptions(
        layers=tuple(layer - 1 for layer in config.layers) or None,
        single_layer=config.layer != (ALL_LAYERS,),
        scaling=config.scaling,
        temperature=config.temperature,
        periods=_find_ids(tokenizer, PERIODS),
        delimiters=_find_ids(tokenizer, DELIMITERS),
    )


def _find_ids(tokenizer: Tokenizer, tokens: Sequence[str]) -> tuple[int, ...]:
    ids = (tokenizer.token_to_id(token) for token in tokens)
    return tuple(i for i in ids if i is not None)
