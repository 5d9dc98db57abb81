"""Attention guiding (Wang et al. 2022): Tables 1 to 4 and Figures 3 to 6, ours beside the paper's.

Everything is made of the files in `experiments/results`, which `collect` writes. What is not there
was not run, and every cell says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments import archive
from experiments.papers import guiding_figures, guiding_heads, guiding_sweeps, sections
from experiments.papers.guiding_numbers import (
    ERRATA,
    FIGURE_3,
    FIGURE_6,
    METRICS,
    RANKING,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    table,
)
from experiments.statistics import ALPHA
from experiments.tables import chosen, of_seeds, tested, verdict
from experiments.wording import NOT_RUN, NOTHING, ORDER, markdown, mean_and_spread, spelled, title

DATA_SETS = {
    "multinli": "MultiNLI",
    "mednli": "MedNLI",
    "cross_genre": "Cross-genre-IR",
    "covid_fact": "COVID-Fact, in place of Cross-genre-IR",
}
MEASURED = {**METRICS, "covid_fact": RANKING}
PAPERS_DATA = {
    "multinli": ("433k in all", NOTHING, NOTHING, "3", NOTHING),
    "mednli": ("11k", NOTHING, NOTHING, "3", NOTHING),
    "cross_genre": ("48k pairs", NOTHING, NOTHING, "2", NOTHING),
}
OURS = "MiniLM"  # the pre-trained model of our runs
PAPERS_MODELS = {"multinli": "Roberta", "mednli": "BlueBERT", "cross_genre": "BioBERT"}  # Table 3
VARIANTS = {"ag": "default", "none": "w/o AG", "pdg": "w/o MDG", "mdg": "w/o PDG"}
UNRUN = "not run"


def report(folder: archive.AnyPath = archive.FOLDER) -> str:
    """The Markdown of all tables, with the figures drawn beside the results."""
    kept = read(folder)
    sections.draw(guiding_figures.pictures(kept), folder)
    return text(kept, folder)


def read(folder: archive.AnyPath = archive.FOLDER) -> dict[str, Any]:
    """The results of all experiments; None for a data set that was not run."""
    sweeps = {name: archive.read(name, folder) for name in guiding_sweeps.NAMES}
    found = {name: content for name, content in sweeps.items() if content is not None}
    return {name: archive.read(name, folder) for name in DATA_SETS} | found


def text(kept: Mapping[str, Any], folder: archive.AnyPath) -> str:
    """The Markdown of all tables."""
    figures = sections.named(guiding_figures.pictures(kept), folder)
    searched = {name: shown for name, shown in DATA_SETS.items() if name in MEASURED}
    parts = [
        "### Data",
        sections.data(kept, DATA_SETS, PAPERS_DATA),
        *_models(kept),
        *_guides(kept, folder),
        *_ablation(kept),
        "### Table 4: what guiding costs",
        epochs(kept),
        steps(archive.read("guiding_speed", folder)),
        "### Figure 3: one layer is guided",
        guiding_sweeps.by_layer(kept),
        FIGURE_3,
        "### Figures 4 and 5: what guides make of heads",
        guiding_heads.table(kept["multinli"]),
        "### Figure 6: a part of the training set",
        guiding_sweeps.by_share(kept),
        FIGURE_6,
        "### What was searched",
        *sections.searches(searched, ORDER, folder),
        "### Every seed",
        *(sections.every_seed(kept) or [NOT_RUN]),
        "### Runs",
        sections.provenance(kept, folder),
        "### Errata of the paper",
        "\n".join(f"- {erratum}" for erratum in ERRATA),
        "### Figures",
        *([f"![{caption}]({path})" for caption, path in figures.items()] or [NOT_RUN]),
    ]
    return "\n\n".join(parts) + "\n"


def models(content: Mapping[str, Any] | None, data: str) -> str:
    """Table 1 on one data set: the paper's models, then ours, without AG and with it."""
    metrics, rows = MEASURED[data], []
    for row, figures in table(TABLE_1, data).items():
        if figures:
            rows.append([row, "paper's", *(_escaped(figures[metric]) for metric in metrics)])
    for name, method in ((OURS, "none"), (f"{OURS}+AG", "ag")):
        cells = [_cell(content, method, metric) for metric in metrics]
        rows.append([name, "ours", *cells])
    return markdown(["model", "whose", *map(spelled, metrics)], rows)


def comparison(
    content: Mapping[str, Any] | None,
    data: str,
    names: Mapping[str, str],
    *,
    paper: Mapping[str, Mapping[str, str]],
    tried: Mapping[str, int] | None = None,
) -> str:
    """A row for each guide: ours and the paper's.

    Args:
      content: the results on a data set.
      data: its name.
      names: guide -> what the row is called.
      paper: guide -> metric -> figure.
      tried: of how many settings each is the best; None: such a column is not wanted.
    """
    metrics, rows = MEASURED[data], []
    runs = (content or {}).get("runs", {})
    for method, name in names.items():
        row = [name, str(len(chosen(runs[method]["result"]))) if method in runs else UNRUN]
        if tried is not None:
            row.append(str(tried.get(method, 1)) if method in runs else UNRUN)
        for metric in metrics:
            row.append(_cell(content, method, metric))
            if data in METRICS:
                row.append(_escaped(paper[method].get(metric, NOTHING)))
        rows.append(row)
    header = ["guide", "seeds", *(["settings tried"] if tried is not None else [])]
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
        header += [f"{of}, {spelled(criterion, unit=False)}", "p", "detectable"]
    for method in found:
        cells = [NOTHING] * 6
        if method != "none" and "none" in found:
            cells[:3] = tested(figures[method], figures["none"], criterion)
        if method not in ("none", "ag") and "ag" in found:
            cells[3:] = tested(figures["ag"], figures[method], criterion)
        count += sum(cells[i] != NOTHING for i in (1, 4))
        rows.append([title(method), *cells])
    note = f"Paired t-tests on the test set, two-sided, {count} in this table; p is not corrected."
    if count:
        note += " Corrected for their number (Bonferroni), p would have to be below "
        note += f"{ALPHA / count:.2g} where {ALPHA:g} is asked for."
    return "\n\n".join([markdown(header, rows), note])


def epochs(kept: Mapping[str, Any]) -> str:
    """Seconds of an epoch, without AG and with it."""
    names = list(METRICS)
    header = ["model", "whose", *(DATA_SETS[name] for name in MEASURED)]
    rows = []
    for model, seconds in TABLE_4.items():
        cells = [_cost(*both) for both in seconds]
        rows.append([model, "paper's", *cells, *[NOTHING] * (len(MEASURED) - len(names))])
    ours = []
    for name in MEASURED:
        runs = (kept[name] or {}).get("runs", {})
        both = [_epoch(runs[method]) for method in ("none", "ag") if method in runs]
        ours.append(_cost(*both) if len(both) == 2 else UNRUN)
    rows.append([OURS, "ours", *ours])
    note = (
        "Seconds of an epoch, without AG → with AG. The paper's: one model on one RTX 3090. Ours: "
        "all seeds side by side, whatever else was on the device, compilation and validation not "
        "counted."
    )
    return "\n\n".join([note, markdown(header, rows)])


def steps(content: Mapping[str, Any] | None) -> str:
    """One training step: milliseconds and memory, with guides and without."""
    if content is None:
        return "One training step: not run."
    config, lines = content["config"], content["lines"]
    plain = {line["seeds"]: line for line in lines if line["method"] == "none"}
    header = ["guide", "models", "ms a step", "of no guide's", "peak GB", "of no guide's"]
    rows = []
    for line in lines:
        base = plain.get(line["seeds"], {})
        row = [title(line["method"]), str(line["seeds"])]
        for name, scale in (("bare", 1), ("peak_bytes", 1e9)):
            value, of = line.get(name), base.get(name)
            row.append(NOTHING if value is None else f"{value / scale:.2f}")
            row.append(f"{value / of:.3f}" if value is not None and of else NOTHING)
        rows.append(row)
    where = (
        f"{content['environment']['device']}, {config['data.batch_size']} examples of "
        f"{config['length']} tokens, one training step; median of {config['repeats']} x "
        f"{config['steps']} steps."
    )
    return "\n\n".join([where, markdown(header, rows)])


def _models(kept: Mapping[str, Any]) -> list[str]:
    others = [name for name in TABLE_1 if "+" not in name and name != "SOTA"]
    note = f"Of the paper's models ({', '.join(others)}) we ran none: the rows that are ours are "
    note += f"of {OURS}, a smaller model. \\* p < 0.05, \\*\\* p < 0.01, as the paper says."
    parts = ["### Table 1: models with and without guiding", note]
    for name, shown in DATA_SETS.items():
        parts += [f"{shown}:", models(kept[name], name)]
    return parts


def _guides(kept: Mapping[str, Any], folder: archive.AnyPath) -> list[str]:
    parts = ["### Table 2: guides side by side", f"Ours are of {OURS}, the paper's of BERT."]
    names = {method: title(method) for method in TABLE_2}
    for name, shown in DATA_SETS.items():
        tried = sections.settings_tried(name, folder)
        paper = table(TABLE_2, name)
        rows = comparison(kept[name], name, names, paper=paper, tried=tried)
        parts += [f"{shown}:", rows]
        if kept[name] is not None:
            results = archive.results_of(kept[name], tuple(names))
            parts += [tests(kept[name], tuple(names)), verdict(results)]
    return [part for part in parts if part]


def _ablation(kept: Mapping[str, Any]) -> list[str]:
    of = ", ".join(f"{model} on {DATA_SETS[name]}" for name, model in PAPERS_MODELS.items())
    parts = ["### Table 3: MDG and PDG alone", f"Ours are of {OURS}, the paper's of {of}."]
    names = {method: f"{variant} ({title(method)})" for method, variant in VARIANTS.items()}
    for name, shown in DATA_SETS.items():
        rows = comparison(kept[name], name, names, paper=table(TABLE_3, name))
        parts += [f"{shown}:", rows]
        if kept[name] is not None:
            parts.append(tests(kept[name], tuple(names)))
    return parts


def _cell(content: Mapping[str, Any] | None, method: str, metric: str) -> str:
    runs = (content or {}).get("runs", {})
    if method not in runs:
        return UNRUN
    figures = of_seeds(runs[method]["result"], "test", metric).values()
    return mean_and_spread(metric, figures) if figures else NOTHING


def _escaped(figure: str) -> str:
    return figure.replace("*", r"\*")


def _epoch(run: Mapping[str, Any]) -> float | None:
    """Seconds; None: what a step takes is not known."""
    steps, seconds = run["result"]["steps"], run["step_seconds"]
    return None if seconds is None else seconds * steps / run["config"]["epochs"]


def _cost(without: float | None, guided: float | None) -> str:
    if without is None or guided is None:
        return "not known"
    return f"{without:.0f} → {guided:.0f} ({100 * (guided / without - 1):+.1f} %)"
