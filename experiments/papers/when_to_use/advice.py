"""Table of the page docs/when_to_use.md: which attention to use for which task, with our figures.

The recommended method has the best mean on the test set. Methods that a paired t-test over seeds
does not distinguish from it are listed as well.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from distattn_jax.train.metrics import score
from distattn_jax.train.results import values_by_seed
from experiments.papers.formatting import (
    METHOD_ORDER,
    NOT_RUN,
    format_mean,
    method_title,
    metric_title,
)
from experiments.papers.shaw.settings import POSITIONS
from experiments.papers.statistics import ALPHA, paired_t_test, summarize
from experiments.papers.when_to_use import tables
from experiments.papers.when_to_use.settings import EXPERIMENTS, LENGTHS, OURS, TRAINED_LENGTH

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run
Scores = Mapping[str, Mapping[int, float]]  # method -> seed -> value on the test set
SHOWN = ("vanilla", "no_positions", OURS)  # methods whose figures a line shows, if they were run


class Task(NamedTuple):
    """Line of the table.

    Attributes:
      title: Description of the task.
      data: Name of the data.
      metric: Name of the metric.
      scores: Values on the test set by method and seed.
    """

    title: str
    data: str
    metric: str
    scores: Scores


def advice_table(contents: Contents, others: Contents) -> str:
    """Return a Markdown table: task, recommended attention, and the figures of the reason.

    Args:
      contents: Stored results of this report by experiment.
      others: Stored results of other reports: "ag", "sst" and "multi30k_small".
    """
    rows = [
        [task.title, _recommend(task), _give_reason(task)] for task in _list_tasks(contents, others)
    ]
    lines = [["if your task is ...", "use ...", "because ..."], ["---"] * 3, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)  # All cells are text.


def _list_tasks(contents: Contents, others: Contents) -> list[Task]:
    """Return all lines of the table."""
    longest = tables.REVIEWS[-1]
    tasks = [
        _make_task("to find named entities", contents, "wnut17", "WNUT-17", "f1"),
        _make_task("to tag parts of speech", contents, "ud_en", "UD English-EWT", "accuracy"),
        _make_task("to classify short texts", others, "ag", "AG's News", "accuracy"),
        _make_task("to classify sentences", others, "sst", "SST", "accuracy"),
        _make_task(
            "to classify long texts", contents, longest, EXPERIMENTS[longest].title, "accuracy"
        ),
        _make_task("to translate", others, "multi30k_small", "Multi30k", "bleu", tuple(POSITIONS)),
    ]
    methods = EXPERIMENTS[tables.LANGUAGE_MODEL].methods
    for length, title in (
        (TRAINED_LENGTH, "a language model of texts as long as in training"),
        (LENGTHS[-1], f"a language model of texts {LENGTHS[-1] // TRAINED_LENGTH} times as long"),
    ):
        found = {m: tables.perplexities(contents, m, length) for m in methods}
        scores = {method: values for method, values in found.items() if values}
        tasks.append(Task(title, f"IMDB, {length} tokens", "perplexity", scores))
    return tasks


def _make_task(
    title: str,
    contents: Contents,
    experiment: str,
    data: str,
    metric: str,
    methods: tuple[str, ...] = METHOD_ORDER,
) -> Task:
    """Return a line of the table with the stored results of one experiment."""
    scores = {}
    for method in (*methods, "no_positions"):
        result = tables.find_result(contents, experiment, method)
        values = {} if result is None else values_by_seed(result, "test", metric)
        if values:
            scores[method] = values
    return Task(title, data, metric, scores)


def rank(task: Task) -> list[str]:
    """Return the methods of a task, best mean first. Return [] if fewer than two were run."""
    if len(task.scores) < 2:
        return []
    means = {
        method: score(task.metric, summarize(values.values()).mean)
        for method, values in task.scores.items()
    }
    return sorted(means, key=means.__getitem__, reverse=True)


def _recommend(task: Task) -> str:
    """Return the best method, and the methods that are not distinguishable from it."""
    ranked = rank(task)
    if not ranked:
        return NOT_RUN
    best, *rest = ranked
    indistinguishable = []
    for method in rest:
        test = paired_t_test(task.scores[best], task.scores[method])
        if test is not None and (test.p is None or test.p >= ALPHA):
            indistinguishable.append(method_title(method))
    others = "; ".join(indistinguishable)
    return f"**{method_title(best)}**" + (f" (not distinguishable: {others})" if others else "")


def _give_reason(task: Task) -> str:
    """Return the figures of the best method and of the methods in `SHOWN`."""
    ranked = rank(task)
    if not ranked:
        return NOT_RUN
    shown = [method for i, method in enumerate(ranked) if i == 0 or method in SHOWN]
    cells = [f"{method_title(m)} {_format_scores(task, m)}" for m in shown]
    counts = f"{len(ranked)} methods, {len(task.scores[ranked[0]])} seeds"
    return f"{task.data}, {metric_title(task.metric)}, {counts}: {'; '.join(cells)}"


def _format_scores(task: Task, method: str) -> str:
    """Format the mean and the standard deviation of a method."""
    values = task.scores[method].values()
    if task.metric == "perplexity":
        return tables.format_perplexity(values)
    return format_mean(task.metric, values)
