"""Markdown tables that compare the methods of one experiment.

A method is an attention variant or a guide. A setting is one point of a hyperparameter grid. If a
run trained several settings, tables of methods show only the setting with the best mean validation
metric, and the number of settings that were tried.
"""

from collections.abc import Iterable, Mapping, Sequence

from distattn_jax.tasks.guides import GUIDES
from distattn_jax.train.results import (
    Result,
    group_by_setting,
    measured_splits,
    score,
    select_members,
    values_by_seed,
)
from experiments.papers.formatting import (
    EMPTY,
    METHOD_ORDER,
    format_difference,
    format_mean,
    format_p,
    format_value,
    markdown_table,
    method_title,
    metric_title,
)
from experiments.papers.statistics import ALPHA, POWER, paired_t_test, summarize

Published = Mapping[str, Mapping[str, str]]  # method -> metric -> printed number

# Prediction without a model, by criterion.
BASELINE_TITLES = {"accuracy": "majority label", "rmse": "mean rating", "mrr": "BM25"}
TAGGING_BASELINE = "majority tag of each word"  # for every criterion of the task
PUBLISHED = "published"  # origin of a column, beside the splits "validation" and "test"
GUIDE_WEIGHTS = {name for guide in GUIDES.values() for name in guide.weights}


def experiment_tables(results: Iterable[Result], *, published: Published | None = None) -> str:
    """Return all Markdown tables of one experiment, and a sentence that compares its best methods.

    Args:
      results: One result per method, all with the same main metric.
      published: published[method][metric] is the number as printed in the paper. A metric
        without published numbers has no column of published numbers.
    """
    ordered = sorted(results, key=_method_rank)
    criteria = {result["criterion"] for result in ordered}
    if len(criteria) != 1:
        raise ValueError(
            f"results must be at least one, all with one criterion; got {sorted(criteria)}."
        )
    name = metric_title(criteria.pop())
    parts = [comparison_table(ordered, published=published or {}), compare_best_two(ordered)]
    if any(len(group_by_setting(result)) > 1 for result in ordered):
        parts += [f"All settings, by {name}:", settings_table(ordered)]
    splits = " / ".join(measured_splits(ordered))
    parts += [f"{name[0].upper()}{name[1:]} of each seed, {splits}:", seeds_table(ordered)]
    return "\n\n".join(part for part in parts if part)


def comparison_table(results: Sequence[Result], *, published: Published) -> str:
    """Return a Markdown table with one row per method: parameters, metrics, published numbers.

    If the results contain a trivial baseline, such as the majority label, it is the first row.
    """
    columns = _choose_columns(results, published)
    has_grid = any(len(group_by_setting(result)) > 1 for result in results)
    header = ["method", "parameters"]
    header += [f"{origin} {metric_title(metric)}" for origin, metric in columns]
    header += ["seeds", "settings tried"] if has_grid else ["seeds"]
    rows = []
    baseline: Mapping[str, Mapping[str, float]] = next(
        (result["baseline"] for result in results if "baseline" in result), {}
    )
    if any(baseline.values()):
        known = {
            (split, metric): format_value(metric, value)
            for split, values in baseline.items()
            for metric, value in values.items()
        }
        cells = [known.get(column, EMPTY) for column in columns]
        is_tagging = results[0].get("task") == "tagging"
        title = TAGGING_BASELINE if is_tagging else BASELINE_TITLES[results[0]["criterion"]]
        rows.append([title, EMPTY, *cells, *[EMPTY] * (1 + has_grid)])
    for result in results:
        counts = [str(len(select_members(result))), str(len(group_by_setting(result)))]
        cells = [_format_cell(result, origin, metric, published) for origin, metric in columns]
        parameters = f"{result['parameters']:,}"
        rows.append([method_title(result["method"]), parameters, *cells, *counts[: 1 + has_grid]])
    return markdown_table(header, rows)


def compare_best_two(results: Sequence[Result]) -> str:
    """Compare the best two methods by a paired t-test on the test set.

    Return the outcome as a sentence. Return "" if there is only one method, or no result on the
    test set.
    """
    if len(results) < 2 or "test" not in measured_splits(results):
        return ""
    criterion = results[0]["criterion"]
    methods = [
        (values_by_seed(result, "test", criterion), method_title(result["method"]))
        for result in results
    ]
    methods.sort(
        key=lambda entry: score(criterion, summarize(entry[0].values()).mean), reverse=True
    )
    (best, best_title), (second, second_title), *others = methods
    name = metric_title(criterion, unit=False)
    opening = f"Best on test {name}: {best_title}, then {second_title}"
    test = paired_t_test(best, second)
    if test is None:
        return f"{opening}; they share no seed, so no test is possible."
    pairs = len(test.seeds)
    difference = f"difference {format_difference(criterion, test.difference)}"
    if test.t is None or test.p is None or test.detectable is None:
        reason = (
            "a test needs at least two seeds"
            if pairs == 1
            else f"it is the same for all {pairs} seeds, so no test is possible"
        )
        return f"{opening}; {difference}, t -, p -, detectable difference - ({reason})."
    p = format_p(test.p)
    sentence = (
        f"{opening}; {difference}, t = {test.t:.2f}, p {p if p.startswith('<') else f'= {p}'} "
        f"(paired over {pairs} seeds), "
        f"detectable difference {format_difference(criterion, test.detectable)} "
        f"(two-sided α = {ALPHA:g}, power {POWER:g})."
    )
    picked = " The two were selected by these values, which makes p too small."
    return sentence + picked if others else sentence


def count_pairs(first: Mapping[int, float], second: Mapping[int, float]) -> int:
    """Return the number of seeds that occur as keys in both mappings."""
    return len(first.keys() & second.keys())


def format_test(
    first: Mapping[int, float], second: Mapping[int, float], criterion: str
) -> list[str]:
    """Format a paired t-test of two methods as three cells: difference, p, detectable difference.

    Args:
      first: Values of the first method by seed.
      second: Values of the second method by seed, which are subtracted.
      criterion: Name of the metric that is compared.
    """
    test = paired_t_test(first, second)
    if test is None:
        return [EMPTY] * 3
    difference = format_difference(criterion, test.difference)
    if test.p is None or test.detectable is None:
        return [difference, EMPTY, EMPTY]
    return [difference, format_p(test.p), format_difference(criterion, test.detectable)]


def settings_table(results: Sequence[Result]) -> str:
    """Return a Markdown table with one row per method and point of its hyperparameter grid.

    A row shows the options that vary in the grid, and the main metric on every evaluated split.
    """
    criterion = results[0]["criterion"]
    varied, splits = _varied_options(results), measured_splits(results)
    header = ["method", *(name.replace("_", " ") for name in varied)]
    header += [f"{split} {metric_title(criterion)}" for split in splits] + ["seeds", "chosen"]
    rows = []
    for result in results:
        for members in group_by_setting(result):
            setting = result["members"][members[0]]["setting"]
            means = [
                format_mean(criterion, values_by_seed(result, split, criterion, members).values())
                for split in splits
            ]
            mark = "yes" if members == select_members(result) else ""
            options = [_format_option(result["method"], name, setting) for name in varied]
            rows.append([method_title(result["method"]), *options, *means, str(len(members)), mark])
    return markdown_table(header, rows)


def seeds_table(results: Sequence[Result]) -> str:
    """Return a Markdown table of the main metric: one row per seed, one column per method."""
    criterion, splits = results[0]["criterion"], measured_splits(results)
    columns = [[values_by_seed(result, split, criterion) for split in splits] for result in results]
    rows = []
    for seed in sorted({seed for column in columns for seed in column[0]}):
        cells = [
            " / ".join(format_value(criterion, values[seed]) for values in column)
            if seed in column[0]
            else EMPTY
            for column in columns
        ]
        rows.append([str(seed), *cells])
    return markdown_table(["seed", *(method_title(result["method"]) for result in results)], rows)


def _method_rank(result: Result) -> int:
    """Return the position of a method in METHOD_ORDER. Unknown methods come last."""
    return [*METHOD_ORDER, result["method"]].index(result["method"])


def _choose_columns(results: Sequence[Result], published: Published) -> list[tuple[str, str]]:
    """Return (origin, metric) of every column. The main metric is first, and the loss is last.

    The origin is "validation", "test" or PUBLISHED.
    """
    columns = []
    for split in measured_splits(results):
        members = (result["members"][i] for result in results for i in select_members(result))
        found = {name: None for member in members for name in member[split]}
        for metric in sorted(
            found, key=lambda name: (name != results[0]["criterion"], name == "loss")
        ):
            columns.append((split, metric))
            if split == "test" and any(metric in numbers for numbers in published.values()):
                columns.append((PUBLISHED, metric))
    return columns


def _format_cell(result: Result, origin: str, metric: str, published: Published) -> str:
    """Format one table cell: our mean and standard deviation over seeds, or the published number.

    `origin` is "validation", "test" or PUBLISHED.
    """
    if origin == PUBLISHED:
        return published.get(result["method"], {}).get(metric, EMPTY)
    values = values_by_seed(result, origin, metric).values()
    return format_mean(metric, values) if values else EMPTY


def _format_option(method: str, name: str, setting: Mapping[str, float]) -> str:
    """Format an option value as a table cell, or return "-" if the method ignores the option."""
    unused = name not in setting
    if method in GUIDES:
        weights = GUIDES[method].weights
        unused |= name in GUIDE_WEIGHTS and name not in weights
        unused |= name == "layer" and not weights
    return EMPTY if unused else f"{setting[name]:g}"


def _varied_options(results: Sequence[Result]) -> list[str]:
    """Return the names of the options that differ between the models of at least one run."""
    values: dict[str, list[set[float | None]]] = {}
    for result in results:
        for name in result["members"][0]["setting"]:
            found = {member["setting"].get(name) for member in result["members"]}
            values.setdefault(name, []).append(found)
    return [name for name, sets in values.items() if any(len(found) > 1 for found in sets)]
