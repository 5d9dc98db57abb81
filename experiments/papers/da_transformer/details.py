"""Full report on the DA-Transformer paper: all tables, searches, single seeds, provenance."""

from collections.abc import Mapping, Sequence
from typing import Any

from distattn_jax.train.results import group_by_setting
from experiments.papers import report_sections, stored_results
from experiments.papers.comparison_tables import compare_best_two, settings_table
from experiments.papers.da_transformer import head_tables, tables
from experiments.papers.da_transformer.published import DATA_SIZES
from experiments.papers.da_transformer.settings import ADJUSTMENTS, DATA_SETS, MAPPINGS, OURS, ROWS
from experiments.papers.formatting import NOT_RUN_SENTENCE, method_title
from experiments.papers.stored_results import SEARCHED

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run


def list_details(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return Markdown parts: all tables, all searches, the result of each seed, and provenance.

    Args:
      contents: Stored results by experiment. The value is None if the experiment was not run.
      folder: Folder of the stored results.
    """
    tried = {name: _count_settings(_search_name(name), folder) for name in contents}
    note = "The best model of each method on the first validation texts, up to 63 words."
    return [
        "### Table 1: data",
        "Ours / published.",
        report_sections.data_table(contents, DATA_SETS, DATA_SIZES),
        report_sections.data_messages(contents, DATA_SETS),
        "### Table 2: MIND",
        tables.mind_table(contents["mind"]),
        *_write_table("### Table 3: AG's News", contents["ag"], tried),
        *_write_table("### Table 3: Amazon Electronics", contents["amazon"], tried),
        *_write_table("### Table 4: SST", contents["sst"], tried),
        *_write_table("### Table 4: SNLI", contents["snli"], tried),
        *_write_table("### Table 5: MIND", contents["mind"], tried),
        *_write_table(
            "### Instead of Table 5: an artificial log, one seed", contents["mind_made_up"], tried
        ),
        *_write_table(
            "### Figure 3: ratings, Amazon Electronics", contents["amazon_rating"], tried
        ),
        *_write_ablation("### Figure 4: mappings", contents, MAPPINGS),
        *_write_ablation("### Figure 5: adjustments", contents, ADJUSTMENTS),
        "### Section 3.4: parameters and time",
        tables.cost_table(stored_results.read_results("speed", folder)),
        "### Footnote 7: the sign of w and the sequence length",
        head_tables.signs_table(contents),
        "### Attention by distance",
        note,
        head_tables.distances_table(contents),
        head_tables.flat_queries_table(contents),
        "### Hyperparameter search",
        *_write_searches(folder),
        "### Every seed",
        *report_sections.seed_tables(contents),
        "### Runs",
        report_sections.provenance_table(contents, folder),
    ]


def _write_table(
    heading: str, content: Mapping[str, Any] | None, tried: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """Return the Markdown paragraphs on one data set.

    The paragraphs are the heading, a table of all methods, a t-test of the best two methods, and
    a list of the methods that were not run.

    Args:
      heading: Markdown heading.
      content: Stored results of the experiment, or None if it was not run.
      tried: tried[experiment][method] is the number of hyperparameter settings that were tried.
    """
    if content is None:
        return [heading, NOT_RUN_SENTENCE]
    settings_tried = tried.get(content["experiment"])
    missing = [method_title(method) for method in ROWS if method not in content["runs"]]
    table = tables.methods_table(content, ROWS, settings_tried)
    parts = [heading, table, compare_best_two(stored_results.select_results(content, ROWS))]
    return parts + ([f"Not run: {', '.join(missing)}."] if missing else [])


def _write_ablation(heading: str, contents: Contents, methods: Sequence[str]) -> list[str]:
    """Return a heading and Markdown tables that compare DA-Transformer with its variants.

    Args:
      heading: Markdown heading.
      contents: Stored results by experiment. The value is None if the experiment was not run.
      methods: Names of the variants.
    """
    parts = [heading, "Tests use the seeds that both methods have."]
    for name in ("ag", "amazon", "mind"):
        content = contents[name]
        if content is None or not any(method in content["runs"] for method in methods):
            parts.append(f"{DATA_SETS[name]}: not run.")
        else:
            parts += [f"{DATA_SETS[name]}:", tables.methods_table(content, (OURS, *methods))]
    return parts


def _search_name(experiment: str) -> str:
    """Return the name of the experiment whose hyperparameter search `experiment` uses.

    Rating regression uses the search of rating classification.
    """
    return experiment.removesuffix("_rating")


def _count_settings(experiment: str, folder: stored_results.AnyPath) -> dict[str, int]:
    """Return the number of settings that the search tried, by method. {} if no search is stored."""
    content = stored_results.read_results(experiment + SEARCHED, folder)
    runs = {} if content is None else content["runs"]
    return {method: len(group_by_setting(run["result"])) for method, run in runs.items()}


def _write_searches(folder: stored_results.AnyPath) -> list[str]:
    """Return, for each data set, a Markdown table of all settings of its hyperparameter search."""
    parts = []
    for name, title in DATA_SETS.items():
        content = stored_results.read_results(name + SEARCHED, folder)
        parts.append(f"{title}: not searched." if content is None else f"{title}:")
        if content is not None:
            parts.append(settings_table(stored_results.select_results(content, ROWS)))
    return parts
