"""Report on the attention-guiding paper (Wang et al. 2022): tables, findings and figures.

AG is attention guiding with both guides of the paper: the map discrimination guide (MDG) and the
pattern decorrelation guide (PDG).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from distattn_jax.tasks.guides import GUIDES
from distattn_jax.train.results import Result, select_members
from experiments.papers import tables
from experiments.papers.attention_guiding.costs import (
    costs,
    epochs,
    memory,
    models,
    speed_option,
    step_device,
    steps,
)
from experiments.papers.attention_guiding.figures import list_pictures
from experiments.papers.attention_guiding.selections import (
    BASE,
    DATA_TITLES,
    LAYER_GUIDES,
    LAYERS,
    SHARE_GUIDES,
    SWEEPS,
    find_criterion,
    join_model_names,
    layer_frames,
    repetition_frames,
    repetition_names,
    share_frames,
)
from experiments.papers.attention_guiding.settings import RATES
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    format_difference,
    format_range,
    format_value,
    markdown_table,
    method_title,
    metric_title,
)
from experiments.papers.page import Report, read_published
from experiments.papers.results import HEAD_STATISTICS, Results
from experiments.papers.statistics import ALPHA
from experiments.papers.stored_results import SEARCHED
from experiments.papers.tables import Column, Outcomes, join

CLASSIFICATION = ("accuracy", "macro_precision", "macro_recall", "macro_f")
RANKING = ("mrr", "recall@1", "recall@3", "recall@5", "recall@20")
# Metrics of the paper's data sets, in the order of the columns. COVID-Fact is not one of them.
METRICS = {"multinli": CLASSIFICATION, "mednli": CLASSIFICATION, "cross_genre": RANKING}
MEASURED = {**METRICS, "covid_fact": RANKING}
ABLATION_MODELS = {"multinli": "Roberta", "mednli": "BlueBERT", "cross_genre": "BioBERT"}
# Tables 2 and 3: guide -> name of the row.
GUIDE_ROWS = {
    "2": {guide: method_title(guide) for guide in GUIDES if guide not in ("mdg", "pdg")},
    "3": {
        guide: f"{row} ({method_title(guide)})"
        for guide, row in (
            *(("ag", "default"), ("none", "w/o AG"), ("pdg", "w/o MDG"), ("mdg", "w/o PDG")),
        )
    },
}
STATISTIC_TITLES = dict(
    zip(
        HEAD_STATISTICS,
        ("spread of maps", "similarity of heads", "attention on special tokens"),
        strict=True,
    )
)


# Findings.


def outcomes(results: Results) -> str:
    """Return the findings of all comparisons with no guide."""
    compared: dict[str, Outcomes] = {}
    for data, title in DATA_TITLES.items():
        name = metric_title(MEASURED[data][0], unit=False)
        row = f"{title} ({join_model_names(results, [data])}), {name} of every guide"
        found = compare_guides(results, data)
        compared[row] = {method_title(guide): one for guide, one in found.items()}
    metric = find_criterion(results)
    compared["One guided layer (Figure 3)"] = {
        f"{method_title(guide)}, layer {layer}": tables.compare(frame, metric, guide, "none")
        for guide in LAYER_GUIDES
        for layer, frame in layer_frames(results).items()
    }
    for guide in (guide for guide in SHARE_GUIDES if guide != "none"):
        compared[f"{method_title(guide)} on shares of the training set (Figure 6)"] = {
            f"{share} %": tables.compare(frame, metric, guide, "none")
            for share, frame in share_frames(results).items()
        }
    return tables.outcomes_table(compared)


def compare_guides(results: Results, data: str) -> Outcomes:
    """Compare every guide with no guide on the test set."""
    frame = results.scores(data, MEASURED[data][0])
    return tables.minus(
        frame, MEASURED[data][0], "none", [guide for guide in GUIDES if guide in frame]
    )


def detectable(results: Results, data: str) -> str:
    """Return the range of detectable differences between a guide and no guide."""
    return tables.detectable_range(compare_guides(results, data).values())


def repeated(results: Results, data: str) -> str:
    """Return the tests of guides against no guide, averaged over repeated runs of each seed."""
    frames, metric = repetition_frames(results, data), MEASURED[data][0]
    if not frames:
        return NOT_RUN
    mean = _average(frames)
    found = tables.minus(mean, metric, "none", mean)
    return "; ".join(
        f"{method_title(guide)} {tables.describe(one)}" for guide, one in found.items()
    )


def repetitions(results: Results, data: str, name: str) -> str:
    """Return the number of runs, the lowest or highest mean of no guide, or the range of a seed.

    Args:
      results: Results.
      data: Name of the data set.
      name: "count", "lowest", "highest" or "range".
    """
    frames, metric = repetition_frames(results, data), MEASURED[data][0]
    if not frames:
        return NOT_RUN
    means = [frame["none"].mean() for frame in frames.values()]
    return {
        "count": str(len(frames)),
        "lowest": format_value(metric, min(means)),
        "highest": format_value(metric, max(means)),
        "range": format_difference(metric, _ranges(frames).max()),
    }[name]


def _average(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the mean over repeated runs, for the seeds of a guide that all runs have."""
    first, *others = frames.values()
    return sum(others, first) / len(frames)


def _ranges(frames: Mapping[str, pd.DataFrame]) -> pd.Series:
    """Return the largest difference between two runs with the same seed, by guide."""
    table = pd.concat(frames).groupby("seed")
    complete = table.count() == len(frames)
    return (table.max() - table.min())[complete].max()[next(iter(frames.values())).columns]


# Tables 1 to 3.


def model_rows(results: Results, data: str) -> str:
    """Return Table 1 for one data set: published rows, then our rows."""
    metrics, rows = MEASURED[data], []
    for model, numbers in read_published("attention_guiding")["1"].items():
        if data in METRICS:
            cells = (_escape(numbers[f"{data} {metric}"]) for metric in metrics)
            rows.append([model, "published", *cells])
    means = [tables.mean_cells(results.scores(data, metric), metric) for metric in metrics]
    names = {"none": "", "ag": "+AG"} if results.runs(data) else {"": ""}
    for guide, suffix in names.items():
        model = join_model_names(results, [data]) if guide else EMPTY
        rows.append([model + suffix, "ours", *(cells.get(guide, NOT_RUN) for cells in means)])
    return markdown_table(["model", "origin", *map(metric_title, metrics)], rows)


def guide_rows(results: Results, data: str, table: str) -> str:
    """Return Table 2 or 3 for one data set: each metric of every guide, ours and as published."""
    runs, blank = results.runs(data), {"": EMPTY}
    columns = [Column("seeds", {**blank, **tables.count_seeds(results, data)})]
    if table == "2":
        weights = {guide: format_guide_weights(run["result"]) for guide, run in runs.items()}
        counts = {guide: str(n) for guide, n in count_settings(results, data).items()}
        columns += [Column("weights", blank | weights), Column("settings tried", blank | counts)]
    published = read_published("attention_guiding")[table]
    for metric in MEASURED[data]:
        cells = tables.mean_cells(results.scores(data, metric), metric)
        value = results.baseline(data, metric)
        cells[""] = EMPTY if value is None else format_value(metric, value)
        columns.append(Column(metric_title(metric), cells))
        if data in METRICS:
            numbers = {g: _escape(row[f"{data} {metric}"]) for g, row in published.items()}
            columns.append(Column("published", numbers, EMPTY))
    rows = GUIDE_ROWS[table]
    if results.baseline(data, MEASURED[data][0]) is not None:
        rows = {"": tables.baseline_title(results, data), **rows}
    return join("guide", rows, columns)


def guide_tests(results: Results, data: str, table: str) -> str:
    """Return two t-tests for each guide: minus no guide, and AG minus it."""
    metric = MEASURED[data][0]
    frame = results.scores(data, metric)
    guides = [guide for guide in GUIDE_ROWS[table] if guide in frame]
    if len(guides) < 2 or not {"none", "ag"} & set(guides):
        return "Tests: not run."
    against = {
        "minus no guide": tables.minus(frame, metric, "none", guides),
        "AG minus it": {
            guide: tables.compare(frame, metric, "ag", guide)
            for guide in guides
            if guide not in ("none", "ag")
        },
    }
    columns, count = [], 0
    for title, found in against.items():
        name = f"{title}, {metric_title(metric, unit=False)}"
        difference, *others = tables.difference_and_p(name, found)
        pairs = {guide: str(len(one.test.seeds)) for guide, one in found.items() if one}
        columns += [difference, Column("pairs", pairs, EMPTY), *others]
        count += len(others[0].cells)
    note = (
        "Paired t-tests on the test set over the seeds that both have, two-sided, "
        f"{count} in this table; p is not corrected. With a Bonferroni correction for their "
        f"number, p would have to be below {ALPHA / max(count, 1):.2g} for a significance level "
        f"of {ALPHA:g}."
    )
    return f"{join('guide', guides, columns)}\n\n{note}"


def best_guides(results: Results, data: str) -> str:
    """Return a t-test of the best two guides of Table 2."""
    return tables.best_two(results, data, GUIDE_ROWS["2"])


def model_names(results: Results, data: str) -> str:
    """Return the name of our pre-trained model, or "not run"."""
    return join_model_names(results, [data])


def format_guide_weights(result: Result) -> str:
    """Format the loss weights of a guide in its best setting, such as "alpha 0.1, beta 0.01"."""
    setting = result["members"][select_members(result)[0]]["setting"]
    found = [f"{name} {setting[name]:g}" for name in GUIDES[result["method"]].weights]
    return ", ".join(found) or EMPTY


def count_settings(results: Results, data: str) -> dict[str, int]:
    """Return, for each guide, the number of hyperparameter settings that were tried.

    If the guide was trained with the loss weights that a search selected, the number is multiplied
    by the number of settings in the search.
    """
    counts, tried = results.count_settings(data), results.count_settings(data + SEARCHED)
    for guide, searched in results.runs(data + SEARCHED).items():
        pair = [run["result"] for run in (searched, results.runs(data).get(guide)) if run]
        if len(pair) == 2 and format_guide_weights(pair[0]) == format_guide_weights(pair[1]):
            counts[guide] *= tried[guide]
    return counts


def guides(results: Results) -> str:
    """Return the results of all guides, their tests against no guide, and published gains."""
    columns = []
    for data in (data for data in DATA_TITLES if results.runs(data)):
        metric = MEASURED[data][0]
        cells = tables.mean_cells(results.scores(data, metric), metric)
        cells[""] = tables.format_baseline(results, data)
        columns.append(Column(f"{DATA_TITLES[data]}, {metric_title(metric)}", cells))
        found = compare_guides(results, data)
        blank = {"": EMPTY, "none": EMPTY}
        tests = {guide: tables.format_outcome(one) for guide, one in found.items()}
        columns.append(Column("minus no guide", blank | tests))
        if data in METRICS:
            gains = {guide: _published_gain(data, guide) for guide in GUIDES if guide != "none"}
            columns.append(Column("published gain", gains, EMPTY))
    order = dict.fromkeys(("none", "ag", "mdg", "pdg", *GUIDE_ROWS["2"]))
    return join("guide", {"": "no model", **{g: method_title(g) for g in order}}, columns)


def _published_gain(data: str, guide: str) -> str:
    """Return the published gain in points and the model, such as "+0.65 (BERT)".

    The gains of MDG and PDG are from Table 3 of the paper, all others from Table 2.
    """
    published = read_published("attention_guiding")
    table, model = ("2", "BERT") if guide in published["2"] else ("3", ABLATION_MODELS[data])
    name = f"{data} {METRICS[data][0]}"
    guided, unguided = (float(published[table][g][name].rstrip("*")) for g in (guide, "none"))
    return f"{guided - unguided:+.2f} ({model})"


def _escape(number: str) -> str:
    """Escape the asterisks of a printed number for Markdown."""
    return number.replace("*", r"\*")


# Sweeps and repeated runs.


def against_none(
    title: str, frames: Mapping[Any, pd.DataFrame], guides: Iterable[str], metric: str
) -> str:
    """Return a table of every guide with t-tests against no guide, one row per frame.

    Args:
      title: Title of the first column.
      frames: Values by seed and guide, for each row.
      guides: Guides of the columns.
      metric: Name of the metric.
    """
    columns, pairs = [], []
    cells = {row: tables.mean_cells(frame, metric) for row, frame in frames.items()}
    for guide in guides:
        means = {row: by_guide[guide] for row, by_guide in cells.items() if guide in by_guide}
        columns.append(Column(method_title(guide), means))
        if guide != "none":
            found = {row: tables.compare(f, metric, guide, "none") for row, f in frames.items()}
            columns += tables.difference_and_p("minus no guide", found, detectable=False)
            tests = [one.test for one in found.values() if one is not None]
            pairs += [len(test.seeds) for test in tests if test.p is not None]
    table = join(title, {row: str(row) for row in frames}, columns)
    note = f"\n\nMeans use all seeds of a guide. {count_tests(pairs)}" if pairs else ""
    return table + note


def count_tests(pairs: list[int]) -> str:
    """Return a sentence on the number of t-tests, and of the seeds of each."""
    return (
        "Differences use the seeds that both have. "
        f"{len(pairs)} paired t-tests over {format_range(pairs)} seeds, two-sided; p is not "
        "corrected for the number of tests."
    )


def layers(results: Results) -> str:
    """Return the main test metric by guided layer, with t-tests against no guide."""
    return against_none("layer", layer_frames(results), LAYER_GUIDES, find_criterion(results))


def shares(results: Results) -> str:
    """Return the main test metric by share of the training set, with t-tests against no guide."""
    frames, metric = share_frames(results), find_criterion(results)
    return against_none("training set (%)", frames, SHARE_GUIDES, metric)


def shares_table(results: Results) -> str:
    """Return the table of `shares` without its note."""
    return shares(results).partition("\n\n")[0]


def repeated_runs(results: Results, data: str) -> str:
    """Return a table with one row per repetition, and a last row with the mean of each seed."""
    frames, metric = repetition_frames(results, data), MEASURED[data][0]
    if not frames:
        return NOT_RUN_SENTENCE
    spans = [
        f"{method_title(guide)} {format_difference(metric, span)}"
        for guide, span in _ranges(frames).items()
    ]
    note = f"The largest range of a single seed: {', '.join(spans)}."
    rows = {**frames, "mean of each seed": _average(frames)}
    guides = list(next(iter(frames.values())))
    return f"{note}\n\n{against_none('experiment', rows, guides, metric)}"


# Heads, searches, seeds and runs.


def heads(results: Results) -> str:
    """Return head statistics of every guide, with t-tests against no guide."""
    columns: list[Column] = []
    for name, title in STATISTIC_TITLES.items():
        frame = results.scores(BASE, name, "heads")
        if not columns:
            counts = {guide: str(frame[guide].count()) for guide in frame}
            columns.append(Column("models", counts))
        columns.append(Column(title, tables.mean_cells(frame, name)))
        found = tables.minus(frame, name, "none", frame)
        columns += tables.difference_and_p("minus no guide", found, detectable=False)
    return join("guide", columns[0].cells and list(columns[0].cells), columns)


def head_pairs(results: Results) -> str:
    """Return the number of validation pairs that the head statistics use."""
    found = results.part(BASE, "guided", "heads").values()
    return next((str(one["pairs"]) for one in found), NOT_RUN)


def messages(results: Results) -> str:
    """Return the messages from the preparation of each data set."""
    return tables.data_messages(results, DATA_TITLES)


def every_seed(results: Results) -> str:
    """Return the results of every seed. Each guided layer has a table of its own."""
    parts = [tables.seeds_tables(results, (n for n in list_experiments() if n != LAYERS))]
    metric = find_criterion(results)
    by_split = {split: layer_frames(results, split) for split in ("validation", "test")}
    for layer in by_split["test"]:
        frames = {
            split: found[layer].drop(columns="none", errors="ignore")
            for split, found in by_split.items()
        }
        if len(frames["test"].columns):
            parts.append(tables.seeds_of_frames(f"{LAYERS}, layer {layer}", metric, frames))
    return "\n\n".join(parts)


def list_experiments() -> list[str]:
    """Return the names of all experiments: main ones, repetitions, and sweeps."""
    repetitions = [name for data in DATA_TITLES for name in repetition_names(data)]
    return [*DATA_TITLES, *repetitions, *SWEEPS]


def runs(results: Results) -> str:
    """Return device, versions, commit, steps and minutes of every run, searches first."""
    names = list_experiments()
    searches = [name + suffix for suffix in (RATES, SEARCHED) for name in names]
    return tables.provenance_table(results, [*searches, *names])


REPORT = Report(
    paper="guiding",
    folder="attention_guiding",
    experiments=tuple(list_experiments()),
    parts=(
        *(outcomes, detectable, repeated, repetitions, models, model_rows, guide_rows),
        *(guide_tests, best_guides, model_names, guides, layers, shares, shares_table),
        *(repeated_runs, heads, head_pairs, messages, every_seed, runs),
        *(costs, epochs, memory, speed_option, step_device, steps),
    ),
    list_pictures=list_pictures,
)
