"""Translation: sentences of one language into sentences of another."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from distattn_jax.data import DataError, Table, TextBuilder, encode, iterate_split
from distattn_jax.models import METHODS, Translator, shift_right
from distattn_jax.models.methods import SAME_AS_KEYS
from distattn_jax.tasks.preparation import SPLITS, PreparedData, open_dataset
from distattn_jax.tasks.text_task import RELATIVE_POSITION_METHODS, dataset_option
from distattn_jax.tasks.token_prediction import (
    TokenPrediction,
    TokenPredictionConfig,
    TokenPredictionData,
    TokenPredictionModelConfig,
    prepare_token_prediction,
)
from distattn_jax.train import Batch, option

COLUMNS = ("source", "target")
SWITCHED_METHODS = tuple(name for name, method in METHODS.items() if method.has_switches)


@dataclasses.dataclass(frozen=True)
class TranslationData(TokenPredictionData):
    """Options of the data set, the languages, the vocabulary and the batches, for translation."""

    dataset: str = dataset_option("multi30k", "parallel_text", "wmt14_de", "wmt14_fr")
    source: str = option("en", "language to translate from")
    target: str = option("de", "language to translate into")
    vocabulary: int = option(
        32_768, "largest number of subwords of both languages together, trained on the training set"
    )
    longest: int = option(
        128, "training pairs with more tokens on a side, [END] included, are left out"
    )
    batch_tokens: int = option(
        4096,
        "largest number of source tokens, and of target tokens, in a batch with its padding, over "
        "all devices; 0 for batches of batch_size examples",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(2, "longest")  # a token and [END]
        self.require_at_least(0, "batch_tokens")
        self.require(self.source != self.target, "target", f"another language than {self.source!r}")


@dataclasses.dataclass(frozen=True)
class TranslationModelConfig(TokenPredictionModelConfig):
    """Options of the sizes and initial values of the translator."""

    layers: int = option(3, "layers of the encoder, and of the decoder")
    key_distance: tuple[int, ...] = option(
        (16,),
        "distance at which relative positions are clipped for the keys, if below max_distance; -1 "
        "removes the position vectors of the keys",
        grid=True,
        methods=SWITCHED_METHODS,
    )
    value_distance: tuple[int, ...] = option(
        (SAME_AS_KEYS,),
        f"like key_distance, but for the values; {SAME_AS_KEYS} means key_distance",
        grid=True,
        methods=SWITCHED_METHODS,
    )
    sinusoids: tuple[int, ...] = option(
        (0,), "1 adds sinusoidal positions, 0 does not", grid=True, methods=SWITCHED_METHODS
    )
    shared_tables: bool = option(
        False,
        "heads of a layer share the vectors of relative positions",
        methods=RELATIVE_POSITION_METHODS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(-1, "key_distance")
        self.require_at_least(SAME_AS_KEYS, "value_distance")
        self.require(set(self.sinusoids) <= {0, 1}, "sinusoids", "0 or 1")


@dataclasses.dataclass(frozen=True)
class TranslationConfig(TokenPredictionConfig):
    """Options of an experiment on translation."""

    task: ClassVar[str] = "translation"
    methods: tuple[str, ...] = option(
        ("relative_position",),
        "attention variants to compare, one run each",
        choices=tuple(METHODS),
        changes_result=False,
    )
    label_smoothing: float = option(
        0.1, "probability that is moved from the right token to all tokens, in the loss"
    )
    data: TranslationData = TranslationData()
    model: TranslationModelConfig = TranslationModelConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.label_smoothing < 1, "label_smoothing", "in [0, 1)")


class Translation(TokenPrediction):
    """Translate sentences: predict the tokens of the target, given the source."""

    length_columns = COLUMNS
    network = Translator
    predicted: ClassVar[str] = "target"

    @property
    def label_smoothing(self) -> float:
        return self.config.label_smoothing

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        inputs = shift_right(batch["target"])
        source = batch["source"], batch["source_length"]
        return model(*source, inputs, batch["target_length"], **arguments)


def prepare(config: TranslationConfig) -> PreparedData:
    """Prepare a data set of sentence pairs, with one vocabulary for both languages."""
    dataset = open_dataset(config.data)
    return prepare_token_prediction(
        config,
        dataset,
        find_languages(config.data, dataset),
        read_table=read_table,
        columns={"encoder": "source", "decoder": "target"},
        describe=functools.partial(describe_long_pairs, config.data, dataset),
    )


def find_languages(config: TranslationData, dataset: TextBuilder) -> tuple[str, str]:
    """Return the source and the target language. Raise `DataError` if the data lacks a language."""
    for option_name in COLUMNS:
        language = getattr(config, option_name)
        if language not in dataset.info.features:
            known = " and ".join(dataset.info.features)
            raise DataError(
                f"--data.{option_name} must be one of the languages of the data, {known}; "
                f"got {language!r}."
            )
    return config.source, config.target


def describe_long_pairs(
    config: TranslationData, dataset: TextBuilder, tables: Mapping[str, Table]
) -> list[str]:
    """Return messages about the pairs with more than `longest` tokens on a side.

    Such pairs of the training set are left out. Such pairs of the other splits are kept whole,
    because a translator must translate every sentence.
    """
    reason = f"with more than {config.longest} tokens on a side (--data.longest)"
    left_out = dataset.info.splits["train"].num_examples - len(tables["train"])
    lines = [f"left out: {left_out:,} pairs of train {reason}"] if left_out else []
    for split in SPLITS[1:]:
        kept = int((tables[split].lengths(COLUMNS) > config.longest).sum())
        if kept:
            lines.append(f"kept whole: {kept:,} pairs of {split} {reason}")
    return lines


def read_table(
    config: TranslationConfig, dataset: TextBuilder, split: str, tokenizer: Tokenizer
) -> Table:
    """Return the examples of a split: the token ids of both sentences, each with [END].

    Training pairs that are longer than `longest` on a side are left out.
    """
    languages = find_languages(config.data, dataset)
    rows = iterate_split(dataset, split)
    both = encode(tokenizer, (row[language] for row in rows for language in languages))
    is_source = np.arange(len(both)) % 2 == 0
    columns = {"source": both.select(is_source), "target": both.select(~is_source)}
    if split == "train":
        short = Table(columns).lengths(COLUMNS) <= config.data.longest
        if not short.any():
            raise DataError(
                f"--data.longest ({config.data.longest}) must be at least the length of some "
                f"training pair; all {len(short):,} pairs are longer."
            )
        columns = {name: column.select(short) for name, column in columns.items()}
    return Table(columns)
