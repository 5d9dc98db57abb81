"""How numbers, metrics and methods are put into words and tables."""

from collections.abc import Iterable, Sequence

from distattn_jax.models import METHODS
from distattn_jax.train.guides import GUIDES
from experiments.papers.statistics import summary

SPELLED = {
    **{"macro_f": "macro F", "auc": "AUC", "mrr": "MRR", "rmse": "RMSE", "mae": "MAE"},
    **{"ndcg@5": "nDCG@5", "ndcg@10": "nDCG@10"},
    **{f"recall@{k}": f"R@{k}" for k in (1, 3, 5, 20)},
}
PERCENT = (
    *("accuracy", "macro_precision", "macro_recall", "macro_f"),
    *("auc", "mrr", "ndcg@5", "ndcg@10"),
    *(f"recall@{k}" for k in (1, 3, 5, 20)),
)
ORDER = (*METHODS, *GUIDES)  # of what is compared, in every table
NOTHING = "-"
NOT_RUN = "Not run."
UNRUN = "not run"  # in a cell or a sentence


def title(method: str) -> str:
    """How a method is called in print."""
    known = METHODS | GUIDES
    return known[method].title if method in known else method.replace("_", " ")


def spelled(metric: str, *, unit: bool = True) -> str:
    """How a metric is called in print."""
    name = SPELLED.get(metric, metric.replace("_", " "))
    return f"{name} (%)" if unit and metric in PERCENT else name


def figure(metric: str, value: float) -> str:
    """A value of a metric; shares as percentages."""
    return f"{100 * value:.2f}" if metric in PERCENT else f"{value:.4f}"


def mean_and_spread(metric: str, values: Iterable[float]) -> str:
    """The mean over seeds ± their standard deviation, which one seed does not have."""
    mean, std = summary(values)
    return figure(metric, mean) + ("" if std is None else f" ± {figure(metric, std)}")


def difference(metric: str, value: float) -> str:
    """A difference of two values of a metric."""
    return f"{figure(metric, value)} points" if metric in PERCENT else figure(metric, value)


def counts(numbers: Iterable[int]) -> str:
    """Several counts of one thing: the one there is, or from the least to the greatest."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
