"""Tables of the report on where distance helps.

A cell contains the mean ± standard deviation over seeds, on the test set, of the setting that was
chosen on the validation set.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from distattn_jax.train.results import Result, select_members, values_by_seed
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
from experiments.papers.when_to_use.settings import (
    CUTS,
    ENCODERS,
    EXPERIMENTS,
    LENGTHS,
    OURS,
    TRAINED_LENGTH,
)

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run
LANGUAGE_MODEL = "imdb_language_model"
CRITERIA = {name: "f1" if name == "wnut17" else "accuracy" for name in EXPERIMENTS}
TAGGING = ("ud_en", "wnut17")
REVIEWS = tuple(f"imdb_{cut}" for cut in CUTS)


def find_result(contents: Contents, experiment: str, method: str) -> Result | None:
    """Return the stored result of a method, or None if it was not run."""
    run = (contents[experiment] or {}).get("runs", {}).get(method)
    return None if run is None else run["result"]


def compare(contents: Contents, experiment: str, first: str, second: str) -> Any:
    """Compare two methods by a paired t-test. Return None if a method was not run."""
    return outcomes.compare_results(
        find_result(contents, experiment, first), find_result(contents, experiment, second)
    )


def scores_table(contents: Contents, experiments: Iterable[str]) -> str:
    """Return a Markdown table of the main metric on the test set, one row per method.

    Args:
      contents: Stored results by experiment.
      experiments: Names of the experiments, one column each.
    """
    experiments = tuple(experiments)
    if not any(contents[name] for name in experiments):
        return NOT_RUN_SENTENCE
    rows = [["no model", *(_format_baseline(contents, name) for name in experiments)]]
    for method in ENCODERS:
        cells = []
        for name in experiments:
            result = find_result(contents, name, method)
            metric = CRITERIA[name]
            values = {} if result is None else values_by_seed(result, "test", metric)
            cells.append(format_mean(metric, values.values()) if values else NOT_RUN)
        rows.append([method_title(method), *cells])
    titles = [f"{EXPERIMENTS[name].title}, {metric_title(CRITERIA[name])}" for name in experiments]
    return markdown_table(["method", *titles], rows)


def differences_table(contents: Contents, experiments: Iterable[str], *, first: str = OURS) -> str:
    """Return a Markdown table of one method minus each other one, with p values.

    Return "" if no experiment was run.

    Args:
      contents: Stored results by experiment.
      experiments: Names of the experiments, one column each.
      first: Method from which the others are subtracted.
    """
    experiments = tuple(experiments)
    if not any(contents[name] for name in experiments):
        return ""
    found = {
        method: [compare(contents, name, first, method) for name in experiments]
        for method in ENCODERS
        if method != first
    }
    rows = [[method_title(m), *map(outcomes.format_outcome, row)] for m, row in found.items()]
    columns = zip(*found.values(), strict=True)
    rows.append(["detectable difference", *(outcomes.detectable_range(c) for c in columns)])
    titles = [EXPERIMENTS[name].title for name in experiments]
    return markdown_table([f"{method_title(first)} minus", *titles], rows)


def perplexities(contents: Contents, method: str, length: int) -> dict[int, float]:
    """Return the perplexity of a language model by seed, or {} if it was not measured.

    Args:
      contents: Stored results by experiment.
      method: Attention variant.
      length: Tokens of an example of the test set.
    """
    found = _find_measure(contents, "perplexity", method).get("lengths", {}).get(str(length))
    result = find_result(contents, LANGUAGE_MODEL, method)
    if found is None or result is None:
        return {}
    seeds = [result["members"][i]["seed"] for i in select_members(result)]
    return dict(zip(seeds, found["perplexity"], strict=True))


def list_measured(contents: Contents) -> list[str]:
    """Return the language models whose perplexity was measured at all lengths, best first.

    They are sorted by the perplexity on the longest texts.
    """
    means = {}
    for method in EXPERIMENTS[LANGUAGE_MODEL].methods:
        values = [perplexities(contents, method, length).values() for length in LENGTHS]
        if all(values):
            means[method] = summarize(values[-1]).mean
    return sorted(means, key=means.__getitem__)


def lengths_table(contents: Contents) -> str:
    """Return a Markdown table of the perplexity by length, sorted by that of the longest texts."""
    measured = list_measured(contents)
    if not measured:
        return NOT_RUN_SENTENCE
    rows = []
    for method in measured:
        cells = [format_perplexity(perplexities(contents, method, n).values()) for n in LENGTHS]
        rows.append([method_title(method), *cells])
    for method in EXPERIMENTS[LANGUAGE_MODEL].methods:
        if method not in measured:
            rows.append([method_title(method), *[NOT_RUN] * len(LENGTHS)])
    return markdown_table(["method", *(f"{length} tokens" for length in LENGTHS)], rows)


def compare_lengths(
    contents: Contents, first: str, second: str, length: int
) -> outcomes.Outcome | None:
    """Compare the perplexity of two methods by a paired t-test, or return None if not run."""
    test = paired_t_test(
        perplexities(contents, first, length), perplexities(contents, second, length)
    )
    return None if test is None else outcomes.Outcome("perplexity", test)


def length_differences_table(contents: Contents) -> str:
    """Return a Markdown table of the perplexity of DA-Transformer minus that of each method.

    Return "" if no other method was run.
    """
    methods = [method for method in list_measured(contents) if method != OURS]
    ends = (LENGTHS[0], LENGTHS[-1])
    found = {m: [compare_lengths(contents, OURS, m, length) for length in ends] for m in methods}
    if not found:
        return ""
    rows = [[method_title(m), *map(outcomes.format_outcome, row)] for m, row in found.items()]
    columns = zip(*found.values(), strict=True)
    rows.append(["detectable difference", *(outcomes.detectable_range(c) for c in columns)])
    header = [f"{method_title(OURS)} minus", *(f"{length} tokens" for length in ends)]
    return markdown_table(header, rows)


def far_shares(contents: Contents, method: str, length: int) -> np.ndarray | None:
    """Return the attention on far tokens, shape (seeds, L, N), or None if it was not measured."""
    found = _find_measure(contents, "heads", method).get("far", {}).get(str(length))
    return None if found is None else np.asarray(found["heads"])


def uniform_share(contents: Contents, length: int) -> float:
    """Return the share of far tokens if attention were uniform, or nan if it was not measured."""
    for found in ((contents[LANGUAGE_MODEL] or {}).get("heads") or {}).values():
        if str(length) in found.get("far", {}):
            return found["far"][str(length)]["uniform"]
    return float("nan")


def far_table(contents: Contents) -> str:
    """Return a Markdown table of the share of the attention on far tokens, by length.

    The heads of DA-Transformer also have rows of their own, by the sign of w.
    """
    measured = [
        m for m in list_measured(contents) if far_shares(contents, m, LENGTHS[-1]) is not None
    ]
    if not measured:
        return NOT_RUN_SENTENCE
    lengths = [length for length in LENGTHS if length > TRAINED_LENGTH]
    rows = [["uniform attention", *(f"{100 * uniform_share(contents, n):.0f}" for n in lengths)]]
    for method in measured:
        shares = [far_shares(contents, method, length) for length in lengths]
        rows.append([method_title(method), *(f"{100 * np.mean(s):.0f}" for s in shares)])  # type: ignore[arg-type]
        if method == OURS:
            weight = np.asarray(_find_measure(contents, "heads", OURS)["weight"])
            for title, chosen in (
                ("heads with w < 0", weight < 0),
                ("heads with w > 0", weight > 0),
            ):
                cells = [f"{100 * s[chosen].mean():.0f}" for s in shares]  # type: ignore[index]
                rows.append([f"{method_title(method)}, {title}", *cells])
    header = f"attention (%) on tokens more than {TRAINED_LENGTH} tokens away"
    return markdown_table([header, *(f"{length} tokens" for length in lengths)], rows)


def layers_table(contents: Contents) -> str:
    """Return a Markdown table of w and v of the heads of DA-Transformer, by task and layer."""
    rows = []
    for name in EXPERIMENTS:
        heads = _find_measure(contents, "heads", OURS, name)
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
    return _find_measure(contents, "heads", OURS, experiment).get("pruning", {})


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
            minus = "-" if order == "random" else test
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


def _find_measure(
    contents: Contents, kind: str, method: str, experiment: str = LANGUAGE_MODEL
) -> dict[str, Any]:
    """Return the collected measures of a method, or {} if there are none.

    Args:
      contents: Stored results by experiment.
      kind: "perplexity" or "heads".
      method: Attention variant.
      experiment: Name of the experiment.
    """
    return (contents[experiment] or {}).get(kind, {}).get(method, {})


def _format_baseline(contents: Contents, experiment: str) -> str:
    """Return the score of a prediction without a model, or "not run"."""
    runs = (contents[experiment] or {}).get("runs", {})
    for run in runs.values():
        value = run["result"].get("baseline", {}).get("test", {}).get(CRITERIA[experiment])
        if value is not None:
            return format_value(CRITERIA[experiment], value)
    return NOT_RUN


def format_perplexity(values: Iterable[float]) -> str:
    """Format perplexities as "mean ± standard deviation" with three to four digits."""
    mean, std = summarize(values)
    digits = 1 if mean < 1000 else 0
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
