"""Fine-tuning of a pre-trained encoder, optionally with auxiliary losses on its attention.

This module contains the options, tables and losses that all tasks on pre-trained models share.
Examples have the columns `tokens` and `types`, made by the tokenizer of the model. A guide is a set
of auxiliary losses on the attention. `GUIDES` lists the guides by name. An experiment compares
guides, one run for each. Some guides need additional columns in the training set.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import (
    DataError,
    Nested,
    ParsedTexts,
    Ragged,
    Table,
    TextBuilder,
    count_pmi,
    encode_pairs,
    list_words,
    load_pretrained_tokenizer,
    load_word_vectors,
)
from distattn_jax.models import PretrainedClassifier, PretrainedConfig
from distattn_jax.models import pretrained as models
from distattn_jax.tasks import pretrained_source
from distattn_jax.tasks.guides import GUIDES, Guide, GuideOptions
from distattn_jax.tasks.preparation import SPLITS, PreparedData, describe_data, open_dataset
from distattn_jax.tasks.text_task import ComputeConfig, DatasetConfig, TextTask
from distattn_jax.train import Config, Loss, Options, Setting, WeightedLoss, option

COLUMNS = ("tokens", "types")
PERIODS = (".", "Ġ.", "▁.")  # spelled by each family of tokenizers, with and without a space
DELIMITERS = ("[SEP]", "</s>")
ALL_LAYERS = -1


def _guides_where(condition: Callable[[Guide], bool]) -> tuple[str, ...]:
    return tuple(name for name, guide in GUIDES.items() if condition(guide))


@dataclasses.dataclass(frozen=True)
class FineTuningData(DatasetConfig):
    """Options of the data set and the batches, for fine-tuning a pre-trained model."""

    longest: int = option(512, "longest text or pair in tokens; longer ones are truncated")
    share: float = option(1.0, "fraction of the training set to learn from")
    parses: str = option(
        "", "folder with the parsed training set (CoNLL-U)", methods=("dependency",)
    )
    vectors: str = option(
        "", "GloVe file (text, .gz or .zip) of word vectors", methods=("word_similarity",)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "longest")
        self.require(0 < self.share <= 1, "share", "above 0 and at most 1")


@dataclasses.dataclass(frozen=True)
class PretrainedModelConfig(ComputeConfig):
    """Options of the pre-trained model and its computation."""

    pretrained: str = option("", "folder or hub name of the pre-trained model")
    dropout_rate: tuple[float, ...] = option(
        (0.1,), "dropout rate; replaces the rate in the model's config.json", grid=True
    )
    remat: bool = option(False, "recompute each layer in the backward pass, to save memory")


@dataclasses.dataclass(frozen=True)
class GuidingConfig(Options):
    """Options of guides. A guide is a set of auxiliary losses on the attention of the model."""

    alpha: tuple[float, ...] = option(
        (0.01,),
        "weight of the map discrimination guide (MDG)",
        grid=True,
        methods=_guides_where(lambda guide: "alpha" in guide.weights),
    )
    beta: tuple[float, ...] = option(
        (0.01,),
        "weight of the pattern decorrelation guide (PDG)",
        grid=True,
        methods=_guides_where(lambda guide: "beta" in guide.weights),
    )
    gamma: tuple[float, ...] = option(
        (1.0,),
        "weight of any other guide",
        grid=True,
        methods=_guides_where(lambda guide: "gamma" in guide.weights),
    )
    layers: tuple[int, ...] = option(
        (),
        "guided layers, counted from 0; empty guides all layers",
        methods=_guides_where(lambda guide: bool(guide.terms)),
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
        4096, "number of most frequent tokens with pointwise mutual information", methods=("pmi",)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(0, "alpha", "beta", "gamma", "layers")
        self.require_at_least(1, "pmi_tokens")
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
        ("none",), "guides to compare, one run each", choices=tuple(GUIDES), changes_result=False
    )
    data: FineTuningData = FineTuningData()
    model: PretrainedModelConfig = PretrainedModelConfig()
    guiding: GuidingConfig = GuidingConfig()


class Guidance:
    """Auxiliary losses on the attention in one run, and the arrays that these losses need.

    Args:
      config: Options of the run. The only entry of `methods` is the name of a guide, which is a set
        of auxiliary losses.
      tokenizer: Tokenizer of the pre-trained model.
      per_example: Function that converts a loss with one value per text into a loss with one value
        per example.
    """

    def __init__(
        self,
        config: FineTuningConfig,
        tokenizer: Tokenizer,
        per_example: Callable[[Loss], Loss] = lambda loss: loss,
    ):
        self._guide = GUIDES[config.method]
        options = guide_options(config.guiding, tokenizer)
        self._single_layer = options.single_layer
        self.losses = {
            name: per_example(loss) for name, loss in self._guide.losses(options).items()
        }

    @property
    def outputs(self) -> dict[str, bool]:
        """Keyword arguments that make the model return the attention arrays that `losses` need."""
        return {"received": self._guide.received, "weights": self._guide.maps}

    def weighted_losses(self, setting: Setting) -> Mapping[str, WeightedLoss]:
        """Return the auxiliary losses on the attention by name, each with its weight.

        Args:
          setting: Hyperparameters of the model, which include the weights.
        """
        return self._guide.weigh(self.losses, setting, single_layer=self._single_layer)

    def select_constants(self, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the constant arrays that the auxiliary losses of this run need."""
        return {name: constants[name] for name in self._guide.constants if constants}

    def select_columns(self, table: Table) -> Table:
        """Return a copy of the training table without the columns that only other guides need."""
        unused = {name for guide in GUIDES.values() for name in guide.columns}
        unused -= set(self._guide.columns)
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


class EncoderTexts(NamedTuple):
    """Texts of a split for a pre-trained encoder.

    Attributes:
      first: First text of every pair, or all texts if the texts are not paired.
      second: Second text of every pair. `second` is None if the texts are not paired.
      counts: Number of consecutive texts or pairs that form each example. `counts` is None if every
        text or pair is a separate example.
      answers: Columns that the model predicts, and columns that the baseline needs, by name.
    """

    first: Sequence[str]
    second: Sequence[str] | None
    counts: Sequence[int] | None
    answers: Mapping[str, np.ndarray | Ragged]


ReadTexts = Callable[[TextBuilder, str, FineTuningData], EncoderTexts]


def check(config: FineTuningConfig) -> None:
    """Raise an error if a required path is missing in the config.

    Also raise an error if the config exceeds the limits of the pre-trained model.
    """
    if not config.model.pretrained:
        raise DataError(
            f"the task {config.task} needs --model.pretrained, the folder or hub name of a "
            "pre-trained model."
        )
    for method, name in (("dependency", "parses"), ("word_similarity", "vectors")):
        if method in config.methods and not getattr(config.data, name):
            raise DataError(f"the guide {method} needs --data.{name}; got none.")
    pretrained_source.check_fits(config)


def prepare_fine_tuning(
    config: FineTuningConfig,
    read_texts: ReadTexts,
    *,
    read_labels: Callable[[TextBuilder], tuple[str, ...]] = lambda dataset: (),
) -> PreparedData:
    """Prepare a data set and load the parameters of a pre-trained model.

    Args:
      config: Config of the experiment.
      read_texts: Function that returns the texts of one split.
      read_labels: Function that returns the names of the classes.
    """
    check(config)
    dataset = open_dataset(config.data)
    folder = models.resolve_folder(config.model.pretrained)
    tokenizer = load_pretrained_tokenizer(folder)
    sizes = pretrained_source.read_sizes(config.model.pretrained)
    if tokenizer.get_vocab_size() > sizes.vocabulary:
        raise DataError(
            f"{folder}: the tokenizer must have at most the {sizes.vocabulary} tokens of the "
            f"model; got {tokenizer.get_vocab_size()}."
        )
    texts = {split: read_texts(dataset, split, config.data) for split in SPLITS}
    tables, truncated = {}, {}
    for split in SPLITS:
        tables[split], truncated[split] = make_table(texts[split], tokenizer, config.data.longest)
    lengths = _text_lengths(tables["train"])
    tables["train"], constants = _add_guide_columns(
        config, texts["train"], tokenizer, tables["train"]
    )
    source = pretrained_source.describe_source(config.model.pretrained, sizes)
    labels = read_labels(dataset)
    about, messages = describe_data(
        config.data,
        dataset,
        tokenizer,
        tables,
        labels=labels,
        average_length=float(lengths.mean()),
        sequence_lengths={"text": float(lengths.mean())},
        messages=(
            f"{truncated['train']} of the texts of train are cut to {config.data.longest} tokens",
            f"{source['name']}: {sizes.family}, {sizes.layers} layers of {sizes.heads} heads, "
            f"stored as {' and '.join(source['stored'])}",
        ),
        pretrained=source,
    )
    parameters = models.read_parameters(folder, sizes).items()
    return PreparedData(
        config,
        tokenizer,
        tables,
        about,
        messages,
        labels,
        {("encoder", *path): array for path, array in parameters},
        constants,
    )


def make_table(texts: EncoderTexts, tokenizer: Tokenizer, longest: int) -> tuple[Table, int]:
    """Return a table of the token ids and the columns of `texts.answers`.

    Args:
      texts: Texts of one split.
      tokenizer: Tokenizer of the pre-trained model.
      longest: Maximum number of tokens of a text or pair.

    Returns:
      The table, and the number of truncated texts.
    """
    encoded = encode_pairs(tokenizer, texts.first, texts.second, longest)
    columns = {name: _group(encoded.columns[name], texts, longest) for name in COLUMNS}
    return Table({**columns, **texts.answers}), encoded.truncated


def sample_rows(count: int, split: str, config: FineTuningData) -> Sequence[int]:
    """Return the indices of the rows of a split that are used.

    In the split `train`, a random fraction `config.share` of the rows is used, and the rows of a
    smaller fraction are a subset of the rows of a larger fraction. In other splits, all rows are
    used.

    Args:
      count: Number of rows of the split.
      split: Name of the split.
      config: Options of the data, with the fraction and the seed.
    """
    if split != "train" or config.share == 1:
        return range(count)
    order = random.Random(f"share {config.seed}").sample(range(count), count)
    return sorted(order[: max(round(config.share * count), 1)])


def _add_guide_columns(
    config: FineTuningConfig, texts: EncoderTexts, tokenizer: Tokenizer, table: Table
) -> tuple[Table, dict[str, np.ndarray]]:
    """Add the columns that the auxiliary attention losses (guides) of a config need.

    Pointwise mutual information is computed from the tokenized texts or pairs. In claim ranking,
    the words of a claim are therefore counted once for each of its candidates.

    Args:
      config: Config of the experiment.
      texts: Texts of the training set.
      tokenizer: Tokenizer of the pre-trained model.
      table: Training table.

    Returns:
      The table with the added columns, and constant arrays that the losses need in addition to a
      batch.
    """
    constants: dict[str, np.ndarray] = {}
    if "pmi" in config.methods:
        tokens = table.columns["tokens"]
        every_text = tokens.inner if isinstance(tokens, Nested) else tokens
        assert isinstance(every_text, Ragged)
        found = count_pmi(every_text, tokenizer.get_vocab_size(), size=config.guiding.pmi_tokens)
        constants |= {"pmi_row_of_token": found.row_of_token, "pmi_values": found.values}
    names = [name for method in config.methods for name in GUIDES[method].columns]
    if not names:
        return table, constants
    rows = None
    if "vectors" in names:
        words = list_words(tokenizer, [*texts.first, *(texts.second or ())])
        rows, constants["word_vectors"] = load_word_vectors(config.data.vectors, words)
    encoded = encode_pairs(
        tokenizer,
        texts.first,
        texts.second,
        config.data.longest,
        parses=ParsedTexts(config.data.parses) if "heads" in names else None,
        vectors=rows,
    )
    longest = config.data.longest
    columns = {name: _group(encoded.columns[name], texts, longest) for name in names}
    return dataclasses.replace(table, columns={**table.columns, **columns}), constants


def _group(column: Ragged, texts: EncoderTexts, longest: int) -> Ragged | Nested:
    """Convert a column with one row per text or pair to a column with one row per example.

    Args:
      column: Column with one sequence per text or pair.
      texts: Texts of the split, with the number of texts or pairs of each example.
      longest: Maximum length of a sequence.
    """
    if texts.counts is None:
        return column
    # A multiple of 8 gives few different shapes, and so few compilations.
    width = min(longest, -(-int(column.lengths.max(initial=1)) // 8) * 8)
    return Nested.from_counts(column, texts.counts, width)


def _text_lengths(table: Table) -> np.ndarray:
    column = table.columns["tokens"]
    inner = column.inner if isinstance(column, Nested) else column
    assert isinstance(inner, Ragged)
    return inner.lengths


def _find_ids(tokenizer: Tokenizer, tokens: Sequence[str]) -> tuple[int, ...]:
    ids = (tokenizer.token_to_id(token) for token in tokens)
    return tuple(i for i in ids if i is not None)
