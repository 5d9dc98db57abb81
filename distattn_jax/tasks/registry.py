"""All tasks, and functions that make a trainer from a config."""

from typing import Any

from jax.sharding import Mesh

from distattn_jax.data import DataError
from distattn_jax.names import suggest
from distattn_jax.tasks.claim_ranking import ClaimRanking
from distattn_jax.tasks.documents import DocumentClassification, DocumentRegression
from distattn_jax.tasks.language_modeling import LanguageModeling
from distattn_jax.tasks.news_recommendation import NewsRecommendation
from distattn_jax.tasks.preparation import PreparedData, open_dataset, read_labels
from distattn_jax.tasks.pretrained_classification import PretrainedClassification
from distattn_jax.tasks.tagging import Tagging
from distattn_jax.tasks.text_classification import PairClassification, TextClassification
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.tasks.translation import Translation
from distattn_jax.train import Config, Run, Trainer, open_run

TASKS: list[type[TextTask]] = [
    TextClassification,
    PairClassification,
    DocumentClassification,
    DocumentRegression,
    NewsRecommendation,
    PretrainedClassification,
    ClaimRanking,
    LanguageModeling,
    Tagging,
    Translation,
]


def find_task(name: str) -> type[TextTask]:
    """Return the class of a task.

    Raise `ValueError` if the name is unknown. The error message suggests a known name.
    """
    known = {task.config_class.task: task for task in TASKS}
    if name not in known:
        raise ValueError(f"unknown task {name!r}: {suggest(name, known)}")
    return known[name]


def prepare(config: Config) -> PreparedData:
    """Prepare the data that all runs of an experiment share.

    Raises:
      ValueError: Devices shall share the tokens of a text, but the task does not allow it.
    """
    task = find_task(config.task)
    if config.mesh.sequence > 1 and not task.layout.token_columns:
        allowed = ", ".join(one.config_class.task for one in TASKS if one.layout.token_columns)
        raise ValueError(
            f"--mesh.sequence must be 1 for the task {config.task}; got {config.mesh.sequence}. "
            f"Tasks whose texts can be shared by devices: {allowed}."
        )
    return task.prepare(config)


def make_task(config: Config, prepared: PreparedData) -> TextTask:
    """Return the task of one run.

    Args:
      config: Config of the run, with exactly one entry in `methods`.
      prepared: Data of the experiment.
    """
    return find_task(config.task)(
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
    """Return the folder of a run. Create the folder if it does not exist.

    A new folder contains all files that are needed to load a model of the run, except for the
    checkpoints.
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
