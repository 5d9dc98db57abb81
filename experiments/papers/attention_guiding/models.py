"""What our rows of the attention-guiding tables are of: data, model, training, and what was tried.

All of it is what the results say, and where experiments differ, each says its own.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distattn_jax.datasets import mednli, multinli
from distattn_jax.datasets.claim_builder import CANDIDATES
from distattn_jax.train.guides import GUIDES
from experiments.guiding import PAPERS_RATE, RATES
from experiments.papers import stored_results
from experiments.papers.comparison_tables import settings
from experiments.papers.formatting import NOTHING, ORDER, UNRUN, markdown
from experiments.papers.results import Result, by_setting, chosen
from experiments.searched import SEARCHED

Content = Mapping[str, Any]  # the results of an experiment

CALLED = {
    "multinli": "MultiNLI",
    "mednli": "MedNLI",
    "cross_genre": "Cross-genre-IR",
    "covid_fact": "COVID-Fact",
}  # in print; the last is not of the paper
SPLITS = {
    "multinli": f"the test set is the published {multinli.FILES['test']}, or the part of it that "
    "is at hand: the labels of the published test sets are not public; the validation set is a "
    f"tenth of the premises of the published {multinli.FILES['train']} set, or of the part of it "
    "that is at hand, drawn by a seed, with all their pairs",
    "mednli": f"the splits are those published, {', '.join(mednli.FILES.values())}",
    "cross_genre": "an example is a claim with papers, those that support it among up "
    f"to {CANDIDATES['test']} (training: one among {CANDIDATES['train']}); "
    "the others are lexically near (BM25)",
    "covid_fact": "an example is a supported claim with pieces of evidence, its own among up to "
    f"{CANDIDATES['test']} (training: {CANDIDATES['train']}); the others "
    "are lexically near (BM25), of the same split; a tenth of the sources is the validation set "
    "and two tenths are the test set, drawn by a seed",
}  # as the builders make them
TOKENS = (
    "Tokens are those of a pair as the model reads it, special ones among them, after cutting; "
    "where candidates are ranked, of a claim with one of them."
)
HEADER = (
    *("experiments", "model", "digest", "family", "layers x heads", "width", "weights stored as"),
    *("computed in", "optimiser", "learning rate", "epochs", "batch", "most tokens"),
    "MDG and PDG by",
)
FIELDS = (
    *("model.dtype", "optimizer.name", "optimizer.learning_rate", "epochs", "data.batch_size"),
    *("data.longest", "guiding.scaling"),
)  # of the configuration: the last columns


def splits(kept: Mapping[str, Content | None], shown: Mapping[str, str]) -> list[str]:
    """What the splits of data sets that were run are made of."""
    lines = [f"- {shown[name]}: {SPLITS[name]}." for name in shown if kept[name] is not None]
    return ["How ours are made:", "\n".join(lines), TOKENS] if lines else []


def name_of(content: Content) -> str:
    """What the folder of its pre-trained model is called."""
    return content["data"]["pretrained"]["name"]


def names(contents: Iterable[Content | None]) -> str:
    """The pre-trained models of experiments, each once."""
    found = dict.fromkeys(name_of(content) for content in contents if content is not None)
    return " and ".join(found) or UNRUN


def table(kept: Mapping[str, Content | None], folder: stored_results.AnyPath) -> str:
    """Which model our rows are of and how it was trained; experiments that agree share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for content in _experiments(kept, folder):
        rows.setdefault(_cells(content), []).append(content["experiment"])
    if not rows:
        return "Ours: not run."
    note = "Ours are of these models; where there are several values, runs or settings differ."
    lines = [[_called(experiments), *cells] for cells, experiments in rows.items()]
    return "\n\n".join([note, markdown(HEADER, lines)])


def weights(result: Result) -> str:
    """Those of the guide, in the setting that stands for it."""
    setting = result["members"][chosen(result)[0]]["setting"]
    found = [f"{name} {setting[name]:g}" for name in GUIDES[result["method"]].weights]
    return ", ".join(found) or NOTHING


def tried(content: Content | None, folder: stored_results.AnyPath) -> dict[str, int]:
    """Of how many settings the one of each guide is the best.

    Those of a search count where the guide has the weights that were the best in it.
    """
    if content is None:
        return {}
    counts = {}
    searched = (stored_results.read(content["experiment"] + SEARCHED, folder) or {}).get("runs", {})
    for method, run in content["runs"].items():
        counts[method] = len(by_setting(run["result"]))
        if method in searched and weights(searched[method]["result"]) == weights(run["result"]):
            counts[method] *= len(by_setting(searched[method]["result"]))
    return counts


def searches(
    kept: Mapping[str, Content | None], shown: Mapping[str, str], folder: stored_results.AnyPath
) -> Iterator[str]:
    """The learning rates and the weights of guides that were tried, on each data set."""
    for name, called in shown.items():
        rates, found = (stored_results.read(name + ending, folder) for ending in (RATES, SEARCHED))
        if rates is not None:
            yield from (f"{called}, the learning rate:", _settings(rates))
        elif kept[name] is not None:
            yield f"{called}, the learning rate: {_rate(kept[name] or {})}, not searched."
        if found is not None:
            yield from (f"{called}, the weights of guides:", _settings(found))
        elif rates is not None or kept[name] is not None:
            yield f"{called}, the weights of guides: not searched."
        else:
            yield f"{called}: not searched."


def _experiments(
    kept: Mapping[str, Content | None], folder: stored_results.AnyPath
) -> Iterator[Content]:
    """All that were run, each after the searches that came before it."""
    for name, content in kept.items():
        searched = (stored_results.read(name + ending, folder) for ending in (RATES, SEARCHED))
        yield from (found for found in (*searched, content) if found is not None)


def _cells(content: Content) -> tuple[str, ...]:
    about = content["data"]["pretrained"]
    sizes = about["config"]
    size = (f"{sizes['layers']} x {sizes['heads']}", str(sizes["features"]))
    trained = (_values(content, field) for field in FIELDS)
    stored = " and ".join(kind for kind in about["stored"] if "F" in kind)  # and not integers
    return (about["name"], about["digest"], sizes["family"], *size, stored, *trained)


def _values(content: Content, field: str) -> str:
    """What its runs have in a field of their configurations, each value once."""
    found: dict[str, None] = {}
    for run in content["runs"].values():
        value = run["config"][field]
        for one in value if isinstance(value, list) else [value]:
            found[one if isinstance(one, str) else f"{one:g}"] = None
    return ", ".join(found)


def _called(experiments: Iterable[str]) -> str:
    """Names of experiments, those of one sweep together."""
    together = (re.sub(r"_(share|again)_.*", r"_\1_*", name) for name in experiments)
    found = collections.Counter(together)
    return ", ".join(f"`{name}`" + f" ({n})" * (n > 1) for name, n in found.items())


def _settings(content: Content) -> str:
    return settings(stored_results.results_of(content, ORDER))


def _rate(content: Content) -> str:
    rate = _values(content, "optimizer.learning_rate")
    return f"{rate}, the paper's" if rate == f"{PAPERS_RATE:g}" else rate
