"""The tasks by name, from their data to what the training takes."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from tokenizers import Tokenizer

from distattn_jax.data import (
    TOKENIZERS,
    AgNews,
    Amazon,
    DataError,
    Mind,
    MindLarge,
    Nearest,
    Snli,
    Sst,
    TextBuilder,
    TextFiles,
    load_vectors,
)
from distattn_jax.train.classification import (
    DocumentClassification,
    PairClassification,
    TextClassification,
)
from distattn_jax.train.config import Config, DataConfig
from distattn_jax.train.flags import nearest
from distattn_jax.train.recommendation import NewsRecommendation
from distattn_jax.train.regression import DocumentRegression
from distattn_jax.train.text_task import TextTask

NEEDS_FILES = {"text_files": "train, validation and test (.csv, .tsv or .jsonl; text and label)"}
SPLITS = ("train", "validation", "test")


class Kind(NamedTuple):
    """Where the examples of a task come from, and what is learned from them."""

    builder: type[TextBuilder]
    task: type[TextTask]


TASKS = {
    "nearest": Kind(Nearest, TextClassification),
    "text_files": Kind(TextFiles, TextClassification),
    "ag_news": Kind(AgNews, TextClassification),
    "sst": Kind(Sst, TextClassification),
    "snli": Kind(Snli, PairClassification),
    "amazon": Kind(Amazon, DocumentClassification),
    "amazon_rating": Kind(Amazon, DocumentRegression),
    "mind": Kind(Mind, NewsRecommendation),
    "mind_large": Kind(MindLarge, NewsRecommendation),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """The data of an experiment, the same for all of its methods.

    Attributes:
      labels: names of the classes.
      tokenizer: built on the training set.
      tables: the examples of each split.
      vectors: initial embeddings, or None.
      about: what is known of the data, for a file.
      said: lines about the data that a person should see.
    """

    labels: tuple[str, ...]
    tokenizer: Tokenizer
    tables: Mapping[str, Any]
    vectors: np.ndarray | None
    about: Mapping[str, Any]
    said: tuple[str, ...]


def prepare(config: Config) -> tuple[Config, Prepared]:
    """Reads or makes the data; the configuration comes back with what only the data could say."""
    builder, task = _builder(config), kind_of(config.task).task
    builder.prepare()
    tokenizer = _tokenizer(config.data, task.texts(builder))
    tables = {split: task.table(builder, split, tokenizer, config.data) for split in SPLITS}
    counted = ", ".join(f"{len(table)} {split}" for split, table in tables.items())
    said = [f"{config.task}: {counted}; {tokenizer.get_vocab_size()} tokens in the vocabulary"]
    said += builder.about_the_rows()
    said += task.about_the_table(tables["train"])
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
    labels = task.labels_of(builder)
    about = {
        "rows": {split: len(table) for split, table in tables.items()},
        "classes": len(labels),
        "average_length": task.average_length(tables["train"]),
        "sequence_lengths": task.sequence_lengths(tables["train"]),
        "raw_files": builder.digest,
        "vocabulary": tokenizer.get_vocab_size(),
        "said": said,
    }
    return config, Prepared(labels, tokenizer, tables, vectors, about, tuple(said))


def table_of(config: Config, split: str, *, tokenizer: Tokenizer, labels: tuple[str, ...]) -> Any:
    """The examples of one split, for a model that knows these tokens and labels."""
    builder, task = _builder(config), kind_of(config.task).task
    table = task.table(builder, split, tokenizer, config.data)
    if task.labels_of(builder) != labels:
        raise DataError(
            f"the model knows the labels {labels}; the data has {task.labels_of(builder)}."
        )
    return table


def task_of(config: Config, prepared: Prepared) -> TextTask:
    """The task of a run, of one method."""
    return kind_of(config.task).task(
        config.methods[0],
        config.model,
        labels=prepared.labels,
        tokenizer=prepared.tokenizer,
        tables=prepared.tables,
        vectors=prepared.vectors,
    )


def kind_of(name: str) -> Kind:
    """The task of this name; an unknown one says which is nearest."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}: {nearest(name, TASKS)}")
    return TASKS[name]


def directory_of(config: Config) -> epath.Path:
    """Where the runs of an experiment are kept, one folder for each method."""
    return epath.Path(config.output.directory) / config.name


def _builder(config: Config) -> TextBuilder:
    builder, folder = kind_of(config.task).builder, config.data.manual_dir
    if config.task in NEEDS_FILES and not folder:
        raise DataError(
            f"the task {config.task} needs --data.manual-dir, a folder with "
            f"{NEEDS_FILES[config.task]}."
        )
    return builder(data_dir=config.data.directory, **({"manual_dir": folder} if folder else {}))


def _cache(config: Config) -> str | None:
    """A file beside the runs, where these are in a local folder."""
    folder = directory_of(config)
    return None if "://" in str(folder) else str(folder / "vectors.npz")


def _tokenizer(config: DataConfig, texts: Iterable[str]) -> Tokenizer:
    if config.tokenizer == "word_level":
        arguments = {"min_count": config.min_count, "max_size": config.vocabulary}
    else:
        arguments = {"size": config.vocabulary}
    return TOKENIZERS[config.tokenizer](texts, **arguments)
