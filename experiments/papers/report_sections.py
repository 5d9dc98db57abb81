"""Sections that the reports on both papers contain: data, results of each seed, provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers import stored_results
from experiments.papers.comparison_tables import seeds_table
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    markdown_table,
    metric_title,
)
from experiments.papers.stored_results import SEARCHED

Contents = Mapping[str, Any]  # experiment -> its stored results, or None if it was not run


def data_table(
    contents: Contents, titles: Mapping[str, str], published: Mapping[str, Sequence[str]]
) -> str:
    """Return a Markdown table of the data sets: rows per split, classes, tokens per example.

    Each cell has the form "ours / published".

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      titles: Printed name of each experiment's data set. Experiments without a name are omitted.
      published: Five published numbers by experiment, one per column. Experiments may be missing.
    """
    header = ["data set", "train", "validation", "test", "classes", "tokens per example"]
    rows = []
    for name, title in titles.items():
        ours, content = [EMPTY] * 5, contents[name]
        if content is not None:
            about = content["data"]
            counts = (f"{about['rows'][split]:,}" for split in ("train", "validation", "test"))
            classes = str(about.get("classes") or EMPTY)  # A ranking task has no classes.
            ours = [*counts, classes, f"{about['average_length']:.1f}"]
        theirs = published.get(name, (EMPTY,) * 5)
        rows.append([title, *(f"{a} / {b}" for a, b in zip(ours, theirs, strict=True))])
    return markdown_table(header, rows)


def describe_training_rows(
    contents: Contents, titles: Mapping[str, str], published: Mapping[str, Sequence[str]]
) -> str:
    """Return the number of training rows of each data set as text, such as "SST 6,920 / 8k".

    The first number is ours, the second is the published one.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      titles: Printed name of each experiment's data set.
      published: Published numbers by experiment. The first is the number of training rows.
    """
    counts = []
    for name, title in titles.items():
        ours = NOT_RUN if contents[name] is None else f"{contents[name]['data']['rows']['train']:,}"
        counts.append(f"{title} {ours} / {published.get(name, (EMPTY,))[0]}")
    return ", ".join(counts)


def data_messages(contents: Contents, titles: Mapping[str, str]) -> str:
    """Return a Markdown list of the messages from the preparation of each data set."""
    lines = [
        f"- {title}: {'; '.join(read_messages(contents[name]))}."
        for name, title in titles.items()
        if contents[name] is not None
    ]
    return "\n".join(lines)


def read_messages(content: Mapping[str, Any]) -> list[str]:
    """Return the messages about the data of an experiment, from the entry "messages" or "said"."""
    about = content["data"]
    return about.get("messages", about.get("said", []))


def seed_tables(contents: Contents) -> list[str]:
    """Return, for every experiment, a heading and a Markdown table with the result of each seed."""
    parts = []
    for name, content in contents.items():
        if content is not None:
            results = stored_results.select_results(content, tuple(content["runs"]))
            criterion = metric_title(results[0]["criterion"])
            parts += [f"{name}, {criterion}, validation / test:", seeds_table(results)]
    return parts


def provenance_table(
    contents: Contents,
    folder: stored_results.AnyPath,
    *,
    searches: Sequence[str] = (SEARCHED,),
    sharing: str = "other runs shared the device",
) -> str:
    """Return a Markdown table with device, versions, commit, steps and minutes of every run.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      folder: Folder of the stored results.
      searches: Suffixes of the names of hyperparameter searches. Searches are the first rows.
      sharing: End of the note above the table. It says whether other runs used the device as well.
    """
    found = [
        stored_results.read_results(name + suffix, folder)
        for suffix in searches
        for name in contents
    ]
    rows = [
        _provenance_row(content["experiment"], method, run)
        for content in filter(None, [*found, *contents.values()])
        for method, run in content["runs"].items()
    ]
    header = ["run", "device", "versions", "commit", "models", "steps", "steps/s", "minutes"]
    note = f"Steps/s and minutes include compilation and validation; {sharing}."
    return "\n\n".join([note, markdown_table(header, rows)]) if rows else NOT_RUN_SENTENCE


def _provenance_row(experiment: str, method: str, run: Mapping[str, Any]) -> list[str]:
    """Return the row of the provenance table for one run, as a list of cells.

    Cells are empty if the run was collected without its environment or its times.
    """
    machine = [EMPTY] * 3
    if run["environment"] is not None:
        environment, packages = run["environment"], run["environment"]["packages"]
        commit, *suffix = (environment["commit"] or EMPTY).split("-")  # 40 digits, or digits-dirty
        versions = f"jax {packages['jax']}, flax {packages['flax']}"
        machine = [environment["device"], versions, "-".join([commit[:10], *suffix])]
    steps, times = run["result"]["steps"], [EMPTY] * 2
    if run["seconds"]:
        rate = steps / run["seconds"]
        speed = f"{rate:.0f}" if rate >= 0.5 else f"{rate:.1g}"
        times = [speed, f"{run['seconds'] / 60:.1f}"]
    models = str(len(run["result"]["members"]))
    return [f"{experiment}/{method}", *machine, models, str(steps), *times]
