"""Fine-tuning of a pre-trained encoder, optionally with auxiliary losses on its attention.

This module contains the options and auxiliary losses that all tasks on pre-trained models share.
Examples have the columns `tokens` and `types`, made by the tokenizer of the model. A guide is a set
of auxiliary losses on the attention. `GUIDES` is a dict of all guides by name. An experiment
compares guides, and each guide has its own run. Some guides need additional columns in the training
set.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import Table
from distattn_jax.models import PretrainedClassifier, PretrainedConfig
from distattn_jax.tasks.configs import ComputeConfig
from distattn_jax.tasks.guides import GUIDES, Guide, GuideOptions
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train import (
    Batch,
    Config,
    DataConfig,
    Loss,
    Options,
    Setting,
    WeightedLoss,
    option,
)

PERIODS = (".", "Ġ.", "▁.")  # spelled by each family of tokenizers, with and without a space
DELIMITERS = ("[SEP]", "</s>")
ALL_LAYERS = -1


def _guides_where(condition: Callable[[Guide], bool]) -> tuple[str, ...]:
    return tuple(name for name, guide in GUIDES.items() if condition(guide))


def _weight_option(name: str, default: float, explanation: str) -> Any:
    """Return the option of the weight of a loss, which the guides with this weight use."""
    methods = _guides_where(lambda guide: name in guide.weights)
    return option((default,), explanation, grid=True, methods=methods, minimum=0)


@dataclasses.dataclass(frozen=True)
class FineTuningData(DataConfig):
    """Options of the data set and the batches, for fine-tuning a pre-trained model."""

    longest: int = option(
        512, "maximum number of tokens of a text or pair; the rest is cut", minimum=1
    )
    share: float = option(1.0, "fraction of the training set to learn from")
    parses: str = option(
        "", "folder with the parsed training set (CoNLL-U)", methods=("dependency",)
    )
    vectors: str = option(
        "", "GloVe file (text, .gz or .zip) of word vectors", methods=("word_similarity",)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.share <= 1, "share", "above 0 and at most 1")


@dataclasses.dataclass(frozen=True)
class PretrainedModelConfig(ComputeConfig):
    """Options of the pre-trained model and its computation."""

    pretrained: str = option("", "folder or hub name of the pre-trained model")
    dropout_rate: tuple[float, ...] = option(
        (0.1,), "dropout rate; replaces the rate in the model's config.json", grid=True, minimum=0
    )
    remat: bool = option(False, "recompute each layer in the backward pass, to save memory")


@dataclasses.dataclass(frozen=True)
class GuidingConfig(Options):
    """Options of guides. A guide is a set of auxiliary losses on the attention of the model."""

    alpha: tuple[float, ...] = _weight_option(
        "alpha", 0.01, "weight of the map discrimination guide (MDG)"
    )
    beta: tuple[float, ...] = _weight_option(
        "beta", 0.01, "weight of the pattern decorrelation guide (PDG)"
    )
    gamma: tuple[float, ...] = _weight_option("gamma", 1.0, "weight of any other guide")
    layers: tuple[int, ...] = option(
        (),
        "guided layers, counted from 0; empty guides all layers",
        methods=_guides_where(lambda guide: bool(guide.terms)),
        minimum=0,
    )
    layer: tuple[int, ...] = option(
        (ALL_LAYERS,),
        "the only guided layer; -1 guides the layers of the option `layers`",
        grid=True,
        methods=_guides_where(lambda guide: bool(guide.terms)),
    )
    scaling: str = option(
        "mean",
        "compute MDG and PDG as means, or as sums as in the paper",
        choices=("mean", "sum"),
        methods=_guides_where(lambda guide: guide.received),
    )
    temperature: float = option(
        1.0,
        "temperature of the map discrimination guide (MDG)",
        methods=_guides_where(lambda guide: "alpha" in guide.weights),
    )
    pmi_tokens: int = option(
        4096,
        "number of frequent tokens whose pointwise mutual information is used",
        methods=("pmi",),
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.temperature > 0, "temperature", "above 0")
        self.require(len(set(self.layers)) == len(self.layers), "layers", "different ones")
        unset = self.layer == (ALL_LAYERS,)
        valid = min(self.layer) >= 0 and len(set(self.layer)) == len(self.layer)
        self.require(unset or valid, "layer", "-1 alone, or different layers from 0 on")
        self.require(unset or not self.layers, "layer", "-1 where layers are given")


@dataclasses.dataclass(frozen=True)
class FineTuningConfig(Config):
    """Options of an experiment that fine-tunes a pre-trained model with different guides.

    A guide is a set of auxiliary losses on the attention of the model.
    """

    methods: tuple[str, ...] = option(
        ("none",),
        "guides to compare, with one run for each",
        choices=tuple(GUIDES),
        changes_result=False,
    )
    data: FineTuningData = FineTuningData()
    model: PretrainedModelConfig = PretrainedModelConfig()
    guiding: GuidingConfig = GuidingConfig()


class FineTuningTask(TextTask):
    """Task that fine-tunes a pre-trained encoder, with the auxiliary losses of a guide.

    The only entry of `config.methods` is the name of the guide.

    Attributes:
      losses: Auxiliary losses on the attention by name, without their weights.
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

    def per_example(self, loss: Loss) -> Loss:
        """Convert a loss with one value per text into a loss with one value per example."""
        return loss

    def apply_for_training(
        self, model: Any, batch: Batch, setting: Setting, rngs: nnx.Rngs | None
    ) -> Any:
        return self.call_model(
            model,
            batch,
            dropout_rate=setting["dropout_rate"],
            rngs=rngs,
            received=self.guide.received,
            weights=self.guide.maps,
        )

    def weighted_losses(self, setting: Setting) -> Mapping[str, WeightedLoss]:
        return self.guide.weigh(self.losses, setting, single_layer=self._single_layer)

    def select_columns(self, table: Table) -> Table:
        """Return a copy of the training table without the columns that only other guides need."""
        unused = {name for guide in GUIDES.values() for name in guide.columns}
        unused -= set(self.guide.columns)
        columns = {name: c for name, c in table.columns.items() if name not in unused}
        return dataclasses.replace(table, columns=columns)


def guide_options(config: GuidingConfig, tokenizer: Tokenizer) -> GuideOptions:
    """Return the options of the auxiliary attention losses.

    The options include the token ids of periods and separators in this tokenizer.
    """
    return GuideOptions(
        layers=config.layers or None,
        single_layer=config.layer != (ALL_LAYERS,),
        scaling=config.scaling,
        temperature=config.temperature,
        periods=_find_ids(tokenizer, PERIODS),
        delimiters=_find_ids(tokenizer, DELIMITERS),
    )


def make_classifier(task: TextTask, classes: int, rngs: nnx.Rngs) -> PretrainedClassifier:
    """Return a classifier with the architecture of the pre-trained model and random parameters."""
    config = task.config.model
    return PretrainedClassifier(
        PretrainedConfig(**task.data["pretrained"]["config"]),
        classes,
        implementation=config.implementation or None,
        dtype=jnp.dtype(config.dtype),
        remat=config.remat,
        rngs=rngs,
    )


def _find_ids(tokenizer: Tokenizer, tokens: Sequence[str]) -> tuple[int, ...]:
    ids = (tokenizer.token_to_id(token) for token in tokens)
    return tuple(i for i in ids if i is not None)
