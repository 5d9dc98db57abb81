"""Tables of the DA-Transformer paper, with our results beside the published numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from distattn_jax.train.results import Result, select_members, values_by_seed
from experiments.papers import outcomes, stored_results
from experiments.papers.comparison_tables import BASELINE_TITLES, format_test
from experiments.papers.da_transformer.published import METRICS, MIND_SIZES, SCORES
from experiments.papers.da_transformer.settings import DATA_SETS, OURS, ROWS
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    format_mean,
    format_value,
    markdown_table,
    method_title,
    metric_title,
)
from experiments.papers.report_sections import read_messages

SUMMARY_COLUMNS = {
    **{name: f"{DATA_SETS[name]}, accuracy (%)" for name in ("ag", "sst", "snli", "amazon")},
    "amazon_rating": "Amazon ratings, RMSE (lower is better)",
}


def find_result(content: Mapping[str, Any] | None, method: str) -> Result | None:
    """Return the stored result of a method, or None if the method was not run."""
    run = (content or {}).get("runs", {}).get(method)
    return None if run is None else run["result"]


def compare_with_ours(content: Mapping[str, Any] | None, method: str) -> outcomes.Outcome | None:
    """Compare DA-Transformer with `method` by a paired t-test on the test set.

    Return None if one of the two runs is missing, or if the two runs have no seed in common.
    """
    return outcomes.compare_results(find_result(content, OURS), find_result(content, method))


def methods_table(
    content: Mapping[str, Any],
    methods: Sequence[str],
    settings_tried: Mapping[str, int] | None = None,
) -> str:
    """Return a Markdown table with one row per method.

    A row shows our results, the published results, and a t-test of DA-Transformer minus the method.

    Args:
      content: Stored results of one experiment.
      methods: Methods to show, in this order. Methods without results are omitted.
      settings_tried: Number of hyperparameter settings that were tried for each method. None
        omits this column.
    """
    found = {r["method"]: r for r in stored_results.select_results(content, methods)}
    criterion = next(iter(found.values()))["criterion"]
    metrics, scores = METRICS[content["experiment"]], SCORES.get(content["experiment"], {})
    scores = {method: scores[method] for method in methods if method in scores}
    origins = ("ours", "published") if scores else ("ours",)
    columns = [(metric, origin) for metric in metrics for origin in origins]
    ours = values_by_seed(found[OURS], "test", criterion) if OURS in found else {}
    rows = []
    for method, result in found.items():
        cells = [
            format_mean(metric, values_by_seed(result, "test", metric).values())
            if origin == "ours"
            else scores.get(method, {}).get(metric, EMPTY)
            for metric, origin in columns
        ]
        values = values_by_seed(result, "test", criterion)
        test = [EMPTY] * 3 if method == OURS else format_test(ours, values, criterion)
        counts = [str(len(select_members(result)))]
        counts += [str(settings_tried.get(method, 1))] if settings_tried else []
        rows.append([method_title(method), *counts, *cells, *test])
    baseline = found[next(iter(found))].get("baseline", {}).get("test", {})
    if baseline:
        cells = [
            format_value(metric, baseline[metric])
            if origin == "ours" and metric in baseline
            else EMPTY
            for metric, origin in columns
        ]
        blank = [EMPTY] * (2 if settings_tried else 1)
        rows.insert(0, [BASELINE_TITLES[criterion], *blank, *cells, EMPTY, EMPTY, EMPTY])
    header = ["method", "seeds", *(["settings tried"] if settings_tried else [])]
    header += [metric_title(metric) if origin == "ours" else origin for metric, origin in columns]
    header += [f"DA minus it, {metric_title(criterion, unit=False)}", "p", "detectable"]
    return markdown_table(header, rows)


def scores_summary(contents: Mapping[str, Any]) -> str:
    """Return a Markdown table of test results with one row per method and one column per data set.

    Each cell has the form "ours / published".
    """
    rows = [["no model", *(_format_baseline(contents[name]) for name in SUMMARY_COLUMNS)]]
    for method in ROWS:
        row = [method_title(method)]
        for name in SUMMARY_COLUMNS:
            result = find_result(contents[name], method)
            criterion = METRICS[name][0]
            ours = NOT_RUN
            if result is not None:
                ours = format_mean(criterion, values_by_seed(result, "test", criterion).values())
            published = SCORES.get(name, {}).get(method, {}).get(criterion, EMPTY)
            row.append(f"{ours} / {published}")
        rows.append(row)
    header = ["method"]
    for name, title in SUMMARY_COLUMNS.items():
        result = find_result(contents[name], OURS)
        header.append(title if result is None else f"{title}, {len(select_members(result))} seeds")
    return markdown_table(header, rows)


def differences_summary(contents: Mapping[str, Any]) -> str:
    """Return a Markdown table of t-tests: DA-Transformer minus each method, on each data set.

    The last row shows the range of the differences that the t-tests could detect.
    """
    methods = [method for method in ROWS if method != OURS]
    tests = {
        name: {method: compare_with_ours(contents[name], method) for method in methods}
        for name in SUMMARY_COLUMNS
    }
    rows = [
        [method_title(method), *(outcomes.format_outcome(tests[name][method]) for name in tests)]
        for method in methods
    ]
    detectable = [outcomes.detectable_range(list(of.values())) for of in tests.values()]
    rows.append(["detectable difference", *detectable])
    titles = [title.partition(",")[0] for title in SUMMARY_COLUMNS.values()]
    return markdown_table(["DA-Transformer minus", *titles], rows)


def forms_summary(content: Mapping[str, Any] | None, forms: Mapping[str, Sequence[str]]) -> str:
    """Return a Markdown table with one row per variant of distance-aware attention.

    A row shows the main test metric, and a t-test of DA-Transformer minus the variant.

    Args:
      content: Stored results of one experiment, or None if it was not run.
      forms: Names of the variants, by the part that they change, such as "mapping".
    """
    if content is None:
        return NOT_RUN_SENTENCE
    criterion = METRICS[content["experiment"]][0]
    rows = []
    for kind, methods in (("", (OURS,)), *forms.items()):
        for method in methods:
            result = find_result(content, method)
            row = [method_title(method), kind or "the paper's form"]
            if result is None:
                rows.append([*row, *[NOT_RUN] * 5])
                continue
            values = values_by_seed(result, "test", criterion)
            ours = values_by_seed(content["runs"][OURS]["result"], "test", criterion)
            test = [EMPTY] * 3 if method == OURS else format_test(ours, values, criterion)
            rows.append([*row, str(len(values)), format_mean(criterion, values.values()), *test])
    header = ["form", "changed part", "seeds", metric_title(criterion)]
    return markdown_table([*header, "DA minus it", "p", "detectable"], rows)


def cost_table(content: Mapping[str, Any] | None) -> str:
    """Return a Markdown table with one row per method: parameters, and time per training step."""
    if content is None:
        return NOT_RUN_SENTENCE
    config, lines = content["config"], content["lines"]
    vanilla = {line["seeds"]: line for line in lines if line["method"] == "vanilla"}
    rows = []
    for line in lines:
        base = vanilla.get(line["seeds"])
        rows.append(
            [
                method_title(line["method"]),
                f"{line['parameters']:,}",
                EMPTY if base is None else f"{line['parameters'] - base['parameters']:+,}",
                str(line["seeds"]),
                f"{line['bare']:.2f}",
                EMPTY if base is None else f"{line['bare'] / base['bare']:.2f}",
            ]
        )
    header = ["method", "parameters", "more than Transformer", "models", "ms per step"]
    find = stored_results.find_option
    note = (
        f"{content['environment']['device']}, {find(config, 'data.batch_size')} texts of "
        f"{find(config, 'length')} tokens, {find(config, 'model.heads')} heads. One training step "
        "of the given number of models side by side, with batches already on the device; median "
        f"of {find(config, 'repeats')} x {find(config, 'steps')} steps."
    )
    return "\n\n".join([note, markdown_table([*header, "ratio to Transformer"], rows)])


def cost_sentence(content: Mapping[str, Any] | None) -> str:
    """Return sentences on how many parameters and how much time per step DA-Transformer adds."""
    lines = {line["method"]: line for line in (content or {}).get("lines", ())}
    if content is None or not {OURS, "vanilla"} <= lines.keys():
        return "Cost of a training step: not run."
    ours, vanilla = lines[OURS], lines["vanilla"]
    return (
        f"DA-Transformer has {ours['parameters'] - vanilla['parameters']} parameters more than the "
        f"Transformer. A training step takes {ours['bare'] / vanilla['bare']:.2f} times as long "
        f"(device: {content['environment']['device']})."
    )


def _format_baseline(content: Mapping[str, Any] | None) -> str:
    """Format the test metric of the trivial baseline, such as "25.00 (majority label)"."""
    for run in (content or {}).get("runs", {}).values():
        criterion = run["result"]["criterion"]
        known = run["result"].get("baseline", {}).get("test", {})
        if criterion in known:
            return f"{format_value(criterion, known[criterion])} ({BASELINE_TITLES[criterion]})"
    return EMPTY


def mind_table(content: Mapping[str, Any] | None) -> str:
    """Return messages about our data for MIND, and a Markdown table of the published sizes."""
    messages = NOT_RUN if content is None else "; ".join(read_messages(content))
    return f"Ours: {messages}.\n\n{markdown_table(['MIND', 'published'], MIND_SIZES.items())}"
