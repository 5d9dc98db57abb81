"""Tables that several sections of the report share, and the tables of heads.

A cell contains the mean ± standard deviation over seeds, on the test set, of the setting that was
chosen on the validation set. A difference is the score of the method of a row minus that of another
method.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from distattn_jax.train.results import Result, score, values_by_seed
from experiments.papers import outcomes
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
from experiments.papers.statistics import paired_t_test, summarize
from experiments.papers.when_to_use.settings import ENCODERS, EXPERIMENTS, OURS

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run
Scores = Mapping[str, Mapping[int, float]]  # method -> seed -> value on the test set
CRITERIA = {name: "f1" if name == "wnut17" else "accuracy" for name in EXPERIMENTS}
DETECTABLE = "detectable difference"  # title of a row


def find_result(contents: Contents, experiment: str, method: str) -> Result | None:
    """Return the stored result of a method, or None if it was not run."""
    run = (contents[experiment] or {}).get("runs", {}).get(method)
    return None if run is None else run["result"]


def find_measure(contents: Contents, experiment: str, kind: str, method: str) -> dict[str, Any]:
    """Return the collected measures of a method, or {} if there are none.

    Args:
      contents: Stored results by experiment.
      experiment: Name of the experiment.
      kind: "perplexity" or "heads".
      method: Attention variant.
    """
    return (contents[experiment] or {}).get(kind, {}).get(method, {})


def find_scores(
    contents: Contents, experiment: str, metric: str, methods: Iterable[str]
) -> dict[str, dict[int, float]]:
    """Return the values of a metric on the test set by method and seed.

    Methods that were not run are left out.

    Args:
      contents: Stored results by experiment.
      experiment: Name of the experiment.
      metric: Name of the metric.
      methods: Attention variants.
    """
    found = {}
    for method in methods:
        result = find_result(contents, experiment, method)
        values = {} if result is None else values_by_seed(result, "test", metric)
        if values:
            found[method] = values
    return found


def rank(metric: str, scores: Scores) -> list[str]:
    """Return the methods, best mean first."""
    means = {m: score(metric, summarize(values.values()).mean) for m, values in scores.items()}
    return sorted(means, key=means.__getitem__, reverse=True)


def compare_scores(metric: str, scores: Scores, first: str, second: str) -> outcomes.Outcome | None:
    """Compare two methods by a paired t-test. Return None if a method was not run."""
    test = paired_t_test(scores.get(first, {}), scores.get(second, {}))
    return None if test is None else outcomes.Outcome(metric, test)


def compare(
    contents: Contents, experiment: str, first: str, second: str
) -> outcomes.Outcome | None:
    """Compare two methods of an experiment by its main metric. Return None if one was not run."""
    metric = CRITERIA[experiment]
    scores = find_scores(contents, experiment, metric, (first, second))
    return compare_scores(metric, scores, first, second)


def score_cells(metric: str, scores: Scores, methods: Iterable[str]) -> list[str]:
    """Return the cells of a column of means. The best mean of two or more is in bold."""
    best = rank(metric, scores)[0] if len(scores) > 1 else None
    cells = []
    for method in methods:
        cell = format_mean(metric, scores[method].values()) if method in scores else NOT_RUN
        cells.append(f"**{cell}**" if method == best else cell)
    return cells


def difference_cells(
    metric: str, scores: Scores, methods: Iterable[str], base: str
) -> tuple[list[str], str]:
    """Return the cells of a column of differences, and the range of detectable differences.

    Args:
      metric: Name of the metric.
      scores: Values by method and seed.
      methods: Methods of the rows.
      base: Method that is subtracted.
    """
    found = [
        None if method == base else compare_scores(metric, scores, method, base)
        for method in methods
    ]
    cells = [
        EMPTY if method == base else outcomes.format_outcome(outcome)
        for method, outcome in zip(methods, found, strict=True)
    ]
    return cells, outcomes.detectable_range(found)


def join_columns(titles: Sequence[str], columns: Mapping[str, Sequence[str]]) -> str:
    """Return a Markdown table of columns. The first column contains the titles of the rows.

    Args:
      titles: Titles of the rows.
      columns: Cells by title of the column.
    """
    rows = zip(titles, *columns.values(), strict=True)
    return markdown_table(["method", *columns], [list(row) for row in rows])


def scores_table(contents: Contents, titles: Mapping[str, str]) -> str:
    """Return a Markdown table of the main metric of the encoders, best of each column in bold.

    Args:
      contents: Stored results by experiment.
      titles: Titles of the columns by experiment.
    """
    if not any(contents[name] for name in titles):
        return NOT_RUN_SENTENCE
    columns = {}
    for name, title in titles.items():
        metric = CRITERIA[name]
        scores = find_scores(contents, name, metric, ENCODERS)
        columns[title] = [
            format_baseline(contents, name),
            *score_cells(metric, scores, ENCODERS),
        ]
    return join_columns(["no model", *map(method_title, ENCODERS)], columns)


def differences_table(contents: Contents, titles: Mapping[str, str], bases: Iterable[str]) -> str:
    """Return a Markdown table of the main metric of encoders minus that of other methods.

    Experiments that were not run are left out. Return "" if none was run.

    Args:
      contents: Stored results by experiment.
      titles: Titles of the columns by experiment.
      bases: Methods that are subtracted from the others.
    """
    columns = {}
    for base, (name, title) in itertools.product(bases, titles.items()):
        metric = CRITERIA[name]
        if scores := find_scores(contents, name, metric, ENCODERS):
            cells, detectable = difference_cells(metric, scores, ENCODERS, base)
            columns[f"{title}, minus {method_title(base)}"] = [*cells, detectable]
    rows = [*map(method_title, ENCODERS), DETECTABLE]
    return join_columns(rows, columns) if columns else ""


def format_baseline(contents: Contents, experiment: str) -> str:
    """Return the score of a prediction without a model, or "not run"."""
    runs = (contents[experiment] or {}).get("runs", {})
    for run in runs.values():
        value = run["result"].get("baseline", {}).get("test", {}).get(CRITERIA[experiment])
        if value is not None:
            return format_value(CRITERIA[experiment], value)
    return NOT_RUN


def layers_table(contents: Contents) -> str:
    """Return a Markdown table of w and v of the heads of DA-Transformer, by task and layer."""
    rows = []
    for name in EXPERIMENTS:
        heads = find_measure(contents, name, "heads", OURS)
        if "weight" not in heads:
            continue
        weight, shape = (np.asarray(heads[key]) for key in ("weight", "shape"))
        for layer in range(weight.shape[1]):
            w = weight[:, layer]
            medians = [
                f"{np.median(w[sign]):.3f}" if sign.any() else EMPTY for sign in (w < 0, w > 0)
            ]
            rows.append(
                [
                    EXPERIMENTS[name].title,
                    str(layer + 1),
                    f"{100 * (w > 0).mean():.0f}",
                    *medians,
                    f"{shape[:, layer].mean():.2f}",
                ]
            )
    header = ["heads of", "layer", "w > 0 (% of heads)", "median w < 0", "median w > 0", "mean v"]
    return markdown_table(header, rows) if rows else NOT_RUN_SENTENCE


def find_pruning(contents: Contents, experiment: str) -> dict[str, Any]:
    """Return the measures of pruning of DA-Transformer, or {} if they were not run."""
    return find_measure(contents, experiment, "heads", OURS).get("pruning", {})


def pruning_table(contents: Contents) -> str:
    """Return a Markdown table of the main validation metric of DA-Transformer without heads.

    Each row is one order of pruning. p compares the order with the random one at the middle number
    of pruned heads.
    """
    rows, header = [], []
    for name in EXPERIMENTS:
        pruning = find_pruning(contents, name)
        if not pruning:
            continue
        metric = pruning["criterion"]
        header = [f"without {count} of {pruning['heads']}" for count in pruning["counts"]]
        whole = format_value(metric, float(np.mean(pruning["whole"])))
        for order, values in pruning["orders"].items():
            means = np.mean(values, axis=0)
            cells = [format_value(metric, float(mean)) for mean in means]
            test = outcomes.format_outcome(compare_pruning(contents, name, order))
            minus = EMPTY if order == "random" else test
            task = f"{EXPERIMENTS[name].title}, {metric_title(metric)}"
            rows.append([task, order, whole, *cells, minus])
    if not rows:
        return NOT_RUN_SENTENCE
    columns = ["heads of", "pruned first", "all heads", *header, "middle minus random"]
    return markdown_table(columns, rows)


def compare_pruning(
    contents: Contents, experiment: str, order: str, *, count: int = 1
) -> outcomes.Outcome | None:
    """Compare an order of pruning with the random order by a paired t-test over seeds.

    Args:
      contents: Stored results by experiment.
      experiment: Name of the experiment.
      order: Order of pruning.
      count: Index of the number of pruned heads.
    """
    pruning = find_pruning(contents, experiment)
    if not pruning:
        return None
    first, second = (
        {seed: row[count] for seed, row in enumerate(pruning["orders"][name])}
        for name in (order, "random")
    )
    test = paired_t_test(first, second)
    return None if test is None else outcomes.Outcome(pruning["criterion"], test)
