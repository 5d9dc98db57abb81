"""Results as Markdown: methods side by side, the test between the best two, settings, seeds.

A result is what `result.json` of a finished run holds. Where a run has a grid of settings, the one
with the best mean validation criterion stands for the method, and how many were tried is printed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distattn_jax.train.config import lacking
from distattn_jax.train.guides import GUIDES
from distattn_jax.train.members import AXES
from distattn_jax.train.metrics import score
from experiments.papers.formatting import (
    NOTHING,
    ORDER,
    difference,
    figure,
    markdown,
    mean_and_spread,
    spelled,
    title,
)
from experiments.papers.results import Result, by_setting, chosen, of_seeds, splits_of
from experiments.papers.statistics import ALPHA, POWER, compare, summary

Paper = Mapping[str, Mapping[str, str]]  # method -> metric -> the figure as it is printed there

# What needs no model, by criterion.
BASELINES = {"accuracy": "majority label", "rmse": "mean rating", "mrr": "BM25"}
PAPERS = "paper's"  # the column of what was published


def tables(results: Iterable[Result], *, paper: Paper | None = None) -> str:
    """All tables of an experiment, and the sentence about its best two methods.

    Args:
      results: one for each method, of the same criterion.
      paper: what was published; a metric of which nothing is known gets no column.
    """
    ordered = sorted(results, key=_rank)
    criteria = {result["criterion"] for result in ordered}
    if len(criteria) != 1:
        raise ValueError(f"results must be at least one, of one criterion; got {sorted(criteria)}.")
    (criterion,) = criteria
    name = spelled(criterion)
    parts = [comparison(ordered, paper=paper or {}), verdict(ordered)]
    if any(len(by_setting(result)) > 1 for result in ordered):
        parts += [f"All settings, by {name}:", settings(ordered)]
    where = " / ".join(splits_of(ordered))
    parts += [f"{name[0].upper()}{name[1:]} of each seed, {where}:", seeds(ordered)]
    return "\n\n".join(part for part in parts if part)


def comparison(results: Sequence[Result], *, paper: Paper) -> str:
    """A row for each method, after one for what needs no model if a result has it."""
    columns = _columns(results, paper)
    grid = any(len(by_setting(result)) > 1 for result in results)
    header = ["method", "parameters", *(f"{of} {spelled(metric)}" for of, metric in columns)]
    header += ["seeds", "settings tried"] if grid else ["seeds"]
    rows = []
    baseline: Mapping[str, Any] = next(
        (result["baseline"] for result in results if "baseline" in result), {}
    )
    if any(baseline.values()):
        cells = {
            (split, metric): figure(metric, value)
            for split, figures in baseline.items()
            for metric, value in figures.items()
        }
        figures = [cells.get(column, NOTHING) for column in columns]
        rows.append(
            [BASELINES[results[0]["criterion"]], NOTHING, *figures, *[NOTHING] * (1 + grid)]
        )
    for result in results:
        counts = [str(len(chosen(result))), str(len(by_setting(result)))]
        figures = [_cell(result, of, metric, paper) for of, metric in columns]
        parameters = f"{result['parameters']:,}"
        rows.append([title(result["method"]), parameters, *figures, *counts[: 1 + grid]])
    return markdown(header, rows)


def verdict(results: Sequence[Result]) -> str:
    """The best method against the second best, on the test set; nothing when there is but one."""
    if len(results) < 2 or "test" not in splits_of(results):
        return ""
    criterion = results[0]["criterion"]
    figures = [(of_seeds(result, "test", criterion), title(result["method"])) for result in results]
    figures.sort(key=lambda entry: score(criterion, summary(entry[0].values()).mean), reverse=True)
    (best, best_title), (second, second_title), *others = figures
    opening = f"Best on test {spelled(criterion, unit=False)}: {best_title}, then {second_title}"
    found = compare(best, second)
    if found is None:
        return f"{opening}; no seed is common to both, so they are not tested against each other."
    pairs = len(found.seeds)
    gap = f"difference {difference(criterion, found.difference)}"
    if found.t is None or found.p is None or found.detectable is None:
        reason = (
            "a test needs two seeds or more"
            if pairs == 1
            else f"it is the same for all {pairs} seeds, which leaves nothing to test"
        )
        return f"{opening}; {gap}, t -, p -, detectable difference - ({reason})."
    p = f"p = {found.p:.2g}" if found.p >= 1e-4 else "p < 0.0001"
    sentence = (
        f"{opening}; {gap}, t = {found.t:.2f}, {p} (paired over {pairs} seeds), "
        f"detectable difference {difference(criterion, found.detectable)} "
        f"(two-sided α = {ALPHA:g}, power {POWER:g})."
    )
    picked = " The two were picked by these figures, which makes p too small."
    return sentence + picked if others else sentence


def pairs_of(first: Mapping[int, float], second: Mapping[int, float]) -> int:
    """Over how many seeds two methods, each seed -> figure, can be compared."""
    return len(first.keys() & second.keys())


def tested(first: Mapping[int, float], second: Mapping[int, float], criterion: str) -> list[str]:
    """The paired test of first minus second, each seed -> figure: difference, p, detectable."""
    found = compare(first, second)
    if found is None:
        return [NOTHING] * 3
    mean = difference(criterion, found.difference)
    if found.p is None or found.detectable is None:
        return [mean, NOTHING, NOTHING]
    p = f"{found.p:.2g}" if found.p >= 1e-4 else "< 0.0001"
    return [mean, p, difference(criterion, found.detectable)]


def settings(results: Sequence[Result]) -> str:
    """Every setting of every method, by the criterion."""
    criterion = results[0]["criterion"]
    varied, splits = _varied(results), splits_of(results)
    header = ["method", *(name.replace("_", " ") for name in varied)]
    header += [f"{split} {spelled(criterion)}" for split in splits] + ["seeds", "chosen"]
    rows = []
    for result in results:
        for members in by_setting(result):
            setting = result["members"][members[0]]["setting"]
            means = [
                mean_and_spread(criterion, of_seeds(result, split, criterion, members).values())
                for split in splits
            ]
            mark = "yes" if members == chosen(result) else ""
            numbers = [_number(result["method"], name, setting[name]) for name in varied]
            rows.append([title(result["method"]), *numbers, *means, str(len(members)), mark])
    return markdown(header, rows)


def seeds(results: Sequence[Result]) -> str:
    """A row for each seed, a column for each method: the criterion on every split."""
    criterion, splits = results[0]["criterion"], splits_of(results)
    columns = [[of_seeds(result, split, criterion) for split in splits] for result in results]
    rows = []
    for seed in sorted({seed for column in columns for seed in column[0]}):
        cells = [
            " / ".join(figure(criterion, figures[seed]) for figures in column)
            if seed in column[0]
            else NOTHING
            for column in columns
        ]
        rows.append([str(seed), *cells])
    return markdown(["seed", *(title(result["method"]) for result in results)], rows)


def _rank(result: Result) -> int:
    """The order of attentions and guides; what is not there comes last."""
    return ([*ORDER, result["method"]]).index(result["method"])


def _columns(results: Sequence[Result], paper: Paper) -> list[tuple[str, str]]:
    """Where a figure is from, and its metric: the criterion first, the loss last."""
    found = {name: None for result in results for name in result["members"][0]["validation"]}
    metrics = sorted(found, key=lambda name: (name != results[0]["criterion"], name == "loss"))
    columns = []
    for split in splits_of(results):
        for metric in metrics:
            columns.append((split, metric))
            if split == "test" and any(metric in figures for figures in paper.values()):
                columns.append((PAPERS, metric))
    return columns


def _cell(result: Result, of: str, metric: str, paper: Paper) -> str:
    if of == PAPERS:
        return paper.get(result["method"], {}).get(metric, NOTHING)
    figures = of_seeds(result, of, metric).values()
    return mean_and_spread(metric, figures) if figures else NOTHING


def _number(method: str, name: str, value: float) -> str:
    """A number of a setting; nothing where a guide does not have it."""
    is_others = method in GUIDES and f"{AXES[name]}.{name}" in lacking(method)
    return NOTHING if is_others else f"{value:g}"


def _varied(results: Sequence[Result]) -> list[str]:
    """The names of the numbers that differ between the members of a run."""
    values: dict[str, list[set[float]]] = {}
    for result in results:
        for name in result["members"][0]["setting"]:
            seen = {member["setting"][name] for member in result["members"]}
            values.setdefault(name, []).append(seen)
    return [name for name, sets in values.items() if any(len(seen) > 1 for seen in sets)]
