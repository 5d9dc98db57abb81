"""Preparation of data for training: data set, tokenizer, tables, initial embeddings."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from distattn_jax import datasets
from distattn_jax.data import (
    TOKENIZERS,
    DataError,
    Ragged,
    Table,
    TextBuilder,
    encode,
    iterate_split,
    load_embeddings,
    load_split,
)
from distattn_jax.train import Config, DataConfig
from distattn_jax.train.run import experiment_folder

SPLITS = ("train", "validation", "test")


class TextLengths(NamedTuple):
    """Lengths of the texts of a data set.

    Attributes:
      average: Mean number of tokens of a training example, before truncation.
      means: Dict from the name of an encoder to the mean length of its input sequences.
      longest: Dict from the name of an encoder to the largest length of its input sequences, after
        truncation.
    """

    average: float
    means: dict[str, float]
    longest: dict[str, int]


@dataclasses.dataclass(frozen=True, eq=False)
class PreparedData:
    """Data that all runs of an experiment share.

    Attributes:
      config: Config of the experiment, completed with sizes that depend on the data.
      tokenizer: Tokenizer that converts texts to token ids.
      tables: Dict from split to its examples.
      about: Description of the data, for data.json of a run.
      messages: Lines to print about the data.
      labels: Names of the classes.
      initial_parameters: Dict from parameter path to initial value. Parameters that are not listed
        start with random values.
      constants: Dict of arrays that the training losses need in addition to a batch.
    """

    config: Config
    tokenizer: Tokenizer
    tables: Mapping[str, Any]
    about: Mapping[str, Any]
    messages: tuple[str, ...]
    labels: tuple[str, ...] = ()
    initial_parameters: Mapping[tuple[str | int, ...], np.ndarray] = dataclasses.field(
        default_factory=dict
    )
    constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> dict[str, str]:
        """Text files that are needed to load a trained model: a dict from file name to content."""
        return {
            "labels.json": json.dumps(list(self.labels)),
            "tokenizer.json": self.tokenizer.to_str(pretty=True),
        }


def open_dataset(config: DataConfig) -> TextBuilder:
    """Return the builder of the configured data set, and prepare its files if necessary."""
    name, folder = config.dataset, config.manual_dir
    builder = getattr(datasets, datasets.DATASETS[name])
    if builder.REQUIRED_FILES and not folder:
        raise DataError(
            f"the data set {name} needs --data.manual-dir, a folder with {builder.REQUIRED_FILES}."
        )
    opened = builder(data_dir=config.directory, **({"manual_dir": folder} if folder else {}))
    opened.prepare()
    return opened


def read_examples(dataset: TextBuilder, split: str) -> list[dict[str, Any]]:
    """Return all examples of a split. Raise `DataError` if the split is empty."""
    rows = load_split(dataset, split)
    if not rows:
        raise DataError(f"the split {split!r} of {dataset.name} has no examples.")
    return rows


def read_labels(dataset: TextBuilder) -> tuple[str, ...]:
    """Return the names of the classes of a data set."""
    return tuple(dataset.info.features["label"].names)


def label_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return a dict with the column `label`: the class index of every example."""
    return {"label": np.asarray([row["label"] for row in rows], np.int32)}


def encode_fields(
    rows: Sequence[Mapping[str, Any]], fields: Sequence[str], tokenizer: Tokenizer
) -> dict[str, Ragged]:
    """Return a dict from the name of each text field to the column of its token ids."""
    return {field: encode(tokenizer, [row[field] for row in rows]) for field in fields}


def iterate_training_texts(dataset: TextBuilder, fields: Sequence[str]) -> Iterator[str]:
    """Yield the texts of every training example, one for each name in `fields`."""
    for row in iterate_split(dataset, "train"):
        yield from (row[field] for field in fields)


def train_tokenizer(texts: Iterable[str], config: Any) -> Tokenizer:
    """Train a tokenizer on texts, with the kind and the vocabulary size given in `config`."""
    if config.tokenizer == "word_level":
        arguments = {"min_count": config.min_count, "max_size": config.vocabulary}
    else:
        arguments = {"size": config.vocabulary}
    return TOKENIZERS[config.tokenizer](texts, **arguments)


def initial_embeddings(config: Any, tokenizer: Tokenizer) -> tuple[Any, np.ndarray | None, str]:
    """Load pre-trained word vectors as initial embeddings.

    Returns:
      A tuple (config, embeddings, message). In the returned config, the embedding width is the
      width E of the vectors. The embeddings have shape (V, E), for V tokens in the vocabulary. The
      message is a line to print. If `config.data.vectors` is empty, the config is unchanged and the
      embeddings are None.
    """
    if not config.data.vectors:
        message = "no word vectors given (--data.vectors): embeddings start random"
        return config, None, message
    folder = experiment_folder(config)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    vectors, found = load_embeddings(
        config.data.vectors,
        [word for word, _ in vocabulary],
        seed=config.data.seed,
        cache=None if "://" in str(folder) else str(folder / "vectors.npz"),
    )
    message = f"word vectors for {found} of {len(vocabulary)} tokens; the rest are random"
    model = dataclasses.replace(config.model, embedding_features=vectors.shape[1])
    return dataclasses.replace(config, model=model), vectors, message


def describe_prepared(
    config: Any,
    dataset: TextBuilder,
    tokenizer: Tokenizer,
    tables: Mapping[str, Any],
    *,
    lengths: TextLengths,
    messages: Sequence[str],
    labels: tuple[str, ...] = (),
    pretrained: Mapping[str, Any] | None = None,
    **fields: Any,
) -> PreparedData:
    """Describe the data of an experiment, and return the data together with the description.

    Args:
      config: Config of the experiment.
      dataset: Builder of the data set.
      tokenizer: Tokenizer of the experiment.
      tables: Dict from split to its examples.
      lengths: Lengths of the texts.
      messages: Lines to print after the lines about the data set.
      labels: Names of the classes.
      pretrained: Description of the pre-trained model; None if there is none.
      **fields: `initial_parameters` and `constants` of `PreparedData`.
    """
    vocabulary = tokenizer.get_vocab_size()
    counts = ", ".join(f"{len(table)} {split}" for split, table in tables.items())
    warnings = dataset.describe_repeats()
    lines = (
        f"{config.data.dataset}: {counts}; {vocabulary} tokens in the vocabulary",
        *dataset.describe_rows(),
        *messages,
        *warnings,
    )
    digests = {"raw files of the data": dataset.digest}
    about: dict[str, Any] = {
        "dataset": config.data.dataset,
        "rows": {split: len(table) for split, table in tables.items()},
        "classes": len(labels),
        "average_length": lengths.average,
        "sequence_lengths": lengths.means,
        "longest_sequences": lengths.longest,
        "vocabulary": vocabulary,
    }
    if pretrained is not None:
        about["pretrained"] = dict(pretrained)
        digests["pre-trained weights"] = pretrained["digest"]
    repeats = [dataclasses.asdict(each) for each in dataset.repeats]
    about |= {
        "digests": digests,
        "messages": list(lines),
        "repeats": repeats,
        "warnings": warnings,
    }
    return PreparedData(config, tokenizer, tables, about, lines, labels, **fields)


def describe_long_examples(
    dataset: TextBuilder,
    tables: Mapping[str, Table],
    columns: tuple[str, ...],
    longest: int,
    *,
    name: str,
    unit: str,
) -> list[str]:
    """Return messages about the examples that are longer than `longest`.

    Long examples were left out of the training set. The other splits contain long examples without
    truncation, because the metrics count every word.

    Args:
      dataset: Builder of the data set.
      tables: Dict from split to its examples.
      columns: Names of sequence columns. The length of an example is that of its longest sequence.
      longest: Largest length of a training example.
      name: Plural noun for the examples, e.g. "sentences".
      unit: Unit of the lengths, e.g. "words".
    """
    reason = f"with more than {longest} {unit} (--data.longest)"
    left_out = dataset.info.splits["train"].num_examples - len(tables["train"])
    lines = [f"left out: {left_out:,} {name} of train {reason}"] if left_out else []
    for split in SPLITS[1:]:
        kept = int((tables[split].lengths(columns) > longest).sum())
        if kept:
            lines.append(f"kept whole: {kept:,} {name} of {split} {reason}")
    return lines
