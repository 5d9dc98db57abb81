"""Tables 1 to 3 of the attention-guiding paper, with our results beside the published numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from distattn_jax.train.results import select_members, values_by_seed
from experiments.papers import outcomes
from experiments.papers.attention_guiding import models
from experiments.papers.attention_guiding.published import (
    ABLATION_MODELS,
    METRICS,
    RANKING,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    select_data_set,
)
from experiments.papers.comparison_tables import BASELINE_TITLES, count_pairs, format_test
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    format_mean,
    format_value,
    markdown_table,
    method_title,
    metric_title,
)
from experiments.papers.statistics import ALPHA

MEASURED = {**METRICS, "covid_fact": RANKING}  # data set -> metrics in the tables


def model_rows(content: Mapping[str, Any] | None, data: str) -> str:
    """Return Table 1 for one data set as a Markdown table: published rows, then our rows."""
    metrics, rows = MEASURED[data], []
    for model, numbers in select_data_set(TABLE_1, data).items():
        if numbers:
            rows.append([model, "published", *(_escape(numbers[metric]) for metric in metrics)])
    if content is None:
        rows.append([EMPTY, "ours", *[NOT_RUN] * len(metrics)])
    else:
        for suffix, guide in (("", "none"), ("+AG", "ag")):
            cells = [_format_metric(content, guide, metric) for metric in metrics]
            rows.append([models.model_name(content) + suffix, "ours", *cells])
    return markdown_table(["model", "origin", *map(metric_title, metrics)], rows)


def guide_rows(
    content: Mapping[str, Any] | None,
    data: str,
    titles: Mapping[str, str],
    *,
    published: Mapping[str, Mapping[str, str]],
    settings_tried: Mapping[str, int] | None = None,
) -> str:
    """Return a Markdown table with one row per guide: each metric, ours and as published.

    If the results contain a trivial baseline, such as the majority label, it is the first row.

    Args:
      content: Stored results of the experiment on the data set, or None if it was not run.
      data: Name of the data set.
      titles: Name of the row of each guide.
      published: published[guide][metric] is the number as printed in the paper.
      settings_tried: Number of hyperparameter settings that were tried for each guide. None omits
        two columns: this number, and the loss weights of the guide.
    """
    metrics, rows = MEASURED[data], []
    runs = (content or {}).get("runs", {})
    counts = ["seeds", *(["weights", "settings tried"] if settings_tried is not None else [])]
    baseline = _find_baseline(runs)
    if baseline is not None:
        criterion, known = baseline
        row = [BASELINE_TITLES[criterion], *[EMPTY] * len(counts)]
        for metric in metrics:
            row.append(format_value(metric, known[metric]) if metric in known else EMPTY)
            row += [EMPTY] * (data in METRICS)
        rows.append(row)
    for guide, title in titles.items():
        row = [title, *[NOT_RUN] * len(counts)]
        if guide in runs:
            result = runs[guide]["result"]
            row = [title, str(len(select_members(result)))]
            if settings_tried is not None:
                row += [models.format_guide_weights(result), str(settings_tried[guide])]
        for metric in metrics:
            row.append(_format_metric(content, guide, metric))
            if data in METRICS:
                row.append(_escape(published[guide].get(metric, EMPTY)))
        rows.append(row)
    header = ["guide", *counts]
    for metric in metrics:
        header += [metric_title(metric), *(["published"] if data in METRICS else [])]
    return markdown_table(header, rows)


def guide_tests(content: Mapping[str, Any] | None, guides: Sequence[str]) -> str:
    """Return a Markdown table with two t-tests for each guide.

    The first test is the run with the guide minus the run without a guide. The second test is AG
    (attention guiding with both guides of the paper) minus the guide.
    """
    runs = (content or {}).get("runs", {})
    found = {guide: runs[guide]["result"] for guide in guides if guide in runs}
    if len(found) < 2 or not {"none", "ag"} & found.keys():
        return "Tests: not run."
    criterion = next(iter(found.values()))["criterion"]
    values = {guide: values_by_seed(result, "test", criterion) for guide, result in found.items()}
    header, rows, count = ["guide"], [], 0
    for difference in ("minus no guide", "AG minus it"):
        name = f"{difference}, {metric_title(criterion, unit=False)}"
        header += [name, "pairs", "p", "detectable"]
    for guide in found:
        cells = [EMPTY] * 8
        if guide != "none" and "none" in found:
            cells[:4] = _test_cells(values[guide], values["none"], criterion)
        if guide not in ("none", "ag") and "ag" in found:
            cells[4:] = _test_cells(values["ag"], values[guide], criterion)
        count += sum(cells[i] != EMPTY for i in (2, 6))
        rows.append([method_title(guide), *cells])
    note = (
        "Paired t-tests on the test set over the seeds that both have, two-sided, "
        f"{count} in this table; p is not corrected."
    )
    if count:
        note += (
            f" With a Bonferroni correction for their number, p would have to be below "
            f"{ALPHA / count:.2g} for a significance level of {ALPHA:g}."
        )
    return "\n\n".join([markdown_table(header, rows), note])


def guides_summary(contents: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return a Markdown table with one row per guide.

    For each data set, a row shows the result, a t-test against the run without a guide, and the
    published gain.

    Args:
      contents: Stored results by data set. The value is None if the experiment was not run.
      titles: Printed name of each data set. Data sets without results are omitted.
    """
    found = {name: contents[name] for name in titles if contents[name] is not None}
    header = ["guide"]
    for name, content in found.items():
        criterion = find_criterion(content)
        header += [f"{titles[name]}, {metric_title(criterion)}", "minus no guide"]
        header += ["published gain"] * (name in METRICS)
    rows = [["no model"]]
    for name, content in found.items():
        criterion, known = _find_baseline(content["runs"]) or ("", {})
        value = format_value(criterion, known[criterion]) if known else EMPTY
        rows[0] += [f"{value} ({BASELINE_TITLES[criterion]})" if known else EMPTY, EMPTY]
        rows[0] += [EMPTY] * (name in METRICS)
    for guide in ("none", "ag", "mdg", "pdg", *(g for g in TABLE_2 if g not in ("none", "ag"))):
        row = [method_title(guide)]
        for name, content in found.items():
            row.append(_format_metric(content, guide, find_criterion(content)))
            row.append(
                EMPTY if guide == "none" else outcomes.format_outcome(compare(content, guide))
            )
            row += [_published_gain(name, guide)] if name in METRICS else []
        rows.append(row)
    return markdown_table(header, rows)


def compare(content: Mapping[str, Any] | None, guide: str) -> outcomes.Outcome | None:
    """Compare the runs with and without a guide by a paired t-test on the test set.

    Return None if one of the two runs is missing, or if the two runs have no seed in common.
    """
    runs = (content or {}).get("runs", {})
    guided, unguided = (runs.get(name, {}).get("result") for name in (guide, "none"))
    return outcomes.compare_results(guided, unguided)


def _published_gain(data: str, guide: str) -> str:
    """Return the published gain in points and the model, such as "+0.65 (BERT)".

    The gain is the result with the guide minus the result without a guide. The gains of the map
    discrimination guide (MDG) and the pattern decorrelation guide (PDG) are from Table 3 of the
    paper. The gains of all other guides are from Table 2.
    """
    table, model = (TABLE_2, "BERT") if guide in TABLE_2 else (TABLE_3, ABLATION_MODELS[data])
    numbers, criterion = select_data_set(table, data), METRICS[data][0]
    if guide == "none":
        return EMPTY
    guided, unguided = (float(numbers[name][criterion].rstrip("*")) for name in (guide, "none"))
    return f"{guided - unguided:+.2f} ({model})"


def find_criterion(content: Mapping[str, Any]) -> str:
    """Return the name of the main metric of an experiment."""
    return next(run["result"]["criterion"] for run in content["runs"].values())


def _test_cells(
    first: Mapping[int, float], second: Mapping[int, float], criterion: str
) -> list[str]:
    """Format a paired t-test as four cells: difference, number of seeds, p, detectable difference.

    Args:
      first: Values of the first method by seed.
      second: Values of the second method by seed, which are subtracted.
      criterion: Name of the metric that is compared.
    """
    difference, *others = format_test(first, second, criterion)
    return [difference, str(count_pairs(first, second)), *others]


def _find_baseline(runs: Mapping[str, Any]) -> tuple[str, Mapping[str, float]] | None:
    """Return the name of the main metric, and the test metrics of the trivial baseline.

    The trivial baseline is a prediction without a model, such as the majority label. Return None
    if no run has stored this baseline.
    """
    for run in runs.values():
        known = run["result"].get("baseline", {}).get("test")
        if known:
            return run["result"]["criterion"], known
    return None


def _format_metric(content: Mapping[str, Any] | None, guide: str, metric: str) -> str:
    """Format a test metric of a guide as "mean ± standard deviation" over seeds."""
    runs = (content or {}).get("runs", {})
    if guide not in runs:
        return NOT_RUN
    values = values_by_seed(runs[guide]["result"], "test", metric).values()
    return format_mean(metric, values) if values else EMPTY


def _escape(number: str) -> str:
    """Escape the asterisks of a printed number for Markdown."""
    return number.replace("*", r"\*")
