"""Table of the page docs/when_to_use.md: which attention to use for which task, with our figures.

The recommended method has the best mean on the test set. Methods that a paired t-test over seeds
does not distinguish from it are listed as well.
"""

from typing import NamedTuple

from experiments.papers.formatting import (
    METHOD_ORDER,
    NOT_RUN,
    format_mean,
    method_title,
    metric_title,
)
from experiments.papers.outcomes import UNCLEAR
from experiments.papers.shaw.settings import POSITIONS
from experiments.papers.when_to_use import language_models, reviews, tables, tagging
from experiments.papers.when_to_use.settings import (
    CUTS,
    EXPERIMENTS,
    LENGTHS,
    LONGER_TRAINED_LENGTH,
    OURS,
    TRAINED_LENGTH,
    TREEBANKS,
)
from experiments.papers.when_to_use.tables import Contents, Scores

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
    longest = reviews.NAMES[CUTS[-1]]
    return [
        _make_task("to find named entities", contents, "wnut17", "WNUT-17", "f1"),
        _make_task("to tag parts of speech", contents, "ud_en", "UD English-EWT", "accuracy"),
        Task(
            f"to tag parts of speech in other languages (mean of {len(TREEBANKS)})",
            f"UD {', '.join(TREEBANKS.values())}",
            "accuracy",
            tagging.average_languages(contents),
        ),
        _make_task("to classify short texts", others, "ag", "AG's News", "accuracy"),
        _make_task("to classify sentences", others, "sst", "SST", "accuracy"),
        _make_task(
            "to classify long texts", contents, longest, EXPERIMENTS[longest].title, "accuracy"
        ),
        _make_task("to translate", others, "multi30k_small", "Multi30k", "bleu", tuple(POSITIONS)),
        *_list_language_models(contents),
    ]


def _make_task(
    title: str,
    contents: Contents,
    experiment: str,
    data: str,
    metric: str,
    methods: tuple[str, ...] = METHOD_ORDER,
) -> Task:
    """Return a line of the table with the stored results of one experiment."""
    methods = (*methods, "no_positions")
    return Task(title, data, metric, tables.find_scores(contents, experiment, metric, methods))


def _list_language_models(contents: Contents) -> list[Task]:
    """Return the lines on language models.

    Models that were trained on longer texts have a line if the advice of the first line does not
    hold for them, so that no line repeats another one.
    """
    trained, longer, longest = TRAINED_LENGTH, LONGER_TRAINED_LENGTH, LENGTHS[-1]
    short = _make_language_model(contents, trained, trained, "as long as in training")
    long = _make_language_model(contents, trained, longest, f"{longest // trained} times as long")
    other = _make_language_model(contents, longer, longer, f"of {longer} tokens, as in training")
    best = find_best(other)
    is_new = bool(best) and best[0] not in find_best(short)
    return [short, long, other] if is_new else [short, long]


def _make_language_model(contents: Contents, trained: int, length: int, texts: str) -> Task:
    """Return a line of the table on language models.

    Args:
      contents: Stored results by experiment.
      trained: Tokens of an example in training.
      length: Tokens of an example of the test set.
      texts: End of the title, which describes the texts.
    """
    scores = language_models.find_perplexities(contents, length, trained=trained)
    return Task(
        f"a language model of texts {texts}", f"IMDB, {length} tokens", "perplexity", scores
    )


def find_best(task: Task) -> list[str]:
    """Return the method with the best mean, then all methods that are not distinguishable from it.

    Return [] if fewer than two methods were run.
    """
    if len(task.scores) < 2:
        return []
    best, *rest = tables.rank(task.metric, task.scores)
    found = {m: tables.compare_scores(task.metric, task.scores, best, m) for m in rest}
    return [best, *(m for m, one in found.items() if one is not None and one.kind == UNCLEAR)]


def _recommend(task: Task) -> str:
    """Return the best method, and the methods that are not distinguishable from it."""
    if not (found := find_best(task)):
        return NOT_RUN
    best, *others = map(method_title, found)
    return f"**{best}**" + (f" (not distinguishable: {'; '.join(others)})" if others else "")


def _give_reason(task: Task) -> str:
    """Return the figures of the best method and of the methods in `SHOWN`."""
    if len(task.scores) < 2:
        return NOT_RUN
    ranked = tables.rank(task.metric, task.scores)
    shown = [method for i, method in enumerate(ranked) if i == 0 or method in SHOWN]
    cells = [
        f"{method_title(m)} {format_mean(task.metric, task.scores[m].values())}" for m in shown
    ]
    counts = f"{len(ranked)} methods, {len(task.scores[ranked[0]])} seeds"
    return f"{task.data}, {metric_title(task.metric)}, {counts}: {'; '.join(cells)}"
