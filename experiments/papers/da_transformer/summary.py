"""Summary of our results on the DA-Transformer paper: findings, and one table for each claim."""

from collections.abc import Mapping
from typing import Any

from distattn_jax.train.results import values_by_seed
from experiments.papers import outcomes, report_sections, stored_results
from experiments.papers.da_transformer import head_tables, tables
from experiments.papers.da_transformer.published import DATA_SIZES, METRICS, SCORES
from experiments.papers.da_transformer.settings import ADJUSTMENTS, DATA_SETS, MAPPINGS, OURS, ROWS
from experiments.papers.formatting import NOT_RUN, format_value, method_title, metric_title
from experiments.papers.statistics import ALPHA, summarize

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run
SUMMARY_DATA = ("ag", "sst", "snli", "amazon")


def list_sections(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return the headings, texts and tables of the summary: one table for each claim."""
    return [
        "### Is DA-Transformer better? (Tables 3 and 4, Figure 3)",
        "Test set, ours / published.",
        tables.scores_summary(contents),
        tables.differences_summary(contents),
        "### Are its mapping and its adjustment the best? (Figures 4 and 5, AG's News)",
        tables.forms_summary(contents["ag"], {"mapping": MAPPINGS, "adjustment": ADJUSTMENTS}),
        "### What do heads learn? (Figures 6 and 8, footnote 7)",
        head_tables.signs_table(contents, SUMMARY_DATA),
        head_tables.distances_table(contents),
    ]


def list_findings(contents: Contents, folder: stored_results.AnyPath) -> list[str]:
    """Return sentences that state the main results, composed from the outcomes of the t-tests."""
    findings = []
    for method in ("vanilla", "no_positions"):
        found = {
            DATA_SETS[name]: tables.compare_with_ours(contents[name], method)
            for name in SUMMARY_DATA
        }
        finding = f"**DA-Transformer against {_name_baseline(method)}**: "
        finding += outcomes.describe_outcomes(found) + "."
        if method == "vanilla":
            finding += f" The paper reports gains of {_published_gains()} points."
        findings.append(finding)
    ratings = {
        method_title(method): tables.compare_with_ours(contents["amazon_rating"], method)
        for method in ROWS
        if method != OURS
    }
    described = outcomes.describe_outcomes(ratings)
    findings.append(f"**DA-Transformer on ratings as numbers**: {described}.")
    forms = {
        method_title(method): tables.compare_with_ours(contents["ag"], method)
        for method in (*MAPPINGS, *ADJUSTMENTS)
    }
    described = outcomes.describe_outcomes(forms, name_unclear=False)
    findings.append(f"**Mapping and adjustment, the paper's against others**: {described}.")
    flat = head_tables.count_flat_queries(contents)
    if flat:
        counts = (f"{few} of {count} ({method_title(m)})" for m, (few, count) in flat.items())
        findings.append(f"**Flat queries**: in Figure 8, {', '.join(counts)} attend uniformly.")
    findings.append(
        f"**Cost**: {tables.cost_sentence(stored_results.read_results('speed', folder))}"
    )
    findings.append(_describe_mind(contents))
    titles = {name: DATA_SETS[name] for name in SUMMARY_DATA}
    rows = report_sections.describe_training_rows(contents, titles, DATA_SIZES)
    findings.append(f"**Training rows**, ours / published: {rows}.")
    return [*findings, f"A difference counts where p < {ALPHA:g}, uncorrected for many tests."]


def _name_baseline(method: str) -> str:
    """Return the name of a method for use in a sentence, such as "the Transformer"."""
    return "the Transformer" if method == "vanilla" else method_title(method)


def _published_gains() -> str:
    """Return the published gains of DA-Transformer over the Transformer, one per data set."""
    gains = []
    for name in SUMMARY_DATA:
        criterion = METRICS[name][0]
        ours, vanilla = (
            float(SCORES[name][method][criterion].split("±")[0]) for method in (OURS, "vanilla")
        )
        gains.append(f"{ours - vanilla:.2f} ({DATA_SETS[name]})")
    return ", ".join(gains)


def _describe_mind(contents: Contents) -> str:
    """Return text on the data set MIND, and on the artificial click log that replaces it."""
    state = NOT_RUN if contents["mind"] is None else "see the details"
    finding = f"**MIND** (Table 5): {state}."
    content = contents["mind_made_up"]
    if content is None:
        return finding
    criterion = METRICS["mind"][0]
    values = []
    for method in ROWS:
        result = tables.find_result(content, method)
        if result is not None:
            mean = summarize(values_by_seed(result, "test", criterion).values()).mean
            values.append(f"{method_title(method)} {format_value(criterion, mean)}")
    name = metric_title(criterion)
    return (
        f"{finding} An artificial log tests the code, not the methods: {name} {', '.join(values)}."
    )
