"""Cells and Markdown tables that several reports share.

A frame is a DataFrame with the values of one metric, one row per seed and one column per method
(`Results.scores`). An outcome is the result of a paired t-test of two methods. A table is made of
columns. A column maps the key of a row to the text of a cell. If a column has no text for a row,
the cell is "not run" or "-".
"""

import fnmatch
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from distattn_jax.tasks.guides import GUIDES
from distattn_jax.train.config import SHORT_RUN
from distattn_jax.train.results import score, select_members
from experiments.papers.formatting import (
    EMPTY,
    METHOD_ORDER,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    experiment_title,
    format_difference,
    format_mean,
    format_p,
    format_value,
    markdown_table,
    method_title,
    metric_title,
    table_or_not_run,
    write_p,
)
from experiments.papers.results import Results, split_setting
from experiments.papers.statistics import BETTER, UNCLEAR, WORSE, Outcome, compare_values
from experiments.papers.terminal import describe_short_run

# Prediction without a model, by criterion.
BASELINE_TITLES = {"accuracy": "majority label", "rmse": "mean rating", "mrr": "BM25"}
TAGGING_BASELINE = "majority tag of each word"  # for every criterion of the task
GUIDE_WEIGHTS = {name for guide in GUIDES.values() for name in guide.weights}
MAX_NAMES = 12  # of the comparisons in a cell; a longer list is only counted
DETECTABLE = "detectable difference"  # title of a row

Cells = Mapping[Any, str]
Published = Mapping[str, Mapping[str, str]]  # method -> metric -> printed number
Outcomes = Mapping[Any, Outcome | None]


class Column(NamedTuple):
    """Column of a Markdown table.

    Attributes:
      title: Text of the header.
      cells: Dict from the key of a row, such as a method, to the text of the cell.
      missing: Text of the cell in rows that are not in `cells`.
    """

    title: str
    cells: Cells
    missing: str = NOT_RUN


def join(title: str, rows: Mapping[Any, str] | Iterable[str], columns: Sequence[Column]) -> str:
    """Join columns into a Markdown table. Return "Not run." if there is no row or no column.

    Args:
      title: Title of the first column, which has the titles of the rows.
      rows: Dict from the key of each row to its title, or a sequence of methods. The title of a
        method is its printed name.
      columns: All other columns.
    """
    titles = rows if isinstance(rows, Mapping) else {row: method_title(row) for row in rows}
    if not titles or not columns:
        return NOT_RUN_SENTENCE
    lines = [
        [name, *(column.cells.get(row, column.missing) for column in columns)]
        for row, name in titles.items()
    ]
    return markdown_table([title, *(column.title for column in columns)], lines)


# Cells.


def by_seed(frame: pd.DataFrame, method: str) -> dict[int, float]:
    """Return a dict from seed to the value of a method, or {} if the method was not run."""
    return frame[method].dropna().to_dict() if method in frame else {}


def mean_cells(frame: pd.DataFrame, metric: str, *, bold_best: bool = False) -> dict[str, str]:
    """Return a dict from each method of a frame to "mean ± standard deviation" over seeds.

    If `bold_best` is True, the text of the method with the best mean is bold.
    """
    cells = {method: format_mean(metric, by_seed(frame, method).values()) for method in frame}
    if bold_best and len(cells) > 1:
        best = rank(frame, metric)[0]
        cells[best] = f"**{cells[best]}**"
    return cells


def rank(frame: pd.DataFrame, metric: str) -> list[str]:
    """Return the methods (columns) of a frame in order of their means over seeds, best first."""
    means = {method: score(metric, float(frame[method].mean())) for method in frame}
    return sorted(means, key=means.__getitem__, reverse=True)


def compare(frame: pd.DataFrame, metric: str, first: str, second: str) -> Outcome | None:
    """Compare two methods (columns) of a frame by a paired t-test over seeds.

    The difference is the first method minus the second. Return None if the methods have no seed in
    common.
    """
    return compare_values(metric, by_seed(frame, first), by_seed(frame, second))


def minus(frame: pd.DataFrame, metric: str, base: str, rows: Iterable[str]) -> Outcomes:
    """Compare each method in `rows` with the method `base`, by paired t-tests.

    The difference is the method minus `base`. Return a dict from method to the result of its test.
    """
    return {method: compare(frame, metric, method, base) for method in rows if method != base}


def describe(outcome: Outcome | None) -> str:
    """Format a t-test as difference and p value, such as "-0.25 points, p = 0.00027"."""
    if outcome is None:
        return NOT_RUN
    difference = format_difference(outcome.metric, outcome.test.difference)
    return difference if outcome.test.p is None else f"{difference}, {write_p(outcome.test.p)}"


def format_outcome(outcome: Outcome | None) -> str:
    """Format a t-test as one table cell without a unit, such as "-0.25 (p = 0.00027)"."""
    if outcome is None:
        return NOT_RUN
    difference = format_value(outcome.metric, outcome.test.difference)
    return difference if outcome.test.p is None else f"{difference} ({write_p(outcome.test.p)})"


def difference_column(title: str, found: Outcomes, base: str | None = None) -> Column:
    """Return a column whose cells are differences with p values, such as "-0.25 (p = 0.00027)".

    The cell of the row DETECTABLE is the range of the detectable differences.

    Args:
      title: Title of the column.
      found: Dict from the key of each row to its t-test.
      base: Method that the tests subtract. The cell in the row of this method is "-".
    """
    cells = {row: format_outcome(one) for row, one in found.items()}
    own = {} if base is None else {base: EMPTY}
    return Column(title, {**cells, **own, DETECTABLE: detectable_range(found.values())})


def difference_and_p(title: str, found: Outcomes, *, detectable: bool = True) -> list[Column]:
    """Return columns that show t-tests: difference, p value and detectable difference.

    `found` is a dict from the key of each row to its t-test. The cells of all other rows are "-".
    If `detectable` is False, the column of detectable differences is left out.
    """
    tests = {row: one for row, one in found.items() if one is not None}
    tested = {row: one for row, one in tests.items() if one.test.p is not None}
    columns = {
        title: {row: format_difference(o.metric, o.test.difference) for row, o in tests.items()},
        "p": {row: format_p(one.test.p or 0) for row, one in tested.items()},
    }
    if detectable:
        columns["detectable"] = {
            row: format_difference(one.metric, one.test.detectable or 0)
            for row, one in tested.items()
        }
    return [Column(name, cells, EMPTY) for name, cells in columns.items()]


def detectable_range(found: Iterable[Outcome | None]) -> str:
    """Format the range of `PairedTest.detectable` over several tests, such as "0.21 to 0.35"."""
    differences = [
        (one.test.detectable, one.metric)
        for one in found
        if one is not None and one.test.detectable is not None
    ]
    if not differences:
        return NOT_RUN
    (lowest, metric), (highest, _) = min(differences), max(differences)
    return f"{format_value(metric, lowest)} to {format_difference(metric, highest)}"


def group_by_kind(found: Outcomes) -> dict[str, dict[Any, Outcome]]:
    """Group t-tests by their outcome: BETTER, WORSE or UNCLEAR. Leave out tests that are None."""
    return {
        kind: {name: one for name, one in found.items() if one is not None and one.kind == kind}
        for kind in (BETTER, WORSE, UNCLEAR)
    }


def outcome_cells(found: Outcomes, *, figures: bool = True) -> str:
    """Return three cells of a Markdown table: the comparisons with each outcome.

    The outcomes are better, worse and not distinguishable. A cell has the number and the names of
    the comparisons with this outcome.

    Args:
      found: Dict from the name of each comparison to its t-test.
      figures: If True, show each difference with its p value. For comparisons that are not
        distinguishable, show only the smallest p value.
    """
    cells = []
    for kind, of_kind in group_by_kind(found).items():
        shown = figures and kind != UNCLEAR
        names = [f"{name} ({describe(one)})" if shown else name for name, one in of_kind.items()]
        p_values = [one.test.p for one in of_kind.values() if one.test.p is not None]
        note = f"; p from {format_p(min(p_values))}" if figures and not shown and p_values else ""
        listed = f": {'; '.join(names)}" if len(names) <= MAX_NAMES else ""
        cells.append(f"{len(of_kind)}{listed}{note}" if of_kind else "0")
    return " | ".join(cells if any(found.values()) else [NOT_RUN] * len(cells))


def outcome_rows(compared: Mapping[str, Outcomes], *, figures: bool = True) -> str:
    """Return a Markdown table row for each group of comparisons: its title and `outcome_cells`."""
    rows = {title: outcome_cells(found, figures=figures) for title, found in compared.items()}
    return "\n".join(f"| {title} | {cells} |" for title, cells in rows.items())


# Tables of one experiment.


def experiment_tables(results: Results, experiment: str, published: Published) -> str:
    """Return all Markdown tables of one experiment: methods, best two, settings and seeds.

    Args:
      results: Stored results of all experiments.
      experiment: Name of the experiment.
      published: Numbers as printed in the paper. A metric that the paper does not report has no
        column "published".
    """
    runs = results.runs(experiment)
    criteria = {run["result"]["criterion"] for run in runs.values()}
    if len(criteria) != 1:
        raise ValueError(
            f"results must be at least one, all with one criterion; got {sorted(criteria)}."
        )
    parts = [comparison_table(results, experiment, published), best_two(results, experiment)]
    fewest = min(run["result"].get("steps", SHORT_RUN) for run in runs.values())
    if fewest < SHORT_RUN:
        parts.append(describe_short_run(fewest))
    if max(results.tried(experiment).values()) > 1:
        name = metric_title(results.criterion(experiment))
        parts += [f"All settings, by {name}:", settings_table(results, experiment)]
    return "\n\n".join(part for part in (*parts, seeds_table(results, experiment)) if part)


def comparison_table(results: Results, experiment: str, published: Published) -> str:
    """Return a Markdown table with one row per method: parameters, metrics, published numbers."""
    runs, criterion = results.runs(experiment), results.criterion(experiment)
    parameters = {method: f"{run['result']['parameters']:,}" for method, run in runs.items()}
    rows = results.table[results.table.experiment == experiment]
    metrics = {
        f"{split} {metric_title(metric)}": (split, metric)
        for split in results.splits(experiment)
        for metric in sorted(
            rows[rows.split == split].metric.unique(), key=lambda m: (m != criterion, m == "loss")
        )
    }
    after, tried = [Column("seeds", count_seeds(results, experiment))], results.tried(experiment)
    if max(tried.values()) > 1:
        after.append(Column("settings tried", {m: str(n) for m, n in tried.items()}))
    titles = {m: method_title(m) for m in METHOD_ORDER if m in runs}
    before = [Column("parameters", parameters)]
    return methods_table(results, experiment, titles, metrics, published, before, after)


def methods_table(
    results: Results,
    experiment: str,
    rows: Mapping[str, str],
    metrics: Mapping[str, tuple[str, str]],
    published: Published,
    before: Sequence[Column] = (),
    after: Sequence[Column] = (),
) -> str:
    """Return a Markdown table with one row per method.

    If the score of a prediction without a model is stored, it is the first row.

    Args:
      results: Stored results of all experiments.
      experiment: Name of the experiment.
      rows: Dict from each method to the title of its row.
      metrics: Dict from the title of each column of results to (split, metric).
      published: Numbers as printed in the paper. A metric that the paper does not report for any
        of these methods has no column "published".
      before: Columns before the metrics.
      after: Columns after the metrics.
    """
    columns, has_baseline = list(before), False
    for title, (split, metric) in metrics.items():
        cells = mean_cells(results.scores(experiment, metric, split), metric)
        value = results.baseline(experiment, metric, split)
        if value is not None:
            cells[""], has_baseline = format_value(metric, value), True
        columns.append(Column(title, cells))
        numbers = {m: row[metric] for m, row in published.items() if metric in row}
        if split == "test" and numbers.keys() & rows.keys():
            columns.append(Column("published", numbers, EMPTY))
    columns = [one._replace(cells={"": EMPTY, **one.cells}) for one in (*columns, *after)]
    first = {"": baseline_title(results, experiment)} if has_baseline else {}
    return join("method", {**first, **rows}, columns)


def baseline_title(results: Results, experiment: str) -> str:
    """Return the name of the trivial prediction that uses no model, such as "majority label"."""
    result = next(iter(results.runs(experiment).values()))["result"]
    is_tagging = result.get("task") == "tagging"
    return TAGGING_BASELINE if is_tagging else BASELINE_TITLES[result["criterion"]]


def format_baseline(results: Results, experiment: str, *, name: bool = True) -> str:
    """Format the main test metric of the trivial prediction, such as "25.00 (majority label)"."""
    if not results.runs(experiment):
        return EMPTY
    criterion = results.criterion(experiment)
    value = results.baseline(experiment, criterion)
    if value is None:
        return EMPTY
    title = f" ({baseline_title(results, experiment)})" if name else ""
    return f"{format_value(criterion, value)}{title}"


def count_seeds(results: Results, experiment: str) -> dict[str, str]:
    """Return a dict from each method to the number of seeds of its chosen setting, as text."""
    runs = results.runs(experiment)
    return {method: str(len(select_members(run["result"]))) for method, run in runs.items()}


def best_two(results: Results, experiment: str, methods: Iterable[str] = METHOD_ORDER) -> str:
    """Return a Markdown table with a paired t-test of the best two methods on the test set.

    Return "" if there is only one method, or no result on the test set.
    """
    if not results.runs(experiment) or "test" not in results.splits(experiment):
        return ""
    criterion = results.criterion(experiment)
    frame = results.scores(experiment, criterion)
    frame = frame[[method for method in frame if method in methods]]
    if len(frame.columns) < 2:
        return ""
    best, second, *_ = rank(frame, criterion)
    row = f"{method_title(best)}, then {method_title(second)}"
    outcome = compare(frame, criterion, best, second)
    test = None if outcome is None else outcome.test
    difference, *others = difference_and_p("difference", {row: outcome})
    t = {row: f"{test.t:.2f}"} if test is not None and test.t is not None else {}
    seeds = {row: str(0 if test is None else len(test.seeds))}
    columns = [difference, Column("seeds", seeds), Column("t", t, EMPTY), *others]
    return join(f"best on test {metric_title(criterion, unit=False)}", {row: row}, columns)


def settings_table(results: Results, experiment: str) -> str:
    """Return a Markdown table with one row for each method and setting of hyperparameters.

    A row shows the options that vary between settings, and the main metric on every evaluated
    split.
    """
    if not results.runs(experiment):
        return NOT_RUN_SENTENCE
    criterion, splits = results.criterion(experiment), results.splits(experiment)
    rows = pd.concat(results.select(experiment, criterion, split) for split in splits)
    rows = rows[rows.seed >= 0]
    varied = dict.fromkeys(
        option.partition("=")[0]
        for _, settings in rows.groupby("method", sort=False).setting
        for option in " ".join(settings.unique()).split()
        if not settings.str.split().map(lambda options, o=option: o in options).all()
    )
    lines = []
    for (method, setting), found in rows.groupby(["method", "setting"], sort=False):
        values = split_setting(setting)
        means = [format_mean(criterion, found[found.split == split].value) for split in splits]
        count = str(found.seed.nunique())
        options = [format_option(method, name, values) for name in varied]
        mark = "yes" if found.chosen.any() else ""
        lines.append([method_title(method), *options, *means, count, mark])
    header = ["method", *(name.replace("_", " ") for name in varied)]
    header += [f"{split} {metric_title(criterion)}" for split in splits]
    return markdown_table([*header, "seeds", "chosen"], lines)


def format_option(method: str, name: str, setting: Mapping[str, float]) -> str:
    """Format the value of the option `name` as a table cell, such as "0.01".

    Return "-" if the method does not use the option. `setting` is a dict from option to value.
    """
    unused = name not in setting
    if method in GUIDES:
        weights = GUIDES[method].weights
        unused |= name in GUIDE_WEIGHTS and name not in weights
        unused |= name == "layer" and not weights
    return EMPTY if unused else f"{setting[name]:g}"


def seeds_table(results: Results, experiment: str) -> str:
    """Return a Markdown table of the main metric: one row per seed, one column per method."""
    if not results.runs(experiment):
        return ""
    criterion, splits = results.criterion(experiment), results.splits(experiment)
    frames = [results.scores(experiment, criterion, split) for split in splits]
    return seeds_of_frames(experiment, criterion, dict(zip(splits, frames, strict=True)))


def seeds_of_frames(title: str, metric: str, frames: Mapping[str, pd.DataFrame]) -> str:
    """Return a heading and a Markdown table with one row per seed and one column per method.

    `frames` is a dict from split to its frame. A cell has the values of all splits, such as
    "71.20 / 70.95".
    """
    first = next(iter(frames.values()))
    columns = []
    for method in first:
        values = [by_seed(frame, method) for frame in frames.values()]
        cells = {
            seed: " / ".join(format_value(metric, one[seed]) for one in values)
            for seed in values[0]
        }
        columns.append(Column(method_title(method), cells, EMPTY))
    table = join("seed", {seed: str(seed) for seed in first.index}, columns)
    return f"{title}, {metric_title(metric)}, {' / '.join(frames)}:\n\n{table}"


# Tables of all experiments of a report.


def size(results: Results, experiment: str, name: str) -> str:
    """Return one size of the data set of an experiment, as text.

    If `name` is a split, return its number of rows. If it is "classes", return the number of
    classes. If it is "tokens", return the mean number of tokens of an example.
    """
    about = results.part(experiment, "data")
    if not about:
        return NOT_RUN
    if name == "tokens":
        return f"{about['average_length']:.1f}"
    if name == "classes":
        return str(about.get("classes") or EMPTY)  # A ranking task has no classes.
    return f"{about['rows'][name]:,}" if name in about["rows"] else EMPTY


def messages(results: Results, *experiments: str) -> str:
    """Return a Markdown list of the messages that were printed when each data set was prepared."""
    found = {name: results.part(name, "data") for name in experiments}
    # Older results name the messages "said".
    texts = {name: one.get("messages", one.get("said", [])) for name, one in found.items() if one}
    lines = [f"- {name}: {'; '.join(lines)}." for name, lines in texts.items()]
    return "\n".join(lines) or NOT_RUN_SENTENCE


def all_settings(results: Results, *experiments: str) -> str:
    """Return the Markdown tables of all hyperparameter settings, one for each experiment."""
    return "\n\n".join(f"{one}:\n\n{settings_table(results, one)}" for one in experiments)


def seeds(results: Results, *patterns: str) -> str:
    """Return Markdown tables of the main metric of every seed, one for each experiment.

    The experiments are those whose names match one of the patterns, such as "multinli*".
    """
    found = [seeds_table(results, name) for name in find_names(results.contents, patterns)]
    return "\n\n".join(filter(None, found)) or NOT_RUN_SENTENCE


def runs(results: Results, *patterns: str) -> str:
    """Return a Markdown table of the device, versions, commit, steps and minutes of every run.

    The runs are those of experiments whose names match one of the patterns, such as "multinli*".
    """
    rows = [
        _provenance_row(name, method, run)
        for name in find_names(results.stored, patterns)
        for method, run in results.stored[name].get("runs", {}).items()
    ]
    header = ["run", "device", "versions", "commit", "models", "steps", "steps/s", "minutes"]
    return table_or_not_run(header, rows)


def find_names(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match a pattern such as "multinli*", in the order of the patterns."""
    known = list(names)
    return list(dict.fromkeys(n for one in patterns for n in fnmatch.filter(known, one)))


def speed(results: Results, experiment: str, base: str) -> str:
    """Return a Markdown table of training steps, with one row per method and number of models.

    The columns are time, memory and number of parameters. Ratios and differences are relative to
    the method `base`.
    """
    rows = results.table[(results.table.experiment == experiment) & (results.table.split == "step")]
    frame = rows.pivot(index=["setting", "method"], columns="metric", values="value")
    columns: list[Column] = []
    for name, title, scale in (("bare", "ms per step", 1), ("peak_bytes", "GB", 1e9)):
        if name in frame:
            of_base = frame[name].xs(base, level="method")
            ratios = frame[name].div(of_base, level="setting").dropna()
            cells = {row: f"{value / scale:.2f}" for row, value in frame[name].dropna().items()}
            columns.append(Column(title, cells, EMPTY))
            columns.append(Column("ratio", {k: f"{r:.3f}" for k, r in ratios.items()}, EMPTY))
    if "parameters" in frame:
        more = frame.parameters - frame.parameters.xs(base, level="method").iloc[0]
        columns.append(Column("parameters", {k: f"{n:,.0f}" for k, n in frame.parameters.items()}))
        columns.append(Column("difference", {k: f"{n:+,.0f}" for k, n in more.items()}))
    titles = {
        (setting, method): f"{method_title(method)}, {setting.replace('=', ' ')}"
        for setting, method in zip(rows.setting, rows.method, strict=True)
    }
    return join("method", titles, columns)


def speed_option(results: Results, experiment: str, name: str) -> str:
    """Return an option of a run of the command `speed`, or its device if `name` is "device"."""
    about = results.part(experiment, "environment" if name == "device" else "config")
    return str(about.get(name, NOT_RUN))


def _provenance_row(experiment: str, method: str, run: Mapping[str, Any]) -> list[str]:
    """Return the cells of one run in the table of `runs`. A value that was not stored is "-"."""
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


# Parts of templates.


def mean(results: Results, experiment: str, metric: str, method: str) -> str:
    """Return "mean ± standard deviation" of a method on the test set, or "not run"."""
    return mean_cells(results.scores(experiment, metric), metric).get(method, NOT_RUN)


def difference(results: Results, experiment: str, first: str, second: str) -> str:
    """Return the first method minus the second on the test set, such as "0.99 (p = 0.0014)"."""
    metric = results.test_metric(experiment)
    return format_outcome(compare(results.main_scores(experiment), metric, first, second))


def compared(results: Results, firsts: str, seconds: str, experiments: str, *words: str) -> str:
    """Compare methods on the test set, and return three table cells (see `outcome_cells`).

    Each method of `firsts` is compared with each method of `seconds`, in each experiment.

    Args:
      results: Stored results of all experiments.
      firsts: Methods, joined by commas.
      seconds: Methods that are subtracted, joined by commas.
      experiments: Names of experiments, joined by commas. If there are several, the cells name a
        comparison by its experiment. Otherwise they name it by its method.
      *words: If "names" is given, the cells omit differences and p values.
    """
    found, names = {}, experiments.split(",")
    for name, first, second in itertools.product(names, firsts.split(","), seconds.split(",")):
        title = method_title(first if "," in firsts else second)
        outcome = compare(results.main_scores(name), results.test_metric(name), first, second)
        found[experiment_title(name) if len(names) > 1 else title] = outcome
    return outcome_cells(found, figures="names" not in words)


def tested(results: Results, experiment: str, first: str, second: str) -> str:
    """Return three cells of a Markdown table that show a t-test of two methods on the test set.

    The cells are the difference (first minus second), the p value and the detectable difference.
    """
    metric = results.test_metric(experiment)
    outcome = compare(results.main_scores(experiment), metric, first, second)
    cells = (column.cells.get(0, EMPTY) for column in difference_and_p("", {0: outcome}))
    return " | ".join(cells)


def detectable(results: Results, firsts: str, seconds: str, experiment: str) -> str:
    """Return the range of detectable differences of several t-tests, such as "0.21 to 0.35".

    Each method of `firsts` is tested against each method of `seconds`. Both arguments are names of
    methods, joined by commas.
    """
    frame, metric = results.main_scores(experiment), results.test_metric(experiment)
    pairs = itertools.product(firsts.split(","), seconds.split(","))
    return detectable_range(compare(frame, metric, first, second) for first, second in pairs)


def count(results: Results, experiment: str, method: str) -> str:
    """Return the number of seeds with which a method was run, or "not run"."""
    return count_seeds(results, experiment).get(method, NOT_RUN)
