"""Full report on where distance helps: commands, settings, positions, heads, seeds, provenance."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.papers import report_sections, stored_results
from experiments.papers.comparison_tables import settings_table
from experiments.papers.formatting import NOT_RUN_SENTENCE, markdown_table, method_title
from experiments.papers.when_to_use import tables
from experiments.papers.when_to_use.settings import EXPERIMENTS, LENGTHS

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run


def list_details(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return Markdown parts: commands, data, settings, positions, heads, seeds and provenance.

    Args:
      contents: Results by experiment. The value is None if the experiment was not run.
      folder: Folder of the stored results.
    """
    titles = {name: experiment.title for name, experiment in EXPERIMENTS.items()}
    commands = [one.command(name) for name, one in EXPERIMENTS.items()]
    parts = [
        "### Commands",
        "\n".join(["```bash", *commands, "```"]),
        "### Data",
        report_sections.data_messages(contents, titles) or NOT_RUN_SENTENCE,
    ]
    if not any(contents.values()):
        return parts
    parts.append("### All settings")
    for name, content in contents.items():
        if content is not None:
            results = stored_results.select_results(content, tuple(content["runs"]))
            parts += [f"{name}:", settings_table(results)]
    return [
        *parts,
        "### Perplexity by position",
        positions_table(contents),
        "### What do heads learn?",
        tables.layers_table(contents),
        "### What does it cost to prune heads of DA-Transformer? (validation set)",
        tables.pruning_table(contents),
        "### Every seed",
        *report_sections.seed_tables(contents),
        "### Runs",
        report_sections.provenance_table(contents, folder, searches=()),
    ]


def positions_table(contents: Contents) -> str:
    """Return a Markdown table of the perplexity by position in the longest texts."""
    measured = tables.list_measured(contents)
    if not measured:
        return NOT_RUN_SENTENCE
    found = {
        method: contents[tables.LANGUAGE_MODEL]["perplexity"][method]["lengths"][str(LENGTHS[-1])]
        for method in measured
    }
    starts = found[measured[0]]["starts"]
    rows = [
        [method_title(method), *(f"{mean:.1f}" for mean in np.mean(one["by_position"], axis=0))]
        for method, one in found.items()
    ]
    return markdown_table(["method", *(f"from {start}" for start in starts)], rows)
