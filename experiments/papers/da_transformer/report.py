"""Report on the DA-Transformer paper (Wu et al. 2021): tables, findings and figures."""

from typing import Any

import numpy as np

from experiments.papers import formatting, tables
from experiments.papers.da_transformer.figures import list_pictures
from experiments.papers.da_transformer.settings import ADJUSTMENTS, MAPPINGS, METRICS, OURS, ROWS
from experiments.papers.formatting import EMPTY, NOT_RUN, method_title, metric_title
from experiments.papers.page import Report, read_published
from experiments.papers.results import Results
from experiments.papers.stored_results import SEARCHED
from experiments.papers.tables import Column, Outcomes

FAR = 10  # A key is far if it is more than this many words away.
FLAT = 1.05  # A query is flat if its largest weight is below this multiple of the uniform weight.


def compare_with_ours(results: Results, experiment: str, methods: Any) -> Outcomes:
    """Compare DA-Transformer with each other method on the test set, by paired t-tests.

    The difference of a test is the score of DA-Transformer minus the score of the other method.
    """
    frame, metric = results.main_scores(experiment), results.test_metric(experiment)
    return {m: tables.compare(frame, metric, OURS, m) for m in methods if m != OURS}


def methods(results: Results, experiment: str, kind: str = "compared") -> str:
    """Return a Markdown table with one row per method: our results, published numbers, t-tests.

    Args:
      results: Stored results of all experiments.
      experiment: Name of the experiment.
      kind: Selects the methods: "compared" for the attention variants that the paper compares,
        "mappings" for DA-Transformer with other mappings of the distance, "adjustments" for
        DA-Transformer with other ways to use the mapped distance.
    """
    rows = {"compared": ROWS, "mappings": (OURS, *MAPPINGS), "adjustments": (OURS, *ADJUSTMENTS)}
    chosen, metrics = rows[kind], METRICS[experiment]
    if not (set(chosen) - {OURS}) & results.runs(experiment).keys():
        return formatting.NOT_RUN_SENTENCE
    before = [Column("seeds", tables.count_seeds(results, experiment))]
    # Rating regression uses the search of rating classification.
    tried = results.tried(experiment.removesuffix("_rating") + SEARCHED)
    if kind == "compared" and tried:
        counts = {method: str(tried.get(method, 1)) for method in results.runs(experiment)}
        before.append(Column("settings tried", counts))
    title = f"DA minus it, {metric_title(metrics[0], unit=False)}"
    return tables.methods_table(
        results,
        experiment,
        {method: method_title(method) for method in chosen},
        {metric_title(metric): ("test", metric) for metric in metrics},
        read_published("da_transformer").get(experiment, {}),
        before,
        tables.difference_and_p(title, compare_with_ours(results, experiment, chosen)),
    )


def best_methods(results: Results, experiment: str) -> str:
    """Return a Markdown table with a paired t-test of the best two methods."""
    return tables.best_two(results, experiment, ROWS)


def both(results: Results, experiment: str, method: str) -> str:
    """Return the main test metric of a method as "ours / published"."""
    metric = METRICS[experiment][0]
    published = read_published("da_transformer").get(experiment, {}).get(method, {})
    ours = tables.mean(results, experiment, metric, method)
    return f"{ours} / {published.get(metric, EMPTY)}"


def cost(results: Results, name: str) -> str:
    """Return one number that compares the cost of DA-Transformer with that of the Transformer.

    If `name` is "parameters", return the number of additional parameters of DA-Transformer. If it
    is "time", return the time of a training step divided by that of the Transformer. Return "not
    run" if one of the two methods was not measured.
    """
    frame = results.scores("speed", "parameters" if name == "parameters" else "bare", "step")
    if not {OURS, "vanilla"} <= set(frame):
        return NOT_RUN
    ours, vanilla = (frame[method].iloc[0] for method in (OURS, "vanilla"))
    return f"{ours - vanilla:.0f}" if name == "parameters" else f"{ours / vanilla:.2f}"


def signs(results: Results, *experiments: str) -> str:
    """Return a Markdown table of the distance weights w and sigmoid shapes v of trained heads.

    A row has the mean length of the sequences that the heads read, the share of heads with w > 0,
    the median w of each sign, and the mean v. Before training, half of all heads have w > 0.
    """
    rows = []
    for name in experiments:
        lengths = results.part(name, "data", "sequence_lengths")
        for level, heads in results.part(name, "heads").items():
            weight, shape = np.asarray(heads["weight"]), np.asarray(heads["shape"])
            share = (weight > 0).reshape(len(weight), -1).mean(axis=1)
            rows.append(
                [
                    f"{formatting.experiment_title(name)}, {level}",
                    f"{lengths[level]:.1f}" if level in lengths else EMPTY,
                    formatting.format_mean("accuracy", share),
                    f"{np.median(weight[weight < 0]):.3f}",
                    f"{np.median(weight[weight > 0]):.3f}",
                    f"{shape.mean():.2f}",
                ]
            )
    header = ["heads of", "sequence length", "w > 0 (% of heads)", "median w < 0", "median w > 0"]
    return formatting.table_or_not_run([*header, "mean v"], rows)


def distances(results: Results) -> str:
    """Return a Markdown table of the share of attention on words more than FAR words away.

    The columns are uniform attention, the Transformer, and the heads of DA-Transformer with
    distance weight w < 0 and with w > 0.
    """
    rows = []
    for name in METRICS:
        profiles = results.part(name, "distances")
        if OURS not in profiles:
            continue
        far = {
            method: np.asarray(p["heads"])[:, FAR + 1 :].sum(1) for method, p in profiles.items()
        }
        weight = np.asarray(profiles[OURS]["weight"])
        groups = [
            np.asarray(profiles[OURS]["uniform"])[FAR + 1 :].sum(keepdims=True),
            far.get("vanilla", np.zeros(0)),
            far[OURS][weight < 0],
            far[OURS][weight > 0],
        ]
        cells = [f"{100 * group.mean():.1f}" if group.size else EMPTY for group in groups]
        rows.append([formatting.experiment_title(name), *cells])
    header = [f"attention (%) on words more than {FAR} away", "uniform attention", "Transformer"]
    return formatting.table_or_not_run([*header, "DA heads, w < 0", "DA heads, w > 0"], rows)


def flat_queries(results: Results, method: str) -> str:
    """Return how many queries of Figure 8 have nearly uniform attention, such as "0 of 60".

    The attention of a query is nearly uniform if its largest weight is below FLAT / (number of
    keys).
    """
    attention = results.part("ag", "attention", method)
    if not attention:
        return NOT_RUN
    strongest = np.asarray(attention["maps"]).max(axis=-1)
    flat = int((strongest < FLAT / len(attention["tokens"])).sum())
    return f"{flat} of {strongest.size}"


REPORT = Report(
    paper="da", folder="da_transformer", experiments=tuple(METRICS), list_pictures=list_pictures
)
