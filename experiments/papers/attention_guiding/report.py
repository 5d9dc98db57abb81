"""Attention guiding (Wang et al. 2022): Tables 1 to 4 and Figures 3 to 6, ours beside the paper's.

Everything is made of the files in `experiments/results`, which `collect` writes. What is not there
was not run, and every cell says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.guiding import RATES
from experiments.papers import report_sections, stored_results
from experiments.papers.attention_guiding import (
    costs,
    figures,
    heads,
    models,
    repeated_runs,
    sweeps,
)
from experiments.papers.attention_guiding.published import (
    ERRATA,
    FIGURE_3,
    FIGURE_6,
    METRICS,
    RANKING,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    table,
)
from experiments.papers.comparison_tables import BASELINES, pairs_of, tested, verdict
from experiments.papers.formatting import (
    NOT_RUN,
    NOTHING,
    UNRUN,
    figure,
    markdown,
    mean_and_spread,
    spelled,
    title,
)
from experiments.papers.results import chosen, of_seeds
from experiments.papers.statistics import ALPHA
from experiments.searched import SEARCHED

DATA_SETS = {
    **models.CALLED,
    "covid_fact": f"{models.CALLED['covid_fact']}, in place of Cross-genre-IR",
}
MEASURED = {**METRICS, "covid_fact": RANKING}
PAPERS_DATA = {
    "multinli": ("433k in all", NOTHING, NOTHING, "3", NOTHING),
    "mednli": ("11k", NOTHING, NOTHING, "3", NOTHING),
    "cross_genre": ("48k pairs", NOTHING, NOTHING, "2", NOTHING),
}
PAPERS_MODELS = {"multinli": "Roberta", "mednli": "BlueBERT", "cross_genre": "BioBERT"}  # Table 3
VARIANTS = {"ag": "default", "none": "w/o AG", "pdg": "w/o MDG", "mdg": "w/o PDG"}


def report(folder: stored_results.AnyPath = stored_results.FOLDER) -> str:
    """The Markdown of all tables, with the figures drawn beside the results."""
    kept = read(folder)
    report_sections.draw(figures.pictures(kept), folder)
    return text(kept, folder)


def read(folder: stored_results.AnyPath = stored_results.FOLDER) -> dict[str, Any]:
    """The results of all experiments; None for a data set that was not run."""
    again = (name for data in DATA_SETS for name in repeated_runs.names_of(data))
    names = (*again, *sweeps.NAMES)
    others = {name: stored_results.read(name, folder) for name in names}
    found = {name: content for name, content in others.items() if content is not None}
    return {name: stored_results.read(name, folder) for name in DATA_SETS} | found


def text(kept: Mapping[str, Any], folder: stored_results.AnyPath) -> str:
    """The Markdown of all tables."""
    pictures = report_sections.named(figures.pictures(kept), folder)
    parts = [
        "### Data",
        report_sections.data(kept, DATA_SETS, PAPERS_DATA),
        *models.splits(kept, DATA_SETS),
        *_model_tables(kept, folder),
        *_guides(kept, folder),
        *_ablation(kept),
        "### The same seeds again",
        *repeated_runs.tables(kept, DATA_SETS),
        "### Table 4: what guiding costs",
        costs.epochs(kept, DATA_SETS),
        costs.steps(stored_results.read("guiding_speed", folder)),
        costs.memory(kept, DATA_SETS),
        "### Figure 3: one layer is guided",
        sweeps.by_layer(kept),
        FIGURE_3,
        "### Figures 4 and 5: what guides make of heads",
        heads.table(kept["multinli"]),
        "### Figure 6: a part of the training set",
        sweeps.by_share(kept),
        FIGURE_6,
        "### What was searched",
        *models.searches(kept, DATA_SETS, folder),
        "### Every seed",
        *(report_sections.every_seed(sweeps.with_one_setting(kept)) or [NOT_RUN]),
        "### Runs",
        report_sections.provenance(
            kept,
            folder,
            before=(RATES, SEARCHED),
            beside="and other runs may have been on the device",
        ),
        "### Errata of the paper",
        "\n".join(f"- {erratum}" for erratum in ERRATA),
        "### Figures",
        *([f"![{caption}]({path})" for caption, path in pictures.items()] or [NOT_RUN]),
    ]
    return "\n\n".join(parts) + "\n"


def compare_models(content: Mapping[str, Any] | None, data: str) -> str:
    """Table 1 on one data set: the paper's models, then ours, without AG and with it."""
    metrics, rows = MEASURED[data], []
    for row, published in table(TABLE_1, data).items():
        if published:
            rows.append([row, "paper's", *(_escaped(published[metric]) for metric in metrics)])
    if content is None:
        rows.append([NOTHING, "ours", *[UNRUN] * len(metrics)])
    else:
        for with_ag, method in (("", "none"), ("+AG", "ag")):
            cells = [_cell(content, method, metric) for metric in metrics]
            rows.append([models.name_of(content) + with_ag, "ours", *cells])
    return markdown(["model", "whose", *map(spelled, metrics)], rows)


def comparison(
    content: Mapping[str, Any] | None,
    data: str,
    names: Mapping[str, str],
    *,
    paper: Mapping[str, Mapping[str, str]],
    tried: Mapping[str, int] | None = None,
) -> str:
    """A row for each guide, after one for what needs no model if the results have it.

    Args:
      content: the results on a data set.
      data: its name.
      names: guide -> what the row is called.
      paper: guide -> metric -> figure.
      tried: of how many settings each is the best; None: neither these nor weights are shown.
    """
    metrics, rows = MEASURED[data], []
    runs = (content or {}).get("runs", {})
    counted = ["seeds", *(["weights", "settings tried"] if tried is not None else [])]
    baseline = _baseline(runs)
    if baseline is not None:
        criterion, known = baseline
        row = [BASELINES[criterion], *[NOTHING] * len(counted)]
        for metric in metrics:
            row.append(figure(metric, known[metric]) if metric in known else NOTHING)
            row += [NOTHING] * (data in METRICS)
        rows.append(row)
    for method, name in names.items():
        if method in runs:
            result = runs[method]["result"]
            row = [name, str(len(chosen(result)))]
            row += [] if tried is None else [models.weights(result), str(tried[method])]
        else:
            row = [name, *[UNRUN] * len(counted)]
        for metric in metrics:
            row.append(_cell(content, method, metric))
            if data in METRICS:
                row.append(_escaped(paper[method].get(metric, NOTHING)))
        rows.append(row)
    header = ["guide", *counted]
    for metric in metrics:
        header += [spelled(metric), *(["paper's"] if data in METRICS else [])]
    return markdown(header, rows)


def tests(content: Mapping[str, Any] | None, methods: Sequence[str]) -> str:
    """Every guide against none and against AG, paired over seeds."""
    runs = (content or {}).get("runs", {})
    found = {method: runs[method]["result"] for method in methods if method in runs}
    references = [method for method in ("none", "ag") if method in found]
    if len(found) < 2 or not references:
        return "Tests: not run."
    criterion = next(iter(found.values()))["criterion"]
    figures = {method: of_seeds(result, "test", criterion) for method, result in found.items()}
    header, rows, count = ["guide"], [], 0
    for of in ("minus no guide", "AG minus it"):
        header += [f"{of}, {spelled(criterion, unit=False)}", "pairs", "p", "detectable"]
    for method in found:
        cells = [NOTHING] * 8
        if method != "none" and "none" in found:
            cells[:4] = _test(figures[method], figures["none"], criterion)
        if method not in ("none", "ag") and "ag" in found:
            cells[4:] = _test(figures["ag"], figures[method], criterion)
        count += sum(cells[i] != NOTHING for i in (2, 6))
        rows.append([title(method), *cells])
    note = (
        "Paired t-tests on the test set, over the seeds that both have, two-sided, "
        f"{count} in this table; p is not corrected."
    )
    if count:
        note += " Corrected for their number (Bonferroni), p would have to be below "
        note += f"{ALPHA / count:.2g} where {ALPHA:g} is asked for."
    return "\n\n".join([markdown(header, rows), note])


def _model_tables(kept: Mapping[str, Any], folder: stored_results.AnyPath) -> list[str]:
    note = r"The paper's: \* p < 0.05, \*\* p < 0.01, as it says."
    parts = ["### Table 1: models with and without guiding", models.table(kept, folder), note]
    for name, shown in DATA_SETS.items():
        parts += [f"{shown}:", compare_models(kept[name], name)]
    return parts


def _guides(kept: Mapping[str, Any], folder: stored_results.AnyPath) -> list[str]:
    note = (
        "Settings tried: how many the search compared, if the guide runs with the best of them; "
        "more tries favour a guide."
    )
    parts = ["### Table 2: guides side by side", note]
    names = {method: title(method) for method in TABLE_2}
    for name in DATA_SETS:
        tried = models.tried(kept[name], folder)
        paper = table(TABLE_2, name)
        rows = comparison(kept[name], name, names, paper=paper, tried=tried)
        parts += [_heading(kept, name, "BERT"), rows]
        if kept[name] is not None:
            results = stored_results.results_of(kept[name], tuple(names))
            parts += [tests(kept[name], tuple(names)), verdict(results)]
    return [part for part in parts if part]


def _ablation(kept: Mapping[str, Any]) -> list[str]:
    note = "Ours with AG and without a guide are the runs of Table 2."
    parts = ["### Table 3: MDG and PDG alone", note]
    names = {method: f"{variant} ({title(method)})" for method, variant in VARIANTS.items()}
    for name in DATA_SETS:
        rows = comparison(kept[name], name, names, paper=table(TABLE_3, name))
        parts += [_heading(kept, name, PAPERS_MODELS.get(name, "")), rows]
        if kept[name] is not None:
            parts.append(tests(kept[name], tuple(names)))
    return parts


def _heading(kept: Mapping[str, Any], data: str, papers: str) -> str:
    """The data set of a table, and the models that were trained on it."""
    theirs = f"; the paper's: {papers}" if data in METRICS else ""
    return f"{DATA_SETS[data]} (ours: {models.names([kept[data]])}{theirs}):"


def _test(first: Mapping[int, float], second: Mapping[int, float], criterion: str) -> list[str]:
    """Difference, pairs, p and what was detectable."""
    difference, *others = tested(first, second, criterion)
    return [difference, str(pairs_of(first, second)), *others]


def _baseline(runs: Mapping[str, Any]) -> tuple[str, Mapping[str, float]] | None:
    """The criterion, and what the test set comes to without any model; None: nothing is known."""
    for run in runs.values():
        known = run["result"].get("baseline", {}).get("test")
        if known:
            return run["result"]["criterion"], known
    return None


def _cell(content: Mapping[str, Any] | None, method: str, metric: str) -> str:
    runs = (content or {}).get("runs", {})
    if method not in runs:
        return UNRUN
    figures = of_seeds(runs[method]["result"], "test", metric).values()
    return mean_and_spread(metric, figures) if figures else NOTHING


def _escaped(figure: str) -> str:
    return figure.replace("*", r"\*")
