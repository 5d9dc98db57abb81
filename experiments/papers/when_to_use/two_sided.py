"""Tables on two-sided attention: its forms, and a larger language model."""

import pandas as pd

from distattn_jax.train.results import LOWER_IS_BETTER
from experiments.papers import tables
from experiments.papers.formatting import EMPTY, NOT_RUN, experiment_title, metric_title
from experiments.papers.results import Results
from experiments.papers.tables import Column
from experiments.papers.when_to_use import language_models as lm
from experiments.papers.when_to_use.settings import (
    ABLATED,
    ABLATION,
    EXPERIMENTS,
    LARGER,
    LARGER_LENGTHS,
    TWO_SIDED,
)


def rank_forms(results: Results) -> pd.Series:
    """Return the mean rank of each form of two-sided attention on validation sets, best first.

    1 is the best rank. Forms that were not run on all data sets of the ablation are left out.
    """
    ranks = {}
    for name in ABLATED:
        metric = results.criterion(name) if results.runs(name) else ""
        means = results.scores(name, metric, "validation").mean()
        forms = means[[form for form in ABLATION if form in means]]
        ranks[name] = forms.rank(ascending=metric in LOWER_IS_BETTER)
    return pd.DataFrame(ranks).mean(axis=1, skipna=False).dropna().sort_values(kind="stable")


def ablation(results: Results) -> str:
    """Return a Markdown table of the forms of two-sided attention, with one row per form.

    The columns are the mean rank on the validation sets, and for each test set the score and its
    difference from the full form.
    """
    ranks = rank_forms(results)
    rank_cells = {form: f"{rank:.1f}" for form, rank in ranks.items()}
    columns = [Column("validation, mean rank", {tables.DETECTABLE: EMPTY, **rank_cells})]
    tests = {
        f"{experiment_title(name)}, {metric_title(metric)}": (metric, results.main_scores(name))
        for name in ABLATED
        if (metric := results.test_metric(name)) and name not in lm.NAMES.values()
    }
    for length in (lm.SHORT, lm.LONGEST):
        tests[f"{length} tokens, perplexity"] = lm.METRIC, lm.perplexities(results, length)
    has_forms = False
    for title, (metric, frame) in tests.items():
        forms = frame[[form for form in ABLATION if form in frame]]
        has_forms = has_forms or bool(len(forms.columns))
        cells = {tables.DETECTABLE: EMPTY, **tables.mean_cells(forms, metric, bold_best=True)}
        columns.append(Column(title, cells))
        found = tables.minus(forms, metric, TWO_SIDED, ABLATION)
        columns.append(tables.difference_column("minus Two-sided", found, TWO_SIDED))
    return tables.join("form", [*ABLATION, tables.DETECTABLE] if has_forms else [], columns)


def larger(results: Results) -> str:
    """Return a Markdown table of the larger language model, with one row per method.

    The columns are the perplexity at each length, and the time of a training step.
    """
    methods = [method for method in EXPERIMENTS[LARGER] if method in results.runs(LARGER)]
    columns = []
    for length in LARGER_LENGTHS:
        frame = results.scores(LARGER, lm.METRIC, f"{length} tokens")
        columns.append(
            Column(f"{length} tokens", tables.mean_cells(frame, lm.METRIC, bold_best=True))
        )
    seconds = {method: results.runs(LARGER)[method].get("step_seconds") for method in methods}
    cells = {m: NOT_RUN if one is None else f"{1000 * one:.0f}" for m, one in seconds.items()}
    columns.append(Column("ms per training step", cells))
    return tables.join("method", methods, columns)
