"""Table of the forms of two-sided attention."""

import pandas as pd

from distattn_jax.train.results import LOWER_IS_BETTER
from experiments.papers import tables
from experiments.papers.formatting import EMPTY, experiment_title, metric_title
from experiments.papers.results import Results
from experiments.papers.tables import Column
from experiments.papers.when_to_use import language_models as lm
from experiments.papers.when_to_use.settings import ABLATED, ABLATION, TWO_SIDED


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
