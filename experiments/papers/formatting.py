"""Format numbers, metrics and methods for Markdown tables."""

from collections.abc import Iterable, Sequence

from distattn_jax.models import METHODS
from distattn_jax.tasks.guides import GUIDES
from distattn_jax.train.results import PERCENT_METRICS
from experiments.papers.statistics import summarize

METRIC_TITLES = {
    **{"macro_f": "macro F", "auc": "AUC", "mrr": "MRR", "rmse": "RMSE", "mae": "MAE"},
    **{"ndcg@5": "nDCG@5", "ndcg@10": "nDCG@10"},
    **{f"recall@{k}": f"R@{k}" for k in (1, 3, 5, 20)},
    "f1": "F1",
    **{"bleu": "BLEU", "bleu_lowercase": "BLEU, lower case", "chrf": "chrF"},
}
POINT_METRICS = ("bleu", "bleu_lowercase", "chrf")  # from 0 to 100, by definition
METHOD_ORDER = (*METHODS, *GUIDES)  # rows of every table
EXPERIMENT_TITLES = {
    **{"ag": "AG's News", "amazon": "Amazon Electronics", "sst": "SST", "snli": "SNLI"},
    **{"mind": "MIND", "amazon_rating": "Amazon ratings"},
    "mind_made_up": "artificial log instead of MIND",
    **{"multinli": "MultiNLI", "mednli": "MedNLI", "cross_genre": "Cross-genre-IR"},
    **{"covid_fact": "COVID-Fact", "wnut17": "WNUT-17"},
    **{"ud_en": "UD English-EWT", "ud_fr": "UD French-Sequoia", "ud_el": "UD Greek-GDT"},
    **{"ud_tr": "UD Turkish-IMST", "ud_vi": "UD Vietnamese-VTB"},
    "imdb_language_model": "language model of IMDB",
    "imdb_language_model_512": "language model of IMDB, trained on 512 tokens",
    **{"ag_5_seeds": "AG's News, 5 seeds", "sst_5_seeds": "SST, 5 seeds"},
    "linux_language_model": "C files",
    "linux_long": "long C files",
    "linux_long_window": "long C files, window",
    **{f"imdb_{cut}": f"IMDB {cut} words" for cut in (64, 128, 256, 512)},
    "multi30k": "Multi30k",
    "libreoffice": "LibreOffice help",
}
EMPTY = "-"  # a cell without a value
NOT_RUN = "not run"  # a cell or a phrase
NOT_RUN_SENTENCE = "Not run."


def method_title(method: str) -> str:
    """Return the printed name of a method: an attention variant or a guide."""
    known = METHODS | GUIDES
    return known[method].title if method in known else method.replace("_", " ")


def experiment_title(experiment: str) -> str:
    """Return the printed name of an experiment: its data set, and the size of a translator."""
    data, _, size = experiment.partition("_")
    known = EXPERIMENT_TITLES.get(experiment)
    return known or f"{EXPERIMENT_TITLES.get(data, data)} {size}".strip()


def metric_title(metric: str, *, unit: bool = True) -> str:
    """Return the printed name of a metric. If `unit` is True, percentages end with " (%)"."""
    name = METRIC_TITLES.get(metric, metric.replace("_", " "))
    return f"{name} (%)" if unit and metric in PERCENT_METRICS else name


def format_value(metric: str, value: float) -> str:
    """Format a metric: percentages, points and perplexities with two decimals, others with four.

    A negative value that is rounded to zero has no sign.
    """
    if metric in (*POINT_METRICS, "perplexity"):
        return f"{value:z.2f}"
    return f"{100 * value:z.2f}" if metric in PERCENT_METRICS else f"{value:z.4f}"


def format_mean(metric: str, values: Iterable[float]) -> str:
    """Format the values of all seeds as "mean ± standard deviation". A single value has no "±"."""
    mean, std = summarize(values)
    return format_value(metric, mean) + ("" if std is None else f" ± {format_value(metric, std)}")


def format_difference(metric: str, value: float) -> str:
    """Format a difference of two metric values. Percentages and BLEU have the unit "points"."""
    formatted = format_value(metric, value)
    return f"{formatted} points" if metric in (*PERCENT_METRICS, *POINT_METRICS) else formatted


def format_p(p: float) -> str:
    """Format a p value with two significant digits, or as "< 0.0001" if p is below 0.0001.

    A value that would be rounded to 0.05 has four decimals, to show whether it is below 0.05.
    """
    if p < 1e-4:
        return "< 0.0001"
    text = f"{p:.2g}"
    return text if text != "0.05" else f"{p:.4f}"


def write_p(p: float) -> str:
    """Format a p value as "p = 0.04" or "p < 0.0001"."""
    formatted = format_p(p)
    return f"p {formatted}" if formatted.startswith("<") else f"p = {formatted}"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table: the first column left-aligned, all others right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_or_not_run(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, or "Not run." if it has no rows."""
    return markdown_table(header, rows) if rows else NOT_RUN_SENTENCE
