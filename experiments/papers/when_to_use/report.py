"""Report on where distance helps: tables, findings, plots, and a table of advice.

The setting of a method is chosen on the validation set. A cell contains its mean ± standard
deviation over seeds on the test set. A difference is the score of the method in the row minus the
score of another method.
"""

import collections
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.papers import formatting, statistics, tables
from experiments.papers.formatting import EMPTY, NOT_RUN, experiment_title, method_title
from experiments.papers.page import Report
from experiments.papers.results import Results
from experiments.papers.shaw.settings import POSITIONS
from experiments.papers.tables import Column, Outcomes, join
from experiments.papers.when_to_use import language_models as lm
from experiments.papers.when_to_use import settings
from experiments.papers.when_to_use.c_files import larger, long_texts
from experiments.papers.when_to_use.figures import list_pictures
from experiments.papers.when_to_use.language_models import LONG, LONGEST, METRIC, SHORT
from experiments.papers.when_to_use.settings import CUTS, ENCODERS, EXPERIMENTS, LENGTHS, OURS
from experiments.papers.when_to_use.two_sided import ablation

# The templates also call the other functions of this module.
__all__ = ["REPORT", "ablation", "larger", "long_texts"]

DOCS = Path(__file__).parent.parent.parent.parent / "docs"
# Columns of means over data sets, named as in `task_scores`, and their titles.
MEANS = {
    "+".join(settings.SPEECH): "mean of parts of speech",
    "+".join(settings.TAGGING): "mean of all",
}
DATA = {
    "tagging": (*settings.TAGGING, *MEANS),
    "reviews": settings.REVIEWS,
    "short_texts": settings.SHORT_TEXTS,
}
TRANSLATORS = (*POSITIONS, "no_positions", *settings.ADDED[settings.TRANSLATION])
# Forms of distance-aware attention that may give far tokens less attention in long texts.
REMEDIES = (OURS, "distance_aware_linear", "distance_aware_early_add", settings.REMEDY)
SHOWN = ("vanilla", "no_positions", OURS)  # methods whose figures the advice shows, if run


# Findings.


def more_outcomes(results: Results) -> str:
    """Return Markdown table rows that count better, worse and unclear comparisons.

    The first rows compare language models trained on longer texts with those trained on shorter
    texts. The other rows compare each order of pruning heads with a random order.
    """
    compared: dict[str, Outcomes] = {}
    for length in (LONG, LONGEST):
        title = f"Training on {LONG} instead of {SHORT} tokens, at {length}"
        found = lm.compare_trainings(results, length)
        compared[title] = {method_title(method): one for method, one in found.items()}
    for name in EXPERIMENTS:
        for order, one in compare_pruning(results, name).items():
            title = f"Half of the heads pruned, {order} first, against a random order"
            compared[title] = {**compared.get(title, {}), experiment_title(name): one}
    return tables.outcome_rows(compared, figures=False)


def order(results: Results, name: str) -> str:
    """Return a number or text about the order of methods on reviews of different lengths.

    Args:
      results: Stored results of all experiments.
      name: "methods" returns the number of methods and the lengths. "p" returns the p value of an
        F test: do differences between methods depend on the length? "swaps" lists the pairs of
        methods in which the first is better at one length, and the second is better at another
        length, both with p < ALPHA. If the F test has p >= ALPHA, "swaps" returns "none".
        "correlation" returns the rank correlation of the methods at the shortest and at the longest
        length.
    """
    found = {cut: results.main_scores(f"imdb_{cut}", ENCODERS) for cut in CUTS}
    frames = {cut: frame for cut, frame in found.items() if len(frame.columns) > 1}
    methods = [m for m in ENCODERS if frames and all(m in one for one in frames.values())]
    if name == "methods":
        return f"{len(methods)} methods at {', '.join(map(str, frames)) or 'no'} words"
    if min(len(methods), len(frames)) < 2:
        return NOT_RUN
    if name == "correlation":
        first, *_, last = (list(frame[methods].mean()) for frame in frames.values())
        return f"{statistics.rank_correlation(first, last):.2f}"
    p = _order_test(list(frames.values()), methods)
    if name == "p":
        return NOT_RUN if p is None else formatting.write_p(p)
    swaps = _list_swaps(frames, methods) if p is not None and p < statistics.ALPHA else []
    return "; ".join(swaps) or "none"


def _order_test(frames: Sequence[pd.DataFrame], methods: Sequence[str]) -> float | None:
    """Return the p value of an F test: do differences between methods depend on the length?

    `frames` has one DataFrame for each length, with one row per seed and one column per method.
    Only seeds with which all methods were run at all lengths are used. Return None if there are
    fewer than two such seeds.
    """
    complete = [frame[methods].dropna() for frame in frames]
    seeds = sorted(set.intersection(*(set(frame.index) for frame in complete)))
    values = np.asarray([[one[method].loc[seeds] for one in complete] for method in methods])
    return statistics.interaction_test(values) if len(seeds) > 1 else None


def _list_swaps(frames: dict[int, pd.DataFrame], methods: Sequence[str]) -> list[str]:
    """Return a sentence for each pair of methods that swap their order between two lengths.

    `frames` is a dict from length to a DataFrame with one row per seed and one column per method.
    """
    swaps = []
    for first, second in itertools.combinations(methods, 2):
        found = {c: tables.compare(one, "accuracy", first, second) for c, one in frames.items()}
        groups = tables.group_by_kind(found)
        better, worse = (
            ", ".join(map(str, groups[kind])) for kind in (statistics.BETTER, statistics.WORSE)
        )
        if better and worse:
            names = f"{method_title(first)} is better than {method_title(second)}"
            swaps.append(f"{names} at {better} words and worse at {worse}")
    return swaps


def growth(results: Results, kind: str) -> str:
    """Return a list of methods with their ratios of perplexities, such as "ALiBi 0.99; ...".

    A ratio is the perplexity on the longest texts divided by the perplexity on texts of the trained
    length.

    Args:
      results: Stored results of all experiments.
      kind: "worse" lists the methods whose perplexity is significantly higher on the longest texts.
        "kept" lists all others.
    """
    frames = [lm.perplexities(results, length) for length in (LONGEST, SHORT)]
    cells = []
    for method in _list_shown(results):
        long, short = (tables.by_seed(frame, method) for frame in frames)
        outcome = statistics.compare_values(METRIC, long, short)
        if outcome is not None and (outcome.kind == statistics.WORSE) == (kind == "worse"):
            ratio = frames[0][method].mean() / frames[1][method].mean()
            cells.append(f"{method_title(method)} {ratio:.2f}")
    return "; ".join(cells) or "none"


def outcome(results: Results, name: str, first: str, second: str) -> str:
    """Return a text that compares two methods, such as "better, 0.52 points, p = 0.012".

    See `task_scores` about `name`.
    """
    metric, frame = task_scores(results, name)
    found = tables.compare(frame, metric, first, second)
    return NOT_RUN if found is None else f"{found.kind}, {tables.describe(found)}"


def missing(results: Results) -> str:
    """Return the methods that were not run, with the experiments that lack them, or "none".

    A language model counts as run only if its perplexity on the longest texts was measured.
    """
    experiments = collections.defaultdict(list)  # by the methods that they lack
    measured = {name: lm.list_measured(results, trained) for trained, name in lm.NAMES.items()}
    for name, methods in EXPERIMENTS.items():
        found = measured.get(name, results.runs(name))
        absent = "; ".join(method_title(method) for method in methods if method not in found)
        if absent:
            everything = not results.runs(name)
            experiments["all methods" if everything else absent].append(experiment_title(name))
    lines = [f"{absent} (in {'; '.join(names)})" for absent, names in experiments.items()]
    return "; ".join(lines) or "none"


# Tables of encoders.


def scores(results: Results, kind: str) -> str:
    """Return a Markdown table of the main metric of the encoders, with one row per method.

    Each data set, and each mean of `MEANS`, has a column, in which the best method is bold.

    Args:
      results: Stored results of all experiments.
      kind: "tagging", "reviews" or "short_texts".
    """
    columns = []
    for name in DATA[kind]:
        metric, frame = task_scores(results, name)
        frame = frame[[method for method in ENCODERS if method in frame]]
        cells = tables.mean_cells(frame, metric, bold_best=True)
        if name in MEANS:
            columns.append(Column(MEANS[name], {"": EMPTY, **cells}))
        else:
            baseline = tables.format_baseline(results, name, name=False)
            columns.append(Column(experiment_title(name), {"": baseline, **cells}))
    methods = _encoders_that_ran(results, kind)
    rows = {"": "no model", **{method: method_title(method) for method in methods}}
    return join("method", rows, columns if methods else [])


def differences(results: Results, kind: str, *bases: str) -> str:
    """Return a Markdown table: main metric of each encoder minus that of a base method.

    There is one row per method, and one column for each base method and data set.

    Args:
      results: Stored results of all experiments.
      kind: "tagging" or "reviews".
      *bases: Methods that are subtracted.
    """
    columns = []
    methods = _encoders_that_ran(results, kind)
    for base, name in itertools.product(bases, DATA[kind]):
        if results.runs(name):
            frame, metric = results.main_scores(name), results.test_metric(name)
            found = tables.minus(frame, metric, base, methods)
            title = f"{experiment_title(name)}, minus {method_title(base)}"
            columns.append(tables.difference_column(title, found, base))
    return join("method", [*methods, tables.DETECTABLE], columns)


def translation(results: Results) -> str:
    """Return a Markdown table of translators, with one row per method.

    The columns are the perplexity of the tokens of the translations, its difference from
    Transformer-RPR, BLEU, and its difference from the Transformer.
    """
    name, base = settings.TRANSLATION, "relative_position"
    perplexities, bleu = (results.scores(name, metric) for metric in (METRIC, "bleu"))
    methods = [method for method in TRANSLATORS if method in perplexities]
    translated = [method for method in methods if method in bleu]
    found = tables.minus(perplexities, METRIC, base, methods)
    found_bleu = tables.minus(bleu, "bleu", "vanilla", translated)
    columns = [
        Column("perplexity", tables.mean_cells(perplexities[methods], METRIC, bold_best=True)),
        tables.difference_column(f"perplexity, minus {method_title(base)}", found, base),
        Column("BLEU", tables.mean_cells(bleu[translated], "bleu")),
        tables.difference_column(f"BLEU, minus {method_title('vanilla')}", found_bleu, "vanilla"),
    ]
    return join("method", methods, columns)


def _encoders_that_ran(results: Results, kind: str) -> list[str]:
    """Return the encoders that were run on at least one data set of a kind."""
    return [
        method for method in ENCODERS if any(method in results.runs(name) for name in DATA[kind])
    ]


# Tables of language models.


def lengths(results: Results) -> str:
    """Return a Markdown table of the language models that were trained on short texts.

    There is one row per method, the best on the longest texts first. The columns are the perplexity
    at each length, its difference from DA-Transformer at the trained and at the longest length, and
    the share of the attention on far tokens in the longest texts.
    """
    measured = _list_shown(results)
    columns = _perplexity_columns(results, SHORT)
    for length in (SHORT, LONGEST):
        columns.append(_minus_ours(results, length, measured))
    columns.append(_far_column(results, measured))
    return join("method", [*measured, tables.DETECTABLE] if measured else [], columns)


def longer_training(results: Results) -> str:
    """Return a Markdown table of the language models that were trained on longer texts.

    There is one row per method. The columns are the perplexity at each length, and its difference
    from training on shorter texts.
    """
    trained = LONG
    columns = _perplexity_columns(results, trained)
    columns += [_training_column(results, length) for length in (trained, LONGEST)]
    measured = lm.list_measured(results, trained)
    return join("method", [*measured, tables.DETECTABLE] if measured else [], columns)


def trainings(results: Results) -> str:
    """Return a Markdown table of the effect of training language models on longer texts.

    A cell is the perplexity after training on longer texts minus that after training on shorter
    texts. There is one row per method and one column for each length of the test texts.
    """
    measured = lm.list_measured(results, LONG)
    columns = [_training_column(results, length) for length in LENGTHS]
    return join("method", [*measured, tables.DETECTABLE] if measured else [], columns)


def remedies(results: Results) -> str:
    """Return a Markdown table of the methods in REMEDIES: forms of distance-aware attention.

    The columns are the perplexity at the trained and at the longest length, its difference from
    DA-Transformer, and the share of the attention on far tokens in the longest texts.
    """
    columns = []
    for length in (SHORT, LONGEST):
        frame = lm.perplexities(results, length)
        frame = frame[[method for method in REMEDIES if method in frame]]
        cells = tables.mean_cells(frame, METRIC, bold_best=True)
        columns.append(Column(f"{length} tokens, perplexity", cells))
        columns.append(_minus_ours(results, length, REMEDIES))
    columns.append(_far_column(results, REMEDIES))
    return join("method", REMEDIES if lm.list_measured(results) else [], columns)


def _list_shown(results: Results) -> list[str]:
    """Return the methods trained on short texts, best on the longest texts first.

    Of the forms of two-sided attention, only the best are among them: `ablation` shows the others.
    """
    return [m for m in lm.list_measured(results) if m not in settings.OTHER_FORMS]


def _perplexity_columns(results: Results, trained: int) -> list[Column]:
    """Return columns of perplexities, one for each length of the texts.

    Lengths at which no method was measured are left out. `trained` is the trained length.
    """
    frames = {length: lm.perplexities(results, length, trained) for length in LENGTHS}
    return [
        Column(
            f"{length} tokens",
            {tables.DETECTABLE: EMPTY, **tables.mean_cells(frame, METRIC, bold_best=True)},
        )
        for length, frame in frames.items()
        if len(frame)
    ]


def _minus_ours(results: Results, length: int, rows: Sequence[str]) -> Column:
    """Return a column of differences: perplexity minus the perplexity of DA-Transformer."""
    found = tables.minus(lm.perplexities(results, length), METRIC, OURS, rows)
    title = f"{length} tokens, minus {method_title(OURS)}"
    return tables.difference_column(title, found, OURS)


def _training_column(results: Results, length: int) -> Column:
    """Return a column: perplexity after training on longer minus training on shorter texts.

    `length` is the length of the test texts.
    """
    title = f"{length} tokens, minus training on {SHORT}"
    return tables.difference_column(title, lm.compare_trainings(results, length))


def _far_column(results: Results, rows: Sequence[str]) -> Column:
    """Return a column with the share of the attention on far tokens in the longest texts.

    `rows` are the methods.
    """
    cells = {method: _format_share(lm.far_shares(results, method, LONGEST)) for method in rows}
    return Column(f"{LONGEST} tokens, far attention (%)", {**cells, tables.DETECTABLE: EMPTY})


def _format_share(share: np.ndarray | None) -> str:
    return NOT_RUN if share is None else f"{100 * share.mean():.0f}"


def far(results: Results, word: str) -> str:
    """Return a Markdown table of the share of the attention on far tokens.

    There is one row per method and one column for each length of the texts. Two more rows show the
    heads of DA-Transformer with distance weight w < 0 and with w > 0.

    Args:
      results: Stored results of all experiments.
      word: Trained length, such as "256". Tokens at a larger distance are far.
    """
    trained = int(word)
    lengths = [length for length in LENGTHS if length > trained]
    weight = np.asarray(results.part(lm.NAMES[trained], "heads", OURS).get("weight", ()))
    rows = []
    for method in lm.list_measured(results, trained):
        shares = [lm.far_shares(results, method, length, trained) for length in lengths]
        if all(share is None for share in shares):
            continue
        rows.append([method_title(method), *map(_format_share, shares)])
        if method == OURS and weight.size:
            for sign, chosen in (("<", weight < 0), (">", weight > 0)):
                parts = (None if share is None else share[chosen] for share in shares)
                title = f"{method_title(method)}, heads with w {sign} 0"
                rows.append([title, *map(_format_share, parts)])
    uniform = (lm.uniform_share(results, length, trained) for length in lengths)
    rows.insert(0, ["uniform attention", *(f"{100 * share:.0f}" for share in uniform)])
    header = f"attention (%) on tokens more than {trained} tokens away"
    table = formatting.markdown_table([header, *(f"{length} tokens" for length in lengths)], rows)
    return table if len(rows) > 1 else formatting.NOT_RUN_SENTENCE


def positions(results: Results, word: str) -> str:
    """Return a Markdown table of the perplexity in ranges of positions of the longest texts.

    There is one row per method and one column for each range, such as "from 64".

    Args:
      results: Stored results of all experiments.
      word: Trained length, such as "256".
    """
    found = {
        method: results.part(lm.NAMES[int(word)], METRIC, method, "lengths", str(LONGEST))
        for method in lm.list_measured(results, int(word))
    }
    return join("method", list(found), lm.position_columns(found, digits=1))


# Tables of heads.


def layers(results: Results) -> str:
    """Return a Markdown table of the heads of DA-Transformer, with one row per task and layer.

    The columns summarize the distance weights w and the sigmoid shapes v of the heads.
    """
    rows = []
    for name in EXPERIMENTS:
        heads = results.part(name, "heads", OURS)
        weight, shape = (np.asarray(heads.get(key, [[]])) for key in ("weight", "shape"))
        for layer in range(weight.shape[1]):
            w = weight[:, layer]
            medians = [
                f"{np.median(w[sign]):.3f}" if sign.any() else EMPTY for sign in (w < 0, w > 0)
            ]
            share, v = f"{100 * (w > 0).mean():.0f}", f"{shape[:, layer].mean():.2f}"
            rows.append([experiment_title(name), str(layer + 1), share, *medians, v])
    header = ["heads of", "layer", "w > 0 (% of heads)", "median w < 0", "median w > 0", "mean v"]
    return formatting.table_or_not_run(header, rows)


def pruning(results: Results) -> str:
    """Return a Markdown table of DA-Transformer with pruned heads.

    There is one row for each task and order of pruning, and one column for each number of pruned
    heads. A cell is the validation metric. The last column compares each order with the random
    order, at the middle number of pruned heads.
    """
    rows, header = [], []
    for name in EXPERIMENTS:
        found = results.part(name, "heads", OURS, "pruning")
        if not found:
            continue
        metric, tests = found["criterion"], compare_pruning(results, name)
        header = [f"without {count} of {found['heads']}" for count in found["counts"]]
        whole = formatting.format_value(metric, float(np.mean(found["whole"])))
        for order, values in found["orders"].items():
            cells = [
                formatting.format_value(metric, float(mean)) for mean in np.mean(values, axis=0)
            ]
            test = tables.format_outcome(tests[order]) if order in tests else EMPTY
            task = f"{experiment_title(name)}, {formatting.metric_title(metric)}"
            rows.append([task, order, whole, *cells, test])
    columns = ["heads of", "pruned first", "all heads", *header, "middle minus random"]
    return formatting.table_or_not_run(columns, rows)


def compare_pruning(results: Results, experiment: str) -> Outcomes:
    """Compare each order of pruning with the random order by a t-test, at half of the heads."""
    found = results.part(experiment, "heads", OURS, "pruning")
    if not found:
        return {}
    split = f"without {found['counts'][len(found['counts']) // 2]}"
    frame = results.scores(f"{experiment}, pruning", found["criterion"], split)
    return tables.minus(frame, found["criterion"], "random", frame)


# Advice. The recommended method has the best mean on the test set. Methods that a paired t-test
# over seeds does not distinguish from it are listed as well.


def task_scores(results: Results, name: str) -> tuple[str, pd.DataFrame]:
    """Return the name of a metric, and its values with one row per seed, one column per method.

    Args:
      results: Stored results of all experiments.
      name: Name of an experiment. If it is several names joined by "+", the mean over these
        experiments is returned. If it is a number such as "8192", the perplexity of language models
        on texts of this many tokens is returned.
    """
    if name.isdigit():
        return METRIC, lm.perplexities(results, int(name))
    first, *others = name.split("+")
    metric = results.test_metric(first)
    known = TRANSLATORS if metric == "bleu" else formatting.METHOD_ORDER
    frame = results.main_scores(first, known)
    for other in others:  # Methods and seeds that were not run on all of them become empty.
        frame = frame + results.main_scores(other, known)
    return metric, frame.dropna(axis=1, how="all") / (1 + len(others))


def find_best(metric: str, frame: pd.DataFrame) -> list[str]:
    """Return the method with the best mean, then all methods that are not distinguishable from it.

    A method is distinguishable if a paired t-test over seeds has p < ALPHA. Return [] if fewer than
    two methods were run. `frame` has one row per seed and one column per method.
    """
    if len(frame.columns) < 2:
        return []
    best, *rest = tables.rank(frame, metric)
    found = {method: tables.compare(frame, metric, best, method) for method in rest}
    return [best, *tables.group_by_kind(found)[statistics.UNCLEAR]]


def recommend(results: Results, name: str) -> str:
    """Return the best method as Markdown, with the methods that are not distinguishable from it.

    See `task_scores` about `name`.
    """
    if not (found := find_best(*task_scores(results, name))):
        return NOT_RUN
    best, *others = map(method_title, found)
    return f"**{best}**" + (f" (not distinguishable: {'; '.join(others)})" if others else "")


def reason(results: Results, name: str) -> str:
    """Return a text with the scores of the best method and of the methods in `SHOWN`.

    See `task_scores` about `name`.
    """
    metric, frame = task_scores(results, name)
    if len(frame.columns) < 2:
        return NOT_RUN
    ranked, cells = tables.rank(frame, metric), tables.mean_cells(frame, metric)
    shown = [method for i, method in enumerate(ranked) if i == 0 or method in SHOWN]
    fewest, most = frame.count().min(), frame.count().max()
    seeds = most if fewest == most else f"{fewest} to {most}"
    counts = f"{len(ranked)} methods, {seeds} seeds"
    figures = "; ".join(f"{method_title(method)} {cells[method]}" for method in shown)
    return f"{formatting.metric_title(metric)}, {counts}: {figures}"


REPORT = Report(
    paper="when_to_use",
    folder="when_to_use",
    experiments=tuple(EXPERIMENTS),
    list_pictures=list_pictures,
    pages={DOCS / "when_to_use.md": "advice.md", DOCS / "training.md": "long_texts.md"},
)
