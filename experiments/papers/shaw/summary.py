"""Summary of our results on relative positions (Shaw et al. 2018): findings and Tables 1 to 3."""

from collections.abc import Mapping
from typing import Any

from distattn_jax.train.results import select_members
from experiments.papers import outcomes
from experiments.papers.formatting import NOT_RUN, format_mean, format_value
from experiments.papers.shaw import tables
from experiments.papers.shaw.published import MULTI30K
from experiments.papers.shaw.settings import (
    DATA_SETS,
    DISTANCES,
    POSITIONS,
    RELATIVE,
    SIZES,
    TINY,
    experiment_name,
)
from experiments.papers.statistics import ALPHA, summarize
from experiments.papers.stored_results import AnyPath

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run
PLATEAU = 2  # The paper sees little variation from this clipping distance on.


def list_sections(contents: Contents, folder: AnyPath) -> list[str]:
    """Return the headings, texts and tables of the summary as Markdown."""
    return [
        "### Are relative positions better than absolute ones? (Table 1)",
        "BLEU on the test set, mean ± standard deviation over seeds. Models: layers of encoder + "
        "decoder x width.",
        tables.positions_table(contents),
        "### How far must positions be told apart? (Table 2)",
        "All distances from k on share one position vector in each direction.",
        tables.distances_table(contents),
        "### Are the vectors of keys or those of values needed? (Table 3)",
        tables.ablation_table(contents),
        tables.differences_table(contents),
        "### Is the system sound? Text-only Transformers on Multi30k, English to German, test 2016",
        tables.others_table(contents),
    ]


def list_findings(contents: Contents, folder: AnyPath) -> list[str]:
    """Return sentences that state the main results, composed from our numbers and the t-tests."""
    findings = [
        f"**{title}**: {_describe_comparisons(contents, *methods)}."
        for title, methods in {
            "Relative against absolute positions": (RELATIVE, "vanilla"),
            "Relative and absolute against relative positions": ("relative_and_absolute", RELATIVE),
            "Vectors of keys and values against keys only": (RELATIVE, "relative_position_keys"),
            "Vectors of keys and values against values only": (
                RELATIVE,
                "relative_position_values",
            ),
        }.items()
    ]
    findings.append(f"**Without position information**: {_describe_collapse(contents)}.")
    findings.append(f"**Clipping distances k >= {PLATEAU}**: {_describe_plateau(contents)}.")
    findings.append(f"**Against others on Multi30k**: {_describe_others(contents)}.")
    findings.append("**WMT14, base and big model** (the paper's setting): not run.")
    return [*findings, f"A difference counts where p < {ALPHA:g}, uncorrected for many tests."]


def _describe_comparisons(contents: Contents, first: str, second: str) -> str:
    """Describe the t-tests of two methods on all data sets and sizes in one phrase."""
    found = {
        f"{title} {size}": tables.compare(contents, data, size, first, second)
        for data, title in DATA_SETS.items()
        for size in SIZES
    }
    return outcomes.describe_outcomes(found)


def _describe_collapse(contents: Contents) -> str:
    """Return BLEU without positions, with k = 0 and with relative positions, for each data set."""
    phrases = []
    for data, title in DATA_SETS.items():
        content = contents[experiment_name(data, SIZES[0])]
        clipped = contents[experiment_name(data, SIZES[0], 0)]
        cells = {
            "no positions": tables.format_cell(content, "no_positions"),
            "k = 0": tables.format_cell(clipped, RELATIVE),
            "relative": tables.format_cell(content, RELATIVE),
        }
        phrases.append(f"{title} " + ", ".join(f"{cell} ({name})" for name, cell in cells.items()))
    return "; ".join(phrases) + " (published: 12.5, 12.5, 25.8)"


def _describe_plateau(contents: Contents) -> str:
    """Return the range of mean BLEU over the clipping distances of the plateau."""
    phrases = []
    for data, title in DATA_SETS.items():
        means = {}
        for k in (k for k in DISTANCES if k >= PLATEAU):
            values = tables.find_values(
                contents[experiment_name(data, SIZES[0], k)], RELATIVE
            ).values()
            if values:
                means[k] = summarize(values).mean
        if not means:
            phrases.append(f"{title} {NOT_RUN}")
            continue
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        ends = [f"{format_value(tables.METRIC, means[k])} (k = {k})" for k in (low, high)]
        phrases.append(f"{title} from {ends[0]} to {ends[1]}")
    return "; ".join(phrases) + " (published: 25.8 to 25.9)"


def _describe_others(contents: Contents) -> str:
    """Compare our best text-only Transformer on Multi30k with each published number."""
    phrases = []
    for system in MULTI30K:
        metric = "bleu" if system.bleu != "-" else "bleu_lowercase"
        number = getattr(system, metric)
        # Only runs with lower-cased texts can be compared with lower-cased results of others.
        best = _find_best(contents) if metric == "bleu" else _find_best_tiny(contents)
        ours = NOT_RUN if best is None else f"{best[0]} ({best[1]})"
        case = "cased" if metric == "bleu" else "lower case"
        phrases.append(f"{ours} against {number}, {case} ({system.name}, {system.model})")
    return "; ".join(phrases)


def _find_best(contents: Contents) -> tuple[str, str] | None:
    """Return our best mean BLEU on Multi30k and its model, selected by the validation loss.

    Return None if nothing was run.
    """
    metric = tables.METRIC
    found = []
    for size in SIZES:
        content = contents[experiment_name("multi30k", size)]
        for method, positions in POSITIONS.items():
            result = tables.find_result(content, method)
            if result is not None:
                losses = tables.values_by_seed(result, "validation", result["criterion"]).values()
                values = tables.find_values(content, method, metric).values()
                found.append((summarize(losses).mean, format_mean(metric, values), size, positions))
    if not found:
        return None
    _, formatted, size, positions = min(found)
    return formatted, f"{size}, {positions}"


def _find_best_tiny(contents: Contents) -> tuple[str, str] | None:
    """Return the mean BLEU of our best model with lower-cased texts, and its setting.

    The model is selected by the validation loss. Return None if nothing was run.
    """
    found = []
    for name, place in TINY.items():
        for run in (contents[name] or {}).get("runs", {}).values():
            result = run["result"]
            losses = tables.values_by_seed(result, "validation", result["criterion"]).values()
            values = tables.values_by_seed(result, "test", "bleu_lowercase").values()
            setting = result["members"][select_members(result)[0]]["setting"]
            about = f"tiny, absolute, {tables.describe_tiny(setting, place)}"
            found.append((summarize(losses).mean, format_mean("bleu_lowercase", values), about))
    if not found:
        return None
    _, formatted, about = min(found)
    return formatted, about
