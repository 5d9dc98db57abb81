"""Definitions of all tasks by name, and functions that make a trainer from a config."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax.sharding import Mesh
from tokenizers import Tokenizer

from distattn_jax.data import DataError, TextBuilder
from distattn_jax.names import suggest
from distattn_jax.tasks import (
    claim_ranking,
    document_classification,
    document_regression,
    language_modeling,
    news_recommendation,
    pair_classification,
    pretrained_classification,
    tagging,
    text_classification,
    translation,
)
from distattn_jax.tasks.preparation import PreparedData, open_dataset, read_labels
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train import Config, Run, Trainer, open_run


class TaskDefinition(NamedTuple):
    """Classes and functions of one task.

    Attributes:
      config: Config class, with the options of the task.
      task: Task class, with the model, the loss and the metrics.
      prepare: Function that prepares the data of an experiment.
      read_table: Function that returns the examples of one split.
    """

    config: type[Config]
    task: type[TextTask]
    prepare: Callable[[Any], PreparedData]
    read_table: Callable[[Any, TextBuilder, str, Tokenizer], Any]


TASKS = {
    "text_classification": TaskDefinition(
        text_classification.TextClassificationConfig,
        text_classification.TextClassification,
        text_classification.prepare,
        text_classification.read_table,
    ),
    "pair_classification": TaskDefinition(
        pair_classification.PairClassificationConfig,
        pair_classification.PairClassification,
        pair_classification.prepare,
        pair_classification.read_table,
    ),
    "document_classification": TaskDefinition(
        document_classification.DocumentClassificationConfig,
        document_classification.DocumentClassification,
        document_classification.prepare,
        document_classification.read_table,
    ),
    "document_regression": TaskDefinition(
        document_regression.DocumentRegressionConfig,
        document_regression.DocumentRegression,
        document_regression.prepare,
        document_regression.read_table,
    ),
    "news_recommendation": TaskDefinition(
        news_recommendation.NewsRecommendationConfig,
        news_recommendation.NewsRecommendation,
        news_recommendation.prepare,
        news_recommendation.read_table,
    ),
    "pretrained_classification": TaskDefinition(
        pretrained_classification.PretrainedClassificationConfig,
        pretrained_classification.PretrainedClassification,
        pretrained_classification.prepare,
        pretrained_classification.read_table,
    ),
    "claim_ranking": TaskDefinition(
        claim_ranking.ClaimRankingConfig,
        claim_ranking.ClaimRanking,
        claim_ranking.prepare,
        claim_ranking.read_table,
    ),
    "language_modeling": TaskDefinition(
        language_modeling.LanguageModelingConfig,
        language_modeling.LanguageModeling,
        language_modeling.prepare,
        language_modeling.read_table,
    ),
    "tagging": TaskDefinition(
        tagging.TaggingConfig,
        tagging.Tagging,
        tagging.prepare,
        tagging.read_table,
    ),
    "translation": TaskDefinition(
        translation.TranslationConfig,
        translation.Translation,
        translation.prepare,
        translation.read_table,
    ),
}


def find_task(name: str) -> TaskDefinition:
    """Return the definition of a task.

    Raise `ValueError` if the name is unknown. The error message suggests a known name.
    """
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}: {suggest(name, TASKS)}")
    return TASKS[name]


def prepare(config: Config) -> PreparedData:
    """Prepare the data of an experiment, which all its runs share."""
    return find_task(config.task).prepare(config)


def make_task(config: Config, prepared: PreparedData) -> TextTask:
    """Return the task of one run.

    Args:
      config: Config of the run, with exactly one entry in `methods`.
      prepared: Data of the experiment.
    """
    return find_task(config.task).task(
        config,
        tokenizer=prepared.tokenizer,
        labels=prepared.labels,
        data=prepared.about,
        constants=prepared.constants,
    )


def make_trainer(
    config: Config, prepared: PreparedData, mesh: Mesh, *, steps: int | None = None
) -> Trainer:
    """Return the trainer of one run.

    Args:
      config: Config of the run, with exactly one entry in `methods`.
      prepared: Data of the experiment.
      mesh: Mesh of devices.
      steps: Number of training steps. If None, the number is defined by the config.
    """
    task = make_task(config, prepared)
    tables = {**prepared.tables, "train": task.select_columns(prepared.tables["train"])}
    return Trainer(task, tables, mesh, initial_parameters=prepared.initial_parameters, steps=steps)


def open_task_run(config: Config, prepared: PreparedData) -> Run:
    """Return a run. Create its folder if the folder does not exist.

    A new folder contains all files that are needed to load the model, except for the checkpoints.
    """
    return open_run(config, data=prepared.about, files=prepared.files)


def read_split(task: TextTask, split: str) -> Any:
    """Return the examples of a split of the task's data set, encoded with the task's tokenizer."""
    dataset = open_dataset(task.config.data)
    if task.labels and read_labels(dataset) != task.labels:
        raise DataError(
            f"the model knows the labels {task.labels}; the data has {read_labels(dataset)}."
        )
    return find_task(task.config.task).read_table(task.config, dataset, split, task.tokenizer)
