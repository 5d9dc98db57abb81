"""Selections of the results of attention guiding: sweeps, repeated runs, pre-trained models."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from distattn_jax.tasks.fine_tuning import ALL_LAYERS, FineTuningConfig
from distattn_jax.train.options import options_read_by
from experiments.papers.formatting import NOT_RUN
from experiments.papers.results import Results, pivot, split_setting

# Main experiments. COVID-Fact is not a data set of the paper.
DATA = ("multinli", "mednli", "cross_genre", "covid_fact")
BASE = "multinli"  # the experiment that both sweeps vary
SHARES = (20, 40, 60, 80, 100)  # percent of the training set; 100 is the experiment BASE itself
LAYER_GUIDES = ("mdg", "pdg", "ag")
SHARE_GUIDES = ("none", "ag", "mdg", "pdg")
LAYERS = f"{BASE}_layers"  # an experiment with one setting for each guided layer
SWEEPS = (LAYERS, *(f"{BASE}_share_{share}" for share in SHARES[:-1]))
MAX_REPETITIONS = 9


def find_criterion(results: Results) -> str:
    """Return the name of the main metric of the sweeps over guided layers and training shares."""
    name = next((name for name in (BASE, *SWEEPS) if results.runs(name)), None)
    return "accuracy" if name is None else results.criterion(name)


def model_names(results: Results, *experiments: str) -> str:
    """Return the names of the pre-trained models of experiments, each once, joined by "and"."""
    found = (results.part(name, "data", "pretrained", "name") for name in experiments)
    return " and ".join(dict.fromkeys(filter(None, found))) or NOT_RUN


def list_layers(results: Results) -> range:
    """Return the layer numbers of the pre-trained model, which begin at 1."""
    found = [results.part(name, "data", "pretrained", "config") for name in (BASE, LAYERS)]
    return range(1, max(config.get("layers", 0) for config in found) + 1)


def layer_frames(results: Results, split: str = "test") -> dict[int, pd.DataFrame]:
    """Return the main metric for each guided layer, as a dict from layer number to a DataFrame.

    A DataFrame has one row per seed and one column per guide. The column "none" has the results
    without a guide. The first layer has the number 1.
    """
    metric = find_criterion(results)
    rows = results.select(LAYERS, metric, split)
    rows = rows[rows.method.isin(LAYER_GUIDES)]
    numbers = rows.setting.map(lambda one: split_setting(one).get("layer", ALL_LAYERS))
    places = rows[["method", "setting"]].assign(layer=numbers).drop_duplicates()
    wrong = places[places.duplicated(["method", "layer"]) | (places.layer == ALL_LAYERS)]
    if len(wrong):
        raise ValueError(
            f"{LAYERS} must have one setting for each layer; got {wrong.method.iloc[0]}."
        )
    none = results.scores(BASE, metric, split).filter(["none"])
    return {
        layer: pivot(rows[numbers == layer]).join(none, how="outer")
        for layer in list_layers(results)
    }


def share_frames(results: Results) -> dict[int, pd.DataFrame]:
    """Return the main test metric for each share of the training set.

    The result is a dict from the share in percent to a DataFrame with one row per seed and one
    column per guide. Raise a ValueError if the stored share of an experiment differs from the share
    in its name.
    """
    frames, metric = {}, find_criterion(results)
    for share in SHARES:
        name = BASE if share == 100 else f"{BASE}_share_{share}"
        for guide, run in results.runs(name).items():
            stored = run["config"].get("data.share", 1.0)
            if guide in SHARE_GUIDES and round(100 * stored, 6) != share:
                raise ValueError(f"{name} must be of {share} %; got data.share {stored}.")
        frames[share] = results.scores(name, metric).filter(list(SHARE_GUIDES))
    return frames


def repetition_names(data: str) -> tuple[str, ...]:
    """Return all possible names of repetitions of an experiment: {data}_again_1 and so on."""
    return tuple(f"{data}_again_{number}" for number in range(1, MAX_REPETITIONS + 1))


def repetition_frames(results: Results, data: str) -> dict[str, pd.DataFrame]:
    """Return the main test metric of an experiment and of its repetitions.

    The result is a dict from the name of the experiment or repetition to a DataFrame with one row
    per seed and one column per guide. Only guides that all repetitions contain are included. Return
    {} if the experiment is missing, was not repeated, or has no repetition of the baseline "none".
    Raise a ValueError if the data or the options of a repetition differ.

    Repetitions are needed because a seed does not determine the result on a GPU: the kernels and
    their rounding errors may change.
    """
    names = [name for name in (data, *repetition_names(data)) if results.runs(name)]
    if data not in names or len(names) < 2:
        return {}
    first = results.contents[data]
    shared = [g for g in first["runs"] if all(g in results.runs(name) for name in names)]
    for name in names:
        content = results.contents[name]
        if _data_identity(content["data"]) != _data_identity(first["data"]):
            raise ValueError(f"{name} must have the data of {data}; its data differ.")
        for guide in shared:
            if not _agree(guide, content["runs"][guide]["config"], first["runs"][guide]["config"]):
                raise ValueError(
                    f"{name} must have the options of {data}; those of {guide} differ."
                )
    metric = results.criterion(data)
    frames = {name: results.scores(name, metric).filter(shared) for name in names}
    return frames if "none" in shared else {}


def _data_identity(data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return (numbers of rows, digest of the data files, digest of the pre-trained weights).

    If this tuple is equal for two experiments, their data and pre-trained models are the same.
    """
    digest = data.get("digests", {}).get("raw files of the data", data.get("raw_files"))
    return data.get("rows"), digest, data.get("pretrained", {}).get("digest")


def _agree(guide: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return True if two runs of a guide have the same options.

    `first` and `second` are the options of the two runs. Three kinds of options are not compared:
    the number of seeds, options that only one of the two runs has stored, and options that have no
    effect on the guide.
    """
    shared = options_read_by(FineTuningConfig(), guide).keys() & first.keys() & second.keys()
    return all(first[name] == second[name] for name in shared - {"seeds"})
