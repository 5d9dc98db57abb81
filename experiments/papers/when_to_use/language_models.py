"""Tables of language models that are tested on longer texts than in training.

There is one experiment for each trained length. All experiments predict the same tokens of the test
set, at every length.
"""

from collections.abc import Iterable

import numpy as np

from distattn_jax.train.results import select_members
from experiments.papers import outcomes
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN,
    NOT_RUN_SENTENCE,
    markdown_table,
    method_title,
)
from experiments.papers.statistics import paired_t_test, summarize
from experiments.papers.when_to_use import tables
from experiments.papers.when_to_use.settings import (
    EXPERIMENTS,
    LENGTHS,
    LONGER_TRAINED_LENGTH,
    OURS,
    REMEDY,
    TRAINED_LENGTH,
)
from experiments.papers.when_to_use.tables import Contents, Scores

# Experiments by trained length.
NAMES = {
    TRAINED_LENGTH: "imdb_language_model",
    LONGER_TRAINED_LENGTH: "imdb_language_model_512",
}
METRIC = "perplexity"
LONGEST = LENGTHS[-1]
# Forms of distance-aware attention that may give far tokens less attention in long texts.
REMEDIES = (OURS, "distance_aware_linear", "distance_aware_early_add", REMEDY)


def find_perplexities(
    contents: Contents, length: int, *, trained: int = TRAINED_LENGTH
) -> dict[str, dict[int, float]]:
    """Return the perplexity by method and seed. Methods that were not measured are left out.

    Args:
      contents: Stored results by experiment.
      length: Tokens of an example of the test set.
      trained: Tokens of an example in training.
    """
    name, found = NAMES[trained], {}
    for method in EXPERIMENTS[name].methods:
        lengths = tables.find_measure(contents, name, METRIC, method).get("lengths", {})
        result = tables.find_result(contents, name, method)
        if str(length) in lengths and result is not None:
            seeds = [result["members"][i]["seed"] for i in select_members(result)]
            found[method] = dict(zip(seeds, lengths[str(length)]["perplexity"], strict=True))
    return found


def list_measured(contents: Contents, *, trained: int = TRAINED_LENGTH) -> list[str]:
    """Return the methods that were measured on the longest texts, best first."""
    return tables.rank(METRIC, find_perplexities(contents, LONGEST, trained=trained))


def lengths_table(contents: Contents) -> str:
    """Return a Markdown table of the models of the main trained length, best on long texts first.

    Columns: perplexity by length, its difference from DA-Transformer at both ends, and the share of
    the attention on far tokens in the longest texts.
    """
    measured = list_measured(contents)
    if not measured:
        return NOT_RUN_SENTENCE
    columns = _perplexity_columns(contents, TRAINED_LENGTH)
    for length in (TRAINED_LENGTH, LONGEST):
        scores = find_perplexities(contents, length)
        cells, detectable = tables.difference_cells(METRIC, scores, measured, OURS)
        columns[f"{length} tokens, minus {method_title(OURS)}"] = [*cells, detectable]
    columns[f"{LONGEST} tokens, far attention (%)"] = [
        *(_format_share(far_shares(contents, method, LONGEST)) for method in measured),
        EMPTY,
    ]
    return tables.join_columns([*map(method_title, measured), tables.DETECTABLE], columns)


def longer_training_table(contents: Contents) -> str:
    """Return a Markdown table of the models that were trained on longer texts.

    Columns: perplexity by length, and its difference from the same method that was trained on
    shorter texts, at the trained length and on the longest texts.
    """
    trained = LONGER_TRAINED_LENGTH
    measured = list_measured(contents, trained=trained)
    if not measured:
        return NOT_RUN_SENTENCE
    columns = _perplexity_columns(contents, trained)
    columns |= _training_columns(contents, (trained, LONGEST))
    return tables.join_columns([*map(method_title, measured), tables.DETECTABLE], columns)


def trainings_table(contents: Contents) -> str:
    """Return a Markdown table that compares both trained lengths at every test length."""
    measured = list_measured(contents, trained=LONGER_TRAINED_LENGTH)
    if not measured:
        return NOT_RUN_SENTENCE
    titles = [*map(method_title, measured), tables.DETECTABLE]
    return tables.join_columns(titles, _training_columns(contents, LENGTHS))


def _perplexity_columns(contents: Contents, trained: int) -> dict[str, list[str]]:
    """Return the columns of perplexities, one for each length at which any method was measured."""
    measured = list_measured(contents, trained=trained)
    found = {n: find_perplexities(contents, n, trained=trained) for n in LENGTHS}
    return {
        f"{length} tokens": [*tables.score_cells(METRIC, scores, measured), EMPTY]
        for length, scores in found.items()
        if scores
    }


def _training_columns(contents: Contents, lengths: Iterable[int]) -> dict[str, list[str]]:
    """Return columns of differences between both trained lengths, one for each test length."""
    columns = {}
    for length in lengths:
        found = compare_trainings(contents, length)
        tests = [found.get(m) for m in list_measured(contents, trained=LONGER_TRAINED_LENGTH)]
        cells = [*map(outcomes.format_outcome, tests), outcomes.detectable_range(tests)]
        columns[f"{length} tokens, minus training on {TRAINED_LENGTH}"] = cells
    return columns


def compare_trainings(contents: Contents, length: int) -> dict[str, outcomes.Outcome | None]:
    """Compare training on longer texts with training on shorter ones, by method.

    An outcome is None if one of both was not run, or if both were run on different data.

    Args:
      contents: Stored results by experiment.
      length: Tokens of an example of the test set.
    """
    long, short = (
        find_perplexities(contents, length, trained=n)
        for n in (LONGER_TRAINED_LENGTH, TRAINED_LENGTH)
    )
    if not _have_same_data(contents):
        short = {}
    found = {}
    for method, values in long.items():
        test = paired_t_test(values, short.get(method, {}))
        found[method] = None if test is None else outcomes.Outcome(METRIC, test)
    return found


def _have_same_data(contents: Contents) -> bool:
    """Return whether all experiments that were run have the same raw files and vocabulary."""
    found = [contents[name]["data"] for name in NAMES.values() if contents[name] is not None]
    return all(
        one.get(key) == found[0].get(key) for one in found for key in ("digests", "vocabulary")
    )


def compare_ends(contents: Contents, method: str) -> outcomes.Outcome | None:
    """Compare the longest texts with texts of the trained length, for one method."""
    long, short = (find_perplexities(contents, n) for n in (LONGEST, TRAINED_LENGTH))
    test = paired_t_test(long.get(method, {}), short.get(method, {}))
    return None if test is None else outcomes.Outcome(METRIC, test)


def growth(contents: Contents, method: str) -> float:
    """Return the perplexity of the longest texts as a multiple of that at the trained length."""
    long, short = (
        summarize(find_perplexities(contents, length)[method].values()).mean
        for length in (LONGEST, TRAINED_LENGTH)
    )
    return long / short


def far_shares(
    contents: Contents, method: str, length: int, *, trained: int = TRAINED_LENGTH
) -> np.ndarray | None:
    """Return the attention on far tokens, shape (seeds, L, N), or None if it was not measured.

    A token is far if its distance is larger than the trained length.
    """
    far = tables.find_measure(contents, NAMES[trained], "heads", method).get("far", {})
    return np.asarray(far[str(length)]["heads"]) if str(length) in far else None


def uniform_share(contents: Contents, length: int, *, trained: int = TRAINED_LENGTH) -> float:
    """Return the share of far tokens if attention were uniform, or nan if it was not measured."""
    for found in ((contents[NAMES[trained]] or {}).get("heads") or {}).values():
        if str(length) in found.get("far", {}):
            return found["far"][str(length)]["uniform"]
    return float("nan")


def far_table(contents: Contents, *, trained: int = TRAINED_LENGTH) -> str:
    """Return a Markdown table of the share of the attention on far tokens, by length.

    The heads of DA-Transformer also have rows of their own, by the sign of w.
    """
    name, lengths = NAMES[trained], [length for length in LENGTHS if length > trained]
    rows = []
    for method in list_measured(contents, trained=trained):
        shares = [far_shares(contents, method, length, trained=trained) for length in lengths]
        if all(share is None for share in shares):
            continue
        rows.append([method_title(method), *map(_format_share, shares)])
        weight = np.asarray(tables.find_measure(contents, name, "heads", OURS).get("weight", ()))
        if method == OURS and weight.size:
            for sign, chosen in (("<", weight < 0), (">", weight > 0)):
                parts = (None if share is None else share[chosen] for share in shares)
                title = f"{method_title(method)}, heads with w {sign} 0"
                rows.append([title, *map(_format_share, parts)])
    if not rows:
        return NOT_RUN_SENTENCE
    uniform = (uniform_share(contents, length, trained=trained) for length in lengths)
    rows.insert(0, ["uniform attention", *(f"{100 * share:.0f}" for share in uniform)])
    header = f"attention (%) on tokens more than {trained} tokens away"
    return markdown_table([header, *(f"{length} tokens" for length in lengths)], rows)


def remedies_table(contents: Contents) -> str:
    """Return a Markdown table of the remedies: perplexity and attention on far tokens."""
    columns = {}
    for length in (TRAINED_LENGTH, LONGEST):
        scores: Scores = {
            method: values
            for method, values in find_perplexities(contents, length).items()
            if method in REMEDIES
        }
        columns[f"{length} tokens, perplexity"] = tables.score_cells(METRIC, scores, REMEDIES)
        cells, _ = tables.difference_cells(METRIC, scores, REMEDIES, OURS)
        columns[f"{length} tokens, minus {method_title(OURS)}"] = cells
    shares = [far_shares(contents, method, LONGEST) for method in REMEDIES]
    if all(share is None for share in shares):
        return NOT_RUN_SENTENCE
    columns[f"{LONGEST} tokens, far attention (%)"] = list(map(_format_share, shares))
    return tables.join_columns(list(map(method_title, REMEDIES)), columns)


def positions_table(contents: Contents, *, trained: int = TRAINED_LENGTH) -> str:
    """Return a Markdown table of the perplexity by position in the longest texts."""
    measured = list_measured(contents, trained=trained)
    if not measured:
        return NOT_RUN_SENTENCE
    found = {
        method: tables.find_measure(contents, NAMES[trained], METRIC, method)["lengths"]
        for method in measured
    }
    starts = found[measured[0]][str(LONGEST)]["starts"]
    rows = [
        [method_title(method), *_format_means(lengths[str(LONGEST)]["by_position"])]
        for method, lengths in found.items()
    ]
    return markdown_table(["method", *(f"from {start}" for start in starts)], rows)


def _format_means(values: Iterable[Iterable[float]]) -> list[str]:
    """Format the means over seeds of perplexities, shape (seeds, ranges)."""
    return [f"{mean:.1f}" for mean in np.mean(np.asarray(values), axis=0)]


def _format_share(share: np.ndarray | None) -> str:
    """Format the mean of shares as a percentage."""
    return NOT_RUN if share is None else f"{100 * share.mean():.0f}"
