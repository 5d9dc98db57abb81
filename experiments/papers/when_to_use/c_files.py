"""Tables of language models that were trained on C files: a larger model, and long texts."""

from collections.abc import Mapping

import numpy as np

from experiments.papers import tables
from experiments.papers.formatting import NOT_RUN, method_title
from experiments.papers.results import Results
from experiments.papers.tables import Column
from experiments.papers.when_to_use.language_models import METRIC, position_columns
from experiments.papers.when_to_use.settings import (
    EXPERIMENTS,
    LARGER,
    LARGER_LENGTHS,
    LONG_TEXTS,
    LONG_TEXTS_LENGTH,
)


def larger(results: Results) -> str:
    """Return a Markdown table of the larger language model, with one row per method.

    The columns are the perplexity at each length, and the time of a training step of one model.
    """
    runs = results.runs(LARGER)
    methods = [method for method in EXPERIMENTS[LARGER] if method in runs]
    columns = []
    for length in LARGER_LENGTHS:
        frame = results.scores(LARGER, METRIC, f"{length} tokens")
        columns.append(Column(f"{length} tokens", tables.mean_cells(frame, METRIC, bold_best=True)))
    columns.append(_time_column({method: runs[method] for method in methods}))
    return tables.join("method", methods, columns)


def long_texts(results: Results) -> str:
    """Return a Markdown table of language models of long texts, with one row per method.

    The columns are the time of a training step, the perplexity of all tokens, and the perplexity of
    the tokens in each range of positions, such as "from 1024".
    """
    titles, runs, measured = {}, {}, {}
    for name in (LONG_TEXTS, f"{LONG_TEXTS}_window"):
        for method in EXPERIMENTS[name]:
            row = f"{name} {method}"
            found = results.part(name, METRIC, method, "lengths", str(LONG_TEXTS_LENGTH))
            if found:
                runs[row], measured[row] = results.runs(name)[method], found
                window = runs[row]["config"].get("model.window")
                titles[row] = method_title(method) + (f", window of {window}" if window else "")
    columns = [_time_column(runs)]
    means = {row: f"{np.mean(one['perplexity']):.2f}" for row, one in measured.items()}
    columns.append(Column("perplexity", means))
    columns += position_columns(measured, digits=2)
    return tables.join("method", titles, columns)


def _time_column(runs: Mapping[str, Mapping]) -> Column:
    """Return a column with the time of a training step of one model of each run.

    The models of a run must be computed one after the other.
    """
    cells = {}
    for row, run in runs.items():
        seconds, models = run.get("step_seconds"), len(run["result"]["members"])
        cells[row] = NOT_RUN if seconds is None else f"{1000 * seconds / models:.0f}"
    return Column("ms per training step", cells)
