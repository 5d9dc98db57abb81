"""Collect the results of an experiment from its finished runs.

The collected results are small enough to be kept in Git.
"""

from collections.abc import Mapping
from typing import Any

from etils import epath

from distattn_jax.tasks import load_config
from distattn_jax.train import Run
from distattn_jax.train.options import result_options
from distattn_jax.train.run_files import read_json
from experiments.papers.attention_guiding.head_statistics import collect_guided_heads
from experiments.papers.da_transformer.head_statistics import collect_heads
from experiments.papers.formatting import METHOD_ORDER
from experiments.papers.shaw.settings import SENTENCES
from experiments.papers.stored_results import AnyPath, round_numbers
from experiments.papers.translations import add_scores
from experiments.papers.translators import collect_translator
from experiments.papers.when_to_use.measures import collect_measures
from experiments.papers.when_to_use.settings import EXPERIMENTS
from experiments.recipes import list_recipes, load_recipe

LOCAL_OPTIONS = ("data.parses", "data.vectors", "name", "search")  # paths and names of one machine


def collect_results(folder: AnyPath) -> dict[str, Any]:
    """Collect results, options and statistics of attention heads from the runs of an experiment.

    Runs that are not finished are ignored.

    Args:
      folder: Folder of the experiment. It has one subfolder per method, with the run of the method.

    Returns:
      The argument `content` of `write_results`, with rounded numbers, and lists instead of arrays.
    """
    found = {method: Run(epath.Path(folder) / method) for method in METHOD_ORDER}
    runs = {method: run for method, run in found.items() if run.result is not None}
    if not runs:
        raise ValueError(f"folder must hold finished runs, one for each method; got {folder}.")
    data = {method: run.data for method, run in runs.items()}
    first = next(iter(runs))
    different = [method for method in runs if data[method] != data[first]]
    if different:
        raise ValueError(f"{folder}: the data of {', '.join(different)} differ from {first}'s.")
    name = load_config(runs[first].path).name
    content: dict[str, Any] = {"experiment": name, "data": data[first], "runs": {}}
    for method, run in runs.items():
        result, translations = add_scores(run)
        content["runs"][method] = {
            "result": result,
            **({"translations": translations} if translations else {}),
            "config": _select_options(run),
            "environment": read_json(run.path / "environment.json"),
            "seconds": sum(line["seconds"] for line in run.timings),
            "step_seconds": run.step_seconds,
        }
    return round_numbers({**content, **_collect_learned(name, runs)})


def _select_options(run: Run) -> dict[str, Any]:
    """Return the options of a run, without the options that depend on the machine."""
    config = result_options(load_config(run.path))
    if "model.pretrained" in config:
        config["model.pretrained"] = epath.Path(config["model.pretrained"]).name
    return {name: value for name, value in config.items() if name not in LOCAL_OPTIONS}


def _collect_learned(experiment: str, runs: Mapping[str, Run]) -> dict[str, Any]:
    """Collect statistics of attention heads from the checkpoints of the runs.

    If the recipe of the experiment defines `PAIR`, use `collect_guided_heads`, which is for guided
    pre-trained models. If SENTENCES contains the experiment, use `collect_translator`. If
    EXPERIMENTS contains the experiment, use `collect_measures`, which reads files that the commands
    `heads` and `perplexity` wrote. Otherwise use `collect_heads`, which is for distance-aware
    heads.
    """
    if experiment in SENTENCES:
        return collect_translator(runs, sentence=SENTENCES[experiment])
    if experiment in EXPERIMENTS:
        return collect_measures(runs)
    recipe = load_recipe(experiment) if experiment in list_recipes() else None
    pair = getattr(recipe, "PAIR", None)
    if pair is not None:
        return collect_guided_heads(runs, pair)
    return collect_heads(runs, sentence=getattr(recipe, "SENTENCE", None))
