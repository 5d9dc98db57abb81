"""Translation: sentences of one language into sentences of another."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from tokenizers import Tokenizer

from distattn_jax.data import DataError, Table, TextBuilder, encode, iterate_split
from distattn_jax.models import METHODS, Translator, shift_right
from distattn_jax.models.methods import SAME_AS_KEYS
from distattn_jax.sharding import Layout
from distattn_jax.tasks.configs import (
    MAX_LAYERS,
    RELATIVE_POSITION_METHODS,
    MethodsConfig,
    TransformerConfig,
    dataset_option,
)
from distattn_jax.tasks.preparation import describe_long_examples
from distattn_jax.tasks.token_prediction import TokenPrediction, inner_dropout_option, norm_option
from distattn_jax.train import Batch, DataConfig, option

COLUMNS = ("source", "target")
SWITCHED_METHODS = tuple(name for name, method in METHODS.items() if method.has_switches)


@dataclasses.dataclass(frozen=True)
class TranslationData(DataConfig):
    """Options of the data set, the languages, the vocabulary and the batches, for translation."""

    dataset: str = dataset_option("multi30k", "parallel_text", "wmt14_de", "wmt14_fr")
    source: str = option("en", "language to translate from")
    target: str = option("de", "language to translate into")
    vocabulary: int = option(
        32_768, "largest number of subwords of both languages together, trained on the training set"
    )
    longest: int = option(
        128,
        "training pairs with more tokens on a side, [END] included, are left out",
        minimum=2,  # a token and [END]
    )
    batch_tokens: int = option(
        4096,
        "largest number of source tokens, and of target tokens, in a batch with its padding, over "
        "all devices; 0 for batches of batch_size examples",
        minimum=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.source != self.target, "target", f"another language than {self.source!r}")


@dataclasses.dataclass(frozen=True)
class TranslationModelConfig(TransformerConfig):
    """Options of the sizes and initial values of the translator."""

    dropout_rate: tuple[float, ...] = option((0.1,), "dropout rate", grid=True, minimum=0)
    inner_dropout: bool = inner_dropout_option()
    layers: int = option(
        3, "layers of the encoder, and of the decoder", minimum=1, maximum=MAX_LAYERS
    )
    heads: int = option(4, "attention heads", minimum=1)
    head_features: int = option(64, "width of a head", minimum=1)
    hidden_features: int = option(
        1024, "width of the hidden layer of the feed-forward networks", minimum=1
    )
    norm: str = norm_option("after")
    key_distance: tuple[int, ...] = option(
        (16,),
        "distance at which relative positions are clipped for the keys, if below max_distance; -1 "
        "removes the position vectors of the keys",
        grid=True,
        methods=SWITCHED_METHODS,
        minimum=-1,
    )
    value_distance: tuple[int, ...] = option(
        (SAME_AS_KEYS,),
        f"like key_distance, but for the values; {SAME_AS_KEYS} means key_distance",
        grid=True,
        methods=SWITCHED_METHODS,
        minimum=SAME_AS_KEYS,
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
        self.require(set(self.sinusoids) <= {0, 1}, "sinusoids", "0 or 1")


@dataclasses.dataclass(frozen=True)
class TranslationConfig(MethodsConfig):
    """Options of an experiment on translation."""

    task: ClassVar[str] = "translation"
    methods: tuple[str, ...] = option(
        ("relative_position",),
        "attention variants to compare, one run each",
        choices={name: method.summary for name, method in METHODS.items()},
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
    """Translate sentences: predict the tokens of the target, given the source.

    Both languages share one vocabulary.
    """

    config_class = TranslationConfig
    length_columns = COLUMNS
    network = Translator
    predicted: ClassVar[str] = "target"
    sequences: ClassVar[Mapping[str, str]] = {"encoder": "source", "decoder": "target"}
    layout = Layout(token_columns=COLUMNS)

    @property
    def label_smoothing(self) -> float:
        return self.config.label_smoothing

    def call_model(self, model: Any, batch: Batch, **arguments: Any) -> Any:
        inputs = shift_right(batch["target"])
        source = batch["source"], batch["source_length"]
        return model(*source, inputs, batch["target_length"], **arguments)

    @classmethod
    def find_fields(cls, config: Any, dataset: TextBuilder) -> tuple[str, ...]:
        return find_languages(config, dataset)

    @classmethod
    def describe_examples(
        cls, config: Any, dataset: TextBuilder, tables: Mapping[str, Table]
    ) -> list[str]:
        return describe_long_examples(
            dataset, tables, COLUMNS, config.longest, name="pairs", unit="tokens on a side"
        )

    @classmethod
    def read_table(
        cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer
    ) -> Table:
        """Return the examples of a split: the token ids of both sentences, each with [END].

        A training pair is left out if one of its sentences has more than `longest` tokens.
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
