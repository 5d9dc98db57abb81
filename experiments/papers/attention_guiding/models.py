"""Tables that describe our guided models: data, pre-trained model, options, and searches.

Everything is read from the stored results.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distattn_jax.datasets import mednli, multinli
from distattn_jax.datasets.claim_builder import CANDIDATES
from distattn_jax.tasks.guides import GUIDES
from distattn_jax.train.results import Result, group_by_setting, select_members
from experiments.papers import stored_results
from experiments.papers.attention_guiding.settings import PAPERS_RATE, RATES
from experiments.papers.comparison_tables import settings_table
from experiments.papers.formatting import EMPTY, METHOD_ORDER, NOT_RUN, markdown_table
from experiments.papers.stored_results import SEARCHED

Content = Mapping[str, Any]  # stored results of one experiment

# Printed names. COVID-Fact is not a data set of the paper.
DATA_TITLES = {
    "multinli": "MultiNLI",
    "mednli": "MedNLI",
    "cross_genre": "Cross-genre-IR",
    "covid_fact": "COVID-Fact",
}
SPLITS = {
    "multinli": f"the test set is the available part of the published {multinli.FILES['test']}, "
    "because the labels of the published test sets are not public; the validation set is a random "
    f"tenth of the premises of the available part of the published {multinli.FILES['train']} set, "
    "with all their pairs",
    "mednli": f"the published splits: {', '.join(mednli.FILES.values())}",
    "cross_genre": "an example is a claim with up to "
    f"{CANDIDATES['test']} papers, among them those that support it (training: "
    f"{CANDIDATES['train']} papers, one of them supporting); the other papers are "
    "lexically similar (BM25)",
    "covid_fact": "an example is a supported claim with up to "
    f"{CANDIDATES['test']} pieces of evidence, its own among them (training: "
    f"{CANDIDATES['train']}); the others are lexically similar (BM25) and from the "
    "same split; a random tenth of the sources is the validation set, and two tenths are the test "
    "set",
}
TOKENS_NOTE = (
    "Tokens per example: a pair as model input, with special tokens, after truncation. In ranking "
    "tasks a pair is a claim with one candidate."
)
HEADER = (
    *("experiments", "model", "digest", "family", "layers x heads", "width", "stored weights"),
    *("computed in", "optimizer", "learning rate", "epochs", "batch size", "max tokens"),
    "scaling of MDG and PDG",
)
OPTIMIZER = "optimizer.name"
# Options of the last columns, each under all names it has had.
OPTIONS = (
    *(("model.dtype",), (OPTIMIZER,), ("optimizer.learning_rate",), ("epochs",)),
    *(("data.batch_size",), ("data.longest",), ("guiding.scaling",)),
)


def describe_splits(contents: Mapping[str, Content | None], titles: Mapping[str, str]) -> list[str]:
    """Return paragraphs on how each data set with results is split for training and tests."""
    lines = [f"- {titles[name]}: {SPLITS[name]}." for name in titles if contents[name] is not None]
    return ["Splits of our data sets:", "\n".join(lines), TOKENS_NOTE] if lines else []


def model_name(content: Content) -> str:
    """Return the name of the pre-trained model: the name of the folder that contains it."""
    return content["data"]["pretrained"]["name"]


def join_model_names(contents: Iterable[Content | None]) -> str:
    """Return the names of the pre-trained models, each once, joined by "and"."""
    found = dict.fromkeys(model_name(content) for content in contents if content is not None)
    return " and ".join(found) or NOT_RUN


def models_table(contents: Mapping[str, Content | None], folder: stored_results.AnyPath) -> str:
    """Return a Markdown table of the pre-trained model and options of every experiment.

    Experiments with the same model and options share a row.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for content in _list_experiments(contents, folder):
        rows.setdefault(_model_cells(content), []).append(content["experiment"])
    if not rows:
        return "Ours: not run."
    note = "Our models. Several values in a cell mean that runs or settings differ."
    lines = [[_join_experiments(names), *cells] for cells, names in rows.items()]
    return "\n\n".join([note, markdown_table(HEADER, lines)])


def format_guide_weights(result: Result) -> str:
    """Format the loss weights of a guide in its best setting, such as "alpha 0.1, beta 0.01"."""
    setting = result["members"][select_members(result)[0]]["setting"]
    found = [f"{name} {setting[name]:g}" for name in GUIDES[result["method"]].weights]
    return ", ".join(found) or EMPTY


def count_settings(content: Content | None, folder: stored_results.AnyPath) -> dict[str, int]:
    """Return, for each guide, the number of hyperparameter settings that were tried.

    If the guide was trained with the loss weights that a search selected, the number is multiplied
    by the number of settings in the search.
    """
    if content is None:
        return {}
    counts = {}
    search = stored_results.read_results(content["experiment"] + SEARCHED, folder) or {}
    for guide, run in content["runs"].items():
        counts[guide] = len(group_by_setting(run["result"]))
        searched = search.get("runs", {}).get(guide, {}).get("result")
        if searched and format_guide_weights(searched) == format_guide_weights(run["result"]):
            counts[guide] *= len(group_by_setting(searched))
    return counts


def write_searches(
    contents: Mapping[str, Content | None],
    titles: Mapping[str, str],
    folder: stored_results.AnyPath,
) -> Iterator[str]:
    """Yield, for each data set, paragraphs on the searches for learning rates and loss weights."""
    for name, title in titles.items():
        rates, weights = (
            stored_results.read_results(name + suffix, folder) for suffix in (RATES, SEARCHED)
        )
        content = contents[name]
        if rates is not None:
            yield from (f"{title}, learning rate:", _write_settings(rates))
        elif content is not None:
            yield f"{title}, learning rate: {_describe_rate(content)}, not searched."
        if weights is not None:
            yield from (f"{title}, weights of guides:", _write_settings(weights))
        elif rates is not None or content is not None:
            yield f"{title}, weights of guides: not searched."
        else:
            yield f"{title}: not searched."


def _list_experiments(
    contents: Mapping[str, Content | None], folder: stored_results.AnyPath
) -> Iterator[Content]:
    """Yield the stored results of every experiment, preceded by the results of its searches."""
    for name, content in contents.items():
        searches = (
            stored_results.read_results(name + suffix, folder) for suffix in (RATES, SEARCHED)
        )
        yield from (found for found in (*searches, content) if found is not None)


def _model_cells(content: Content) -> tuple[str, ...]:
    """Return table cells with the pre-trained model and the options of an experiment."""
    about = content["data"]["pretrained"]
    config = about["config"]
    size = (f"{config['layers']} x {config['heads']}", str(config["features"]))
    stored = " and ".join(dtype for dtype in about["stored"] if "F" in dtype)  # floating point only
    options = (_join_option(content, names) for names in OPTIONS)
    return (about["name"], about["digest"], config["family"], *size, stored, *options)


def _join_option(content: Content, names: tuple[str, ...]) -> str:
    """Return the distinct values of an option in all runs of an experiment, joined by commas.

    Args:
      content: Stored results of the experiment.
      names: All names that the option has had.
    """
    found: dict[str, None] = {}
    for run in content["runs"].values():
        config = run["config"]
        value = stored_results.find_option(config, *names)
        if value is None and OPTIMIZER in names:  # Newer results store only the weight decay.
            value = "adamw" if config.get("optimizer.weight_decay") else "adam"
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                found[one if isinstance(one, str) else f"{one:g}"] = None
    return ", ".join(found) or EMPTY


def _join_experiments(names: Iterable[str]) -> str:
    """Join names of experiments with commas, and abbreviate the names of sweeps and repetitions.

    For example, multinli_share_20 and multinli_share_40 become "`multinli_share_*` (2)".
    """
    joined = (re.sub(r"_(share|again)_.*", r"_\1_*", name) for name in names)
    counts = collections.Counter(joined)
    return ", ".join(f"`{name}`" + f" ({n})" * (n > 1) for name, n in counts.items())


def _write_settings(content: Content) -> str:
    """Return a Markdown table of all settings of a hyperparameter search."""
    return settings_table(stored_results.select_results(content, METHOD_ORDER))


def _describe_rate(content: Content) -> str:
    """Return the learning rate of an experiment, with ", as published" if the paper uses it."""
    rate = _join_option(content, ("optimizer.learning_rate",))
    return f"{rate}, as published" if rate == f"{PAPERS_RATE:g}" else rate
