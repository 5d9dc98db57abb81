"""Full report on the attention-guiding paper: all tables, searches, seeds, and provenance."""

from collections.abc import Mapping
from typing import Any

from experiments.papers import report_sections, stored_results
from experiments.papers.attention_guiding import costs, models, repeated_runs, sweeps, tables
from experiments.papers.attention_guiding.head_table import head_table
from experiments.papers.attention_guiding.published import (
    ABLATION_MODELS,
    DATA_SIZES,
    ERRATA,
    FIGURE_3,
    FIGURE_6,
    METRICS,
    TABLE_2,
    TABLE_3,
    select_data_set,
)
from experiments.papers.attention_guiding.settings import RATES
from experiments.papers.comparison_tables import compare_best_two
from experiments.papers.formatting import NOT_RUN_SENTENCE, method_title
from experiments.papers.stored_results import SEARCHED

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run

DATA_TITLES = {
    **models.DATA_TITLES,
    "covid_fact": f"{models.DATA_TITLES['covid_fact']}, instead of Cross-genre-IR",
}
# Table 3: guide -> name of the row in the paper.
ABLATIONS = {"ag": "default", "none": "w/o AG", "pdg": "w/o MDG", "mdg": "w/o PDG"}


def list_details(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return Markdown parts: all tables, all searches, the result of each seed, and provenance.

    Args:
      contents: Stored results by experiment. The main experiment of a data set is named after the
        data set. Its value is None if it was not run.
      folder: Folder of the stored results.
    """
    return [
        "### Data",
        "Ours / published.",
        report_sections.data_table(contents, DATA_TITLES, DATA_SIZES),
        report_sections.data_messages(contents, DATA_TITLES),
        *models.describe_splits(contents, DATA_TITLES),
        *_write_table_1(contents, folder),
        *_write_table_2(contents, folder),
        *_write_table_3(contents),
        "### Repeated runs of the same seeds",
        *repeated_runs.repetition_tables(contents, DATA_TITLES),
        "### Table 4: cost of guiding",
        costs.epochs_table(contents, DATA_TITLES),
        costs.steps_table(stored_results.read_results("guiding_speed", folder)),
        costs.memory_table(contents, DATA_TITLES),
        "### Figure 3: one guided layer",
        sweeps.layers_table(contents),
        FIGURE_3,
        "### Figures 4 and 5: how guides change heads",
        head_table(contents["multinli"]),
        "### Figure 6: part of the training set",
        sweeps.shares_table(contents),
        FIGURE_6,
        "### Hyperparameter search",
        *models.write_searches(contents, DATA_TITLES, folder),
        "### Every seed",
        *(report_sections.seed_tables(sweeps.split_layers(contents)) or [NOT_RUN_SENTENCE]),
        "### Runs",
        report_sections.provenance_table(
            contents,
            folder,
            searches=(RATES, SEARCHED),
            sharing="other runs may have shared the device",
        ),
        "### Errata of the paper",
        "\n".join(f"- {erratum}" for erratum in ERRATA),
    ]


def _write_table_1(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return Markdown paragraphs for Table 1: models with and without attention guiding (AG)."""
    note = r"Published numbers: \* p < 0.05, \*\* p < 0.01, according to the paper."
    table = models.models_table(contents, folder)
    parts = ["### Table 1: models with and without guiding", table, note]
    for name, title in DATA_TITLES.items():
        parts += [f"{title}:", tables.model_rows(contents[name], name)]
    return parts


def _write_table_2(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return Markdown paragraphs for Table 2: results and t-tests of all guides, by data set."""
    note = (
        "Settings tried: size of the search from which the setting of a guide was chosen. More "
        "settings favour a guide."
    )
    parts = ["### Table 2: comparison of guides", note]
    titles = {guide: method_title(guide) for guide in TABLE_2}
    for name in DATA_TITLES:
        content = contents[name]
        rows = tables.guide_rows(
            content,
            name,
            titles,
            published=select_data_set(TABLE_2, name),
            settings_tried=models.count_settings(content, folder),
        )
        parts += [_data_heading(contents, name, "BERT"), rows]
        if content is not None:
            results = stored_results.select_results(content, tuple(titles))
            parts += [tables.guide_tests(content, tuple(titles)), compare_best_two(results)]
    return parts


def _write_table_3(contents: Contents) -> list[str]:
    """Return Markdown paragraphs for Table 3: results and t-tests of the two parts of AG.

    AG is attention guiding. Its parts are the map discrimination guide (MDG) and the pattern
    decorrelation guide (PDG).
    """
    note = "Our rows with AG and without a guide are those of Table 2."
    parts = ["### Table 3: MDG and PDG separately", note]
    titles = {guide: f"{row} ({method_title(guide)})" for guide, row in ABLATIONS.items()}
    for name in DATA_TITLES:
        published = select_data_set(TABLE_3, name)
        rows = tables.guide_rows(contents[name], name, titles, published=published)
        parts += [_data_heading(contents, name, ABLATION_MODELS.get(name, "")), rows]
        if contents[name] is not None:
            parts.append(tables.guide_tests(contents[name], tuple(titles)))
    return parts


def _data_heading(contents: Contents, data: str, published: str) -> str:
    """Return a heading that names a data set, our pre-trained model, and the paper's model."""
    theirs = f"; published: {published}" if data in METRICS else ""
    return f"{DATA_TITLES[data]} (ours: {models.join_model_names([contents[data]])}{theirs}):"
