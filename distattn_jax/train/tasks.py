"""The tasks by name, from their data to what the training takes."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath
from tokenizers import Tokenizer

from distattn_jax.data import DataError, TextBuilder
from distattn_jax.datasets import (
    AgNews,
    Amazon,
    CovidFact,
    CrossGenre,
    MedNli,
    Mind,
    MindLarge,
    MultiNli,
    Nearest,
    Snli,
    Sst,
    TextFiles,
)
from distattn_jax.train.classification import (
    DocumentClassification,
    PairClassification,
    TextClassification,
)
from distattn_jax.train.config import Config
from distattn_jax.train.flags import nearest
from distattn_jax.train.pretrained_classification import (
    PretrainedClassification,
    PretrainedTextClassification,
)
from distattn_jax.train.pretrained_ranking import PretrainedRanking
from distattn_jax.train.recommendation import NewsRecommendation
from distattn_jax.train.regression import DocumentRegression
from distattn_jax.train.text_task import TextTask

TEXT_FILES = "train, validation and test (.csv, .tsv or .jsonl; text and label)"
NEEDS_FILES = {
    "text_files": TEXT_FILES,
    "pretrained_text_files": TEXT_FILES,
    "mednli": "mli_train_v1.jsonl, mli_dev_v1.jsonl and mli_test_v1.jsonl",
    "cross_genre": "claims, papers and pairs (.jsonl, .csv or .tsv)",
}
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
    "multinli": Kind(MultiNli, PretrainedClassification),
    "mednli": Kind(MedNli, PretrainedClassification),
    "cross_genre": Kind(CrossGenre, PretrainedRanking),
    "covid_fact": Kind(CovidFact, PretrainedRanking),
    "pretrained_text_files": Kind(TextFiles, PretrainedTextClassification),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """The data of an experiment, the same for all of its methods.

    Attributes:
      labels: names of the classes.
      tokenizer: built on the training set, or that of a pre-trained model.
      tables: the examples of each split.
      arguments: what else the task takes.
      about: what is known of the data, for a file.
      said: lines about the data that a person should see.
    """

    labels: tuple[str, ...]
    tokenizer: Tokenizer
    tables: Mapping[str, Any]
    arguments: Mapping[str, Any]
    about: Mapping[str, Any]
    said: tuple[str, ...] = ()


def prepare(config: Config) -> tuple[Config, Prepared]:
    """Reads or makes the data; the configuration comes back with what only the data could say."""
    task = kind_of(config.task).task
    task.check(config)
    builder = _builder(config)
    builder.prepare()
    tokenizer = task.tokenizer_of(builder, config)
    tables = {split: task.table(builder, split, tokenizer, config.data) for split in SPLITS}
    counted = ", ".join(f"{len(table)} {split}" for split, table in tables.items())
    said = [f"{config.task}: {counted}; {tokenizer.get_vocab_size()} tokens in the vocabulary"]
    said += builder.describe_rows()
    said += task.about_the_table(tables["train"])
    own = task.own(config, builder, tokenizer, tables, folder=directory_of(config))
    said += own.said
    labels = task.labels_of(builder)
    about = {
        "rows": {split: len(table) for split, table in tables.items()},
        "classes": len(labels),
        "average_length": task.average_length(tables["train"]),
        "sequence_lengths": task.sequence_lengths(tables["train"]),
        "raw_files": builder.digest,
        "vocabulary": tokenizer.get_vocab_size(),
        **own.about,
        "said": said,
    }
    return own.config, Prepared(labels, tokenizer, own.tables, own.arguments, about, tuple(said))


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
        **prepared.arguments,
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
