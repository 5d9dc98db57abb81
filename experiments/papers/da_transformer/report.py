"""DA-Transformer (Wu et al. 2021): Tables 1 to 5 and Figures 1 to 8, ours beside the paper's.

Everything is made of the files in `experiments/results`, which `collect` writes. What is not there
was not run, and is said to be so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.da import ADJUSTMENTS, DATA_SETS, MAPPINGS, OURS, ROWS
from experiments.papers import report_sections, stored_results
from experiments.papers.comparison_tables import BASELINES, settings, tested, verdict
from experiments.papers.da_transformer import figures, heads
from experiments.papers.da_transformer.published import FIGURES, METRICS, TABLE_1, TABLE_2
from experiments.papers.formatting import (
    NOT_RUN,
    NOTHING,
    figure,
    markdown,
    mean_and_spread,
    spelled,
    title,
)
from experiments.papers.results import by_setting, chosen, of_seeds
from experiments.searched import SEARCHED


def report(folder: stored_results.AnyPath = stored_results.FOLDER) -> str:
    """The Markdown of all tables, with the figures drawn beside the results."""
    kept = {name: stored_results.read(name, folder) for name in METRICS}
    report_sections.draw(figures.pictures(kept), folder)
    return text(kept, folder)


def text(kept: Mapping[str, Any], folder: stored_results.AnyPath) -> str:
    """The Markdown of all tables."""
    tried = {name: _settings_tried(_searched(name), folder) for name in kept}
    pictures = report_sections.named(figures.pictures(kept), folder)
    parts = [
        "### Table 1: data",
        report_sections.data(kept, DATA_SETS, TABLE_1),
        "### Table 2: MIND",
        mind_data(kept["mind"]),
        *_table("### Table 3: AG's News", kept["ag"], tried),
        *_table("### Table 3: Amazon Electronics", kept["amazon"], tried),
        *_table("### Table 4: SST", kept["sst"], tried),
        *_table("### Table 4: SNLI", kept["snli"], tried),
        *_table("### Table 5: MIND", kept["mind"], tried),
        *_table("### In place of Table 5: a made-up log, one seed", kept["mind_made_up"], tried),
        *_table("### Figure 3: ratings, Amazon Electronics", kept["amazon_rating"], tried),
        *_ablation("### Figure 4: mappings", kept, MAPPINGS),
        *_ablation("### Figure 5: adjustments", kept, ADJUSTMENTS),
        "### Section 3.4: parameters and time",
        speed(stored_results.read("speed", folder)),
        "### Footnote 7: the sign of w, and length",
        heads.signs(kept),
        "### How far heads look",
        heads.distances(kept),
        heads.flat(kept),
        "### What was searched",
        *_searches(folder),
        "### Every seed",
        *report_sections.every_seed(kept),
        "### Runs",
        report_sections.provenance(kept, folder),
        "### Figures",
        *(f"![{caption}]({path})" for caption, path in pictures.items()),
    ]
    return "\n\n".join(parts) + "\n"


def mind_data(content: Mapping[str, Any] | None) -> str:
    """What the paper says of MIND; of ours, what the builder said."""
    said = "not run" if content is None else "; ".join(content["data"]["said"])
    theirs = markdown(["MIND", "paper's"], TABLE_2.items())
    return f"Ours: {said}.\n\n{theirs}"


def comparison(
    content: Mapping[str, Any], methods: Sequence[str], tried: Mapping[str, int] | None = None
) -> str:
    """A row for each method: ours, the paper's, and distance-aware attention against it.

    `tried`: of how many settings each is the best.
    """
    found = {result["method"]: result for result in stored_results.results_of(content, methods)}
    criterion = next(iter(found.values()))["criterion"]
    metrics, paper = METRICS[content["experiment"]], FIGURES.get(content["experiment"], {})
    paper = {method: paper[method] for method in methods if method in paper}
    columns = [(metric, of) for metric in metrics for of in ("ours", *(["paper's"] * bool(paper)))]
    header = [spelled(metric) if of == "ours" else of for metric, of in columns]
    ours = of_seeds(found[OURS], "test", criterion) if OURS in found else {}
    rows = []
    for method, result in found.items():
        cells = [
            mean_and_spread(metric, of_seeds(result, "test", metric).values())
            if of == "ours"
            else paper.get(method, {}).get(metric, NOTHING)
            for metric, of in columns
        ]
        figures = of_seeds(result, "test", criterion)
        against = [NOTHING] * 3 if method == OURS else tested(ours, figures, criterion)
        counts = [str(len(chosen(result))), *([str(tried.get(method, 1))] if tried else [])]
        rows.append([title(method), *counts, *cells, *against])
    baseline = found[next(iter(found))].get("baseline", {}).get("test", {})
    if baseline:
        cells = [
            figure(metric, baseline[metric]) if of == "ours" and metric in baseline else NOTHING
            for metric, of in columns
        ]
        nothing = [NOTHING] * (2 if tried else 1)
        rows.insert(0, [BASELINES[criterion], *nothing, *cells, NOTHING, NOTHING, NOTHING])
    compared = [f"DA minus it, {spelled(criterion, unit=False)}", "p", "detectable"]
    counted = ["seeds", "settings tried"] if tried else ["seeds"]
    return markdown(["method", *counted, *header, *compared], rows)


def speed(content: Mapping[str, Any] | None) -> str:
    """What a method costs: parameters and milliseconds."""
    if content is None:
        return NOT_RUN
    config, lines = content["config"], content["lines"]
    plain = next((n["parameters"] for n in lines if n["method"] == "vanilla"), None)
    vanilla = {line["seeds"]: line["bare"] for line in lines if line["method"] == "vanilla"}
    header = ["method", "parameters", "to vanilla's", "models", "ms a step", "of vanilla's"]
    rows = [
        [
            title(line["method"]),
            f"{line['parameters']:,}",
            NOTHING if plain is None else f"{line['parameters'] - plain:+,}",
            str(line["seeds"]),
            f"{line['bare']:.2f}",
            f"{line['bare'] / vanilla[line['seeds']]:.2f}" if vanilla else NOTHING,
        ]
        for line in lines
    ]
    where = (
        f"{content['environment']['device']}, {config['data.batch_size']} texts of "
        f"{config['length']} tokens, {config['model.heads']} heads, one training step of so many "
        "models side by side, batches already on the device; median of "
        f"{config['repeats']} x {config['steps']} steps."
    )
    return "\n\n".join([where, markdown(header, rows)])


def _table(
    heading: str, content: Mapping[str, Any] | None, tried: Mapping[str, Mapping[str, int]]
) -> list[str]:
    if content is None:
        return [heading, NOT_RUN]
    settings_tried = tried.get(content["experiment"])
    missing = [title(method) for method in ROWS if method not in content["runs"]]
    table = comparison(content, ROWS, settings_tried)
    parts = [heading, table, verdict(stored_results.results_of(content, ROWS))]
    return parts + ([f"Not run: {', '.join(missing)}."] if missing else [])


def _ablation(heading: str, kept: Mapping[str, Any], methods: Sequence[str]) -> list[str]:
    """The forms of distance-aware attention on the three data sets of the paper's figures."""
    parts = [heading, "Compared are the seeds that both have."]
    for name in ("ag", "amazon", "mind"):
        content = kept[name]
        if content is None or not any(method in content["runs"] for method in methods):
            parts.append(f"{DATA_SETS[name]}: not run.")
        else:
            parts += [f"{DATA_SETS[name]}:", comparison(content, (OURS, *methods))]
    return parts


def _searched(experiment: str) -> str:
    """Ratings took the settings found for Amazon's classes."""
    return experiment.removesuffix("_rating")


def _settings_tried(experiment: str, folder: stored_results.AnyPath) -> dict[str, int]:
    """How many settings each method of an experiment was searched with; none: not searched."""
    content = stored_results.read(experiment + SEARCHED, folder)
    runs = {} if content is None else content["runs"]
    return {method: len(by_setting(run["result"])) for method, run in runs.items()}


def _searches(folder: stored_results.AnyPath) -> list[str]:
    """All settings of all methods, on each data set."""
    parts = []
    for name, shown in DATA_SETS.items():
        content = stored_results.read(name + SEARCHED, folder)
        parts.append(f"{shown}: not searched." if content is None else f"{shown}:")
        parts += [] if content is None else [settings(stored_results.results_of(content, ROWS))]
    return parts
