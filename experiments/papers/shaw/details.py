"""Full report on relative positions (Shaw et al. 2018): searches, single seeds, provenance."""

from collections.abc import Mapping
from typing import Any

from experiments.papers import report_sections, stored_results
from experiments.papers.comparison_tables import settings_table
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN_SENTENCE,
    format_value,
    markdown_table,
    method_title,
    metric_title,
)
from experiments.papers.shaw import tables
from experiments.papers.shaw.settings import DATA_SETS, SIZES, experiment_name
from experiments.papers.stored_results import SEARCHED

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run
SCORES = ("bleu", "bleu_lowercase", "chrf")


def list_details(contents: Contents, stored: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return Markdown parts: data, searches, the scores of every seed, signatures and provenance.

    Args:
      contents: Results by experiment. The value is None if the experiment was not run.
      stored: Results as they are stored, before runs with several kinds of positions are split.
      folder: Folder of the stored results.
    """
    return [
        "### Data",
        *_describe_data(contents),
        "### Table 1",
        tables.positions_table(contents),
        "### Table 2",
        tables.distances_table(contents),
        "### Table 3",
        tables.ablation_table(contents),
        tables.differences_table(contents),
        "### Hyperparameter search",
        *_write_searches(folder),
        "### Every seed",
        _seeds_table(contents),
        _list_signatures(contents),
        "### Runs",
        report_sections.provenance_table(stored, folder),
    ]


def _describe_data(contents: Contents) -> list[str]:
    """Return a table of the number of pairs of each split, and the messages of the preparation."""
    found = {
        title: next(filter(None, (contents[experiment_name(data, size)] for size in SIZES)), None)
        for data, title in DATA_SETS.items()
    }
    splits = ("train", "validation", "test")
    rows = []
    for title, content in found.items():
        counts = (content or {}).get("data", {}).get("rows", {})
        rows.append(
            [title, *(f"{counts[split]:,}" if split in counts else EMPTY for split in splits)]
        )
    return [
        markdown_table(["pairs", *splits], rows),
        report_sections.data_messages(found, {title: title for title in found}),
    ]


def _write_searches(folder: stored_results.AnyPath) -> list[str]:
    """Return a Markdown table of all settings of the hyperparameter search of each experiment."""
    parts = []
    for data in DATA_SETS:
        for size in SIZES:
            name = experiment_name(data, size) + SEARCHED
            content = stored_results.read_results(name, folder)
            parts.append(f"{name}: not searched." if content is None else f"{name}:")
            if content is not None:
                parts.append(
                    settings_table(stored_results.select_results(content, list(content["runs"])))
                )
    return parts


def _seeds_table(contents: Contents) -> str:
    """Return a Markdown table with one row per trained model: validation loss and test scores."""
    rows = []
    for name, content in contents.items():
        for method, run in (content or {}).get("runs", {}).items():
            result = run["result"]
            criterion = result["criterion"]
            losses = tables.values_by_seed(result, "validation", criterion)
            scores = {metric: tables.values_by_seed(result, "test", metric) for metric in SCORES}
            for seed, loss in losses.items():
                cells = [
                    format_value(metric, values[seed]) if seed in values else EMPTY
                    for metric, values in scores.items()
                ]
                row = [name, method_title(method), str(seed), format_value(criterion, loss)]
                rows.append([*row, *cells])
    header = ["experiment", "method", "seed", "validation loss", *map(metric_title, SCORES)]
    return markdown_table(header, rows) if rows else NOT_RUN_SENTENCE


def _list_signatures(contents: Contents) -> str:
    """Return the signatures of sacrebleu, and the settings of the decoding, as a Markdown list."""
    found: dict[str, None] = {}
    for content in contents.values():
        for method in (content or {}).get("runs", {}):
            about = tables.find_translation(content, method)
            if about:
                for metric, signature in about.get("signatures", {}).items():
                    found[f"- {metric_title(metric)}: `{signature}`"] = None
                average = about["average"]
                found[
                    f"- Decoding: beam {about['beam']}, length penalty {about['length_penalty']}, "
                    + (f"mean of {average} checkpoints" if average else "best checkpoint")
                ] = None
    return "\n".join(found)
