"""The tasks by name, from their data to what the training takes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from etils import epath
from tokenizers import Tokenizer

from distattn_jax.data import (
    TOKENIZERS,
    DataError,
    Nearest,
    Table,
    TextFiles,
    encode,
    load_split,
    load_vectors,
)
from distattn_jax.train.classification import TextClassification
from distattn_jax.train.config import Config, DataConfig
from distattn_jax.train.flags import nearest

BUILDERS = {"nearest": Nearest, "text_files": TextFiles}
NEEDS_FILES = {"text_files": "train, validation and test (.csv, .tsv or .jsonl; text and label)"}
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """The data of an experiment, the same for all of its methods.

    Attributes:
      labels: names of the classes.
      tokenizer: built on the training set.
      tables: the examples of each split.
      vectors: initial embeddings, or None.
      said: lines about the data that a person should see.
    """

    labels: tuple[str, ...]
    tokenizer: Tokenizer
    tables: Mapping[str, Table]
    vectors: np.ndarray | None
    said: tuple[str, ...]


def prepare(config: Config) -> tuple[Config, Prepared]:
    """Reads or makes the data; the configuration comes back with what only the data could say."""
    builder = _builder(config)
    texts = [row["text"] for row in load_split(builder, "train")]
    tokenizer = _tokenizer(config.data, texts)
    tables = {split: _table(builder, split, tokenizer) for split in SPLITS}
    counted = ", ".join(f"{len(table)} {split}" for split, table in tables.items())
    said = [f"{config.task}: {counted}; {tokenizer.get_vocab_size()} tokens in the vocabulary"]
    vectors = None
    if config.data.vectors:
        vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        vectors, found = load_vectors(
            config.data.vectors,
            [word for word, _ in vocabulary],
            seed=config.data.seed,
            cache=_cache(config),
        )
        said.append(f"word vectors for {found} of {len(vocabulary)} tokens; the rest are random")
        width = dataclasses.replace(config.model, embedding_features=vectors.shape[1])
        config = dataclasses.replace(config, model=width)
    else:
        said.append("no word vectors given (--data.vectors): embeddings start random")
    return config, Prepared(_labels(builder), tokenizer, tables, vectors, tuple(said))


def table_of(config: Config, split: str, *, tokenizer: Tokenizer, labels: tuple[str, ...]) -> Table:
    """The examples of one split, for a model that knows these tokens and labels."""
    builder = _builder(config)
    table = _table(builder, split, tokenizer)
    if _labels(builder) != labels:
        raise DataError(f"the model knows the labels {labels}; the data has {_labels(builder)}.")
    return table


def task_of(config: Config, prepared: Prepared) -> TextClassification:
    """The task of a run, of one method."""
    return TextClassification(
        config.methods[0],
        config.model,
        labels=prepared.labels,
        tokenizer=prepared.tokenizer,
        tables=prepared.tables,
        vectors=prepared.vectors,
    )


def directory_of(config: Config) -> epath.Path:
    """Where the runs of an experiment are kept, one folder for each method."""
    return epath.Path(config.output.directory) / config.name


def _builder(config: Config) -> Any:
    if config.task not in BUILDERS:
        raise ValueError(f"unknown task {config.task!r}: {nearest(config.task, BUILDERS)}")
    files = {"data_dir": config.data.directory}
    if config.task in NEEDS_FILES:
        if not config.data.manual_dir:
            raise DataError(
                f"the task {config.task} needs --data.manual-dir, a folder with "
                f"{NEEDS_FILES[config.task]}."
            )
        files["manual_dir"] = config.data.manual_dir
    return BUILDERS[config.task](**files)


def _cache(config: Config) -> str | None:
    """A file beside the runs, where these are in a local folder."""
    folder = directory_of(config)
    return None if "://" in str(folder) else str(folder / "vectors.npz")


def _labels(builder: Any) -> tuple[str, ...]:
    return tuple(builder.info.features["label"].names)


def _table(builder: Any, split: str, tokenizer: Tokenizer) -> Table:
    rows = load_split(builder, split)
    if not rows:
        raise DataError(f"the split {split!r} of {builder.name} has no examples.")
    labels = np.asarray([row["label"] for row in rows], np.int32)
    return Table({"text": encode(tokenizer, [row["text"] for row in rows]), "label": labels})


def _tokenizer(config: DataConfig, texts: list[str]) -> Tokenizer:
    if config.tokenizer == "word_level":
        arguments = {"min_count": config.min_count, "max_size": config.vocabulary}
    else:
        arguments = {"size": config.vocabulary}
    return TOKENIZERS[config.tokenizer](texts, **arguments)
