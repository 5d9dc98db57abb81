"""Report on the attention-guiding paper (Wang et al. 2022): tables, findings and figures.

AG is attention guiding with both guides of the paper: the map discrimination guide (MDG) and the
pattern decorrelation guide (PDG).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from distattn_jax.tasks.guides import GUIDES
from distattn_jax.train.results import Result, select_members
from experiments.papers import formatting, tables
from experiments.papers.attention_guiding import selections
from experiments.papers.attention_guiding.costs import costs, epochs, memory, models
from experiments.papers.attention_guiding.figures import list_pictures
from experiments.papers.attention_guiding.selections import BASE, DATA, LAYERS, model_names
from experiments.papers.formatting import EMPTY, NOT_RUN, method_title, metric_title
from experiments.papers.page import Report, read_published
from experiments.papers.results import HEAD_STATISTICS, Results
from experiments.papers.stored_results import SEARCHED
from experiments.papers.tables import Column, Outcomes, join

__all__ = ["REPORT", "costs", "epochs", "memory", "model_names", "models"]

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
        "ag": f"default ({method_title('ag')})",
        "none": f"w/o AG ({method_title('none')})",
        "pdg": f"w/o MDG ({method_title('pdg')})",
        "mdg": f"w/o PDG ({method_title('mdg')})",
    },
}
STATISTIC_TITLES = ("spread of maps", "similarity of heads", "attention on special tokens")


# Findings.


def sweep_outcomes(results: Results) -> str:
    """Return table rows that compare guides with no guide, for Figures 3 and 6.

    Figure 3 varies the guided layer, and Figure 6 varies the share of the training set. A row says
    how many comparisons are better, worse and not distinguishable.
    """
    compared: dict[str, Outcomes] = {}
    metric = selections.find_criterion(results)
    compared["One guided layer (Figure 3)"] = {
        f"{method_title(guide)}, layer {layer}": tables.compare(frame, metric, guide, "none")
        for guide in selections.LAYER_GUIDES
        for layer, frame in selections.layer_frames(results).items()
    }
    for guide in (guide for guide in selections.SHARE_GUIDES if guide != "none"):
        compared[f"{method_title(guide)} on shares of the training set (Figure 6)"] = {
            f"{share} %": tables.compare(frame, metric, guide, "none")
            for share, frame in selections.share_frames(results).items()
        }
    return tables.outcome_rows(compared)


def compare_guides(results: Results, data: str) -> Outcomes:
    """Compare every guide with no guide on the test set, with one paired t-test per guide."""
    frame, metric = results.main_scores(data, GUIDES), results.test_metric(data)
    return tables.minus(frame, metric, "none", frame)


def repeated(results: Results, data: str) -> str:
    """Return a sentence with a t-test of each guide against no guide, over repeated runs.

    The value of a seed is its mean over all repetitions of the run.
    """
    frames, metric = selections.repetition_frames(results, data), results.test_metric(data)
    if not frames:
        return NOT_RUN
    mean = _average(frames)
    found = tables.minus(mean, metric, "none", mean)
    return "; ".join(
        f"{method_title(guide)} {tables.describe(one)}" for guide, one in found.items()
    )


def repetitions(results: Results, data: str, name: str) -> str:
    """Return one number about an experiment that was run several times.

    Args:
      results: Stored results of all experiments.
      data: Name of the data set, which is also the name of the experiment.
      name: "count" returns how often the experiment was run. "lowest" and "highest" return the
        lowest and the highest mean over seeds without a guide. "range" returns the largest
        difference between two runs with the same guide and seed.
    """
    frames, metric = selections.repetition_frames(results, data), results.test_metric(data)
    if not frames:
        return NOT_RUN
    means = [frame["none"].mean() for frame in frames.values()]
    return {
        "count": str(len(frames)),
        "lowest": formatting.format_value(metric, min(means)),
        "highest": formatting.format_value(metric, max(means)),
        "range": formatting.format_difference(metric, _ranges(frames).max()),
    }[name]


def _average(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return the mean over repeated runs, with one row per seed and one column per guide.

    A seed that one of the runs lacks has no mean.
    """
    first, *others = frames.values()
    return sum(others, first) / len(frames)


def _ranges(frames: Mapping[str, pd.DataFrame]) -> pd.Series:
    """Return, for each guide, the largest difference between two repetitions with the same seed."""
    table = pd.concat(frames).groupby("seed")
    complete = table.count() == len(frames)
    return (table.max() - table.min())[complete].max()[next(iter(frames.values())).columns]


# Tables 1 to 3.


def model_rows(results: Results, data: str) -> str:
    """Return Table 1 for one data set, in Markdown: published rows, then our rows."""
    metrics, rows = MEASURED[data], []
    for model, numbers in read_published("attention_guiding")["1"].items():
        if data in METRICS:
            cells = (_escape(numbers[f"{data} {metric}"]) for metric in metrics)
            rows.append([model, "published", *cells])
    means = [tables.mean_cells(results.scores(data, metric), metric) for metric in metrics]
    names = {"none": "", "ag": "+AG"} if results.runs(data) else {"": ""}
    for guide, suffix in names.items():
        model = model_names(results, data) if guide else EMPTY
        rows.append([model + suffix, "ours", *(cells.get(guide, NOT_RUN) for cells in means)])
    return formatting.markdown_table(["model", "origin", *map(metric_title, metrics)], rows)


def guide_rows(results: Results, data: str, table: str) -> str:
    """Return Table 2 or 3 for one data set, in Markdown, with one row per guide.

    For each metric, there is a column of our results and a column of the published numbers.
    `table` is "2" or "3".
    """
    runs = results.runs(data)
    before = [Column("seeds", tables.count_seeds(results, data))]
    if table == "2":
        weights = {guide: format_guide_weights(run["result"]) for guide, run in runs.items()}
        counts = {guide: str(n) for guide, n in count_settings(results, data).items()}
        before += [Column("weights", weights), Column("settings tried", counts)]
    published = {
        guide: {name.split()[1]: _escape(n) for name, n in row.items() if name.startswith(data)}
        for guide, row in read_published("attention_guiding")[table].items()
    }
    metrics = {metric_title(metric): ("test", metric) for metric in MEASURED[data]}
    return tables.methods_table(results, data, GUIDE_ROWS[table], metrics, published, before)


def guide_tests(results: Results, data: str, table: str) -> str:
    """Return a Markdown table with two paired t-tests for each guide of Table 2 or 3.

    The first test is of the guide minus no guide. The second test is of AG (attention guiding)
    minus the guide. `table` is "2" or "3".
    """
    metric = results.test_metric(data)
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
    columns = []
    for title, found in against.items():
        name = f"{title}, {metric_title(metric, unit=False)}"
        difference, *others = tables.difference_and_p(name, found)
        pairs = {guide: str(len(one.test.seeds)) for guide, one in found.items() if one}
        columns += [difference, Column("pairs", pairs, EMPTY), *others]
    return join("guide", guides, columns)


def best_guides(results: Results, data: str) -> str:
    """Return a Markdown table with a paired t-test of the best two guides of Table 2."""
    return tables.best_two(results, data, GUIDE_ROWS["2"])


def format_guide_weights(result: Result) -> str:
    """Format the loss weights of a guide in its best setting, such as "alpha 0.1, beta 0.01"."""
    setting = result["members"][select_members(result)[0]]["setting"]
    found = [f"{name} {setting[name]:g}" for name in GUIDES[result["method"]].weights]
    return ", ".join(found) or EMPTY


def count_settings(results: Results, data: str) -> dict[str, int]:
    """Return, for each guide, the number of hyperparameter settings that were tried.

    If a search selected the loss weights of the guide, the number of settings of the run is
    multiplied by the number of settings of the search.
    """
    counts, tried = results.tried(data), results.tried(data + SEARCHED)
    for guide, searched in results.runs(data + SEARCHED).items():
        pair = [run["result"] for run in (searched, results.runs(data).get(guide)) if run]
        if len(pair) == 2 and format_guide_weights(pair[0]) == format_guide_weights(pair[1]):
            counts[guide] *= tried[guide]
    return counts


def guides(results: Results) -> str:
    """Return a Markdown table with one row per guide, and three columns for each data set.

    The columns are our result, a t-test against no guide, and the published gain.
    """
    columns = []
    for data in (data for data in DATA if results.runs(data)):
        metric = results.test_metric(data)
        cells = tables.mean_cells(results.scores(data, metric), metric)
        cells[""] = tables.format_baseline(results, data)
        columns.append(
            Column(f"{formatting.experiment_title(data)}, {metric_title(metric)}", cells)
        )
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
    """Return the published gain of a guide in points, and the model, such as "+0.65 (BERT)".

    The gains of MDG and PDG are from Table 3 of the paper, those of all other guides from Table 2.
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
    """Return a Markdown table that compares guides with no guide, for example in each layer.

    A guide has a column of means, and two columns of a t-test against no guide: difference and p.

    Args:
      title: Title of the first column, such as "layer".
      frames: Dict from the title of each row, such as a layer number, to a DataFrame of the metric,
        with one row per seed and one column per guide.
      guides: Guides of the columns.
      metric: Name of the metric.
    """
    columns = []
    cells = {row: tables.mean_cells(frame, metric) for row, frame in frames.items()}
    for guide in guides:
        means = {row: by_guide[guide] for row, by_guide in cells.items() if guide in by_guide}
        columns.append(Column(method_title(guide), means))
        if guide != "none":
            found = {row: tables.compare(f, metric, guide, "none") for row, f in frames.items()}
            columns += tables.difference_and_p("minus no guide", found, detectable=False)
    return join(title, {row: str(row) for row in frames}, columns)


def layers(results: Results) -> str:
    """Return a Markdown table with one row per guided layer: the main test metric of each guide.

    Each guide has a t-test against no guide.
    """
    frames, metric = selections.layer_frames(results), selections.find_criterion(results)
    return against_none("layer", frames, selections.LAYER_GUIDES, metric)


def shares(results: Results) -> str:
    """Return a Markdown table with one row for each share of the training set.

    A row has the main test metric of each guide, and a t-test of the guide against no guide.
    """
    frames, metric = selections.share_frames(results), selections.find_criterion(results)
    return against_none("training set (%)", frames, selections.SHARE_GUIDES, metric)


def repeated_runs(results: Results, data: str) -> str:
    """Return a Markdown table with one row for each repetition of an experiment.

    In the last row, the value of each seed is its mean over the repetitions. A sentence before the
    table has the largest differences between repetitions.
    """
    frames, metric = selections.repetition_frames(results, data), results.test_metric(data)
    if not frames:
        return formatting.NOT_RUN_SENTENCE
    spans = [
        f"{method_title(guide)} {formatting.format_difference(metric, span)}"
        for guide, span in _ranges(frames).items()
    ]
    note = f"The largest range of a single seed: {', '.join(spans)}."
    rows = {**frames, "mean of each seed": _average(frames)}
    guides = list(next(iter(frames.values())))
    return f"{note}\n\n{against_none('experiment', rows, guides, metric)}"


# Heads, searches, seeds and runs.


def heads(results: Results) -> str:
    """Return a Markdown table of head statistics, with one row per guide.

    Each statistic (see `compute_statistics`) has a t-test of the guide against no guide.
    """
    columns: list[Column] = []
    for name, title in zip(HEAD_STATISTICS, STATISTIC_TITLES, strict=True):
        frame = results.scores(BASE, name, "heads")
        if not columns:
            counts = {guide: str(frame[guide].count()) for guide in frame}
            columns.append(Column("models", counts))
        columns.append(Column(title, tables.mean_cells(frame, name)))
        found = tables.minus(frame, name, "none", frame)
        columns += tables.difference_and_p("minus no guide", found, detectable=False)
    return join("guide", columns[0].cells and list(columns[0].cells), columns)


def head_pairs(results: Results) -> str:
    """Return the number of validation pairs on which the head statistics were computed."""
    found = results.part(BASE, "guided", "heads").values()
    return next((str(one["pairs"]) for one in found), NOT_RUN)


def every_seed_of_layers(results: Results) -> str:
    """Return one Markdown table per guided layer: one row per seed, one column per guide."""
    parts, metric = [], selections.find_criterion(results)
    by_split = {s: selections.layer_frames(results, s) for s in ("validation", "test")}
    for layer in by_split["test"]:
        frames = {
            split: found[layer].drop(columns="none", errors="ignore")
            for split, found in by_split.items()
        }
        if len(frames["test"].columns):
            parts.append(tables.seeds_of_frames(f"{LAYERS}, layer {layer}", metric, frames))
    return "\n\n".join(parts)


REPORT = Report(
    paper="guiding",
    folder="attention_guiding",
    experiments=(
        *DATA,
        *(name for data in DATA for name in selections.repetition_names(data)),
        *selections.SWEEPS,
    ),
    list_pictures=list_pictures,
)
