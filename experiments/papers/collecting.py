"""Collect the results of an experiment from its finished runs.

The collected results are small enough to be kept in Git.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from distattn_jax.tasks import load_config
from distattn_jax.train import Config, Run
from distattn_jax.train.options import describe_differences, options_read_by, result_options
from distattn_jax.train.run_files import read_json
from experiments.papers.attention_guiding.head_statistics import collect_guided_heads
from experiments.papers.da_transformer.head_statistics import collect_heads
from experiments.papers.formatting import METHOD_ORDER
from experiments.papers.shaw.settings import SENTENCES
from experiments.papers.stored_results import AnyPath, read_results, round_numbers
from experiments.papers.translations import add_scores
from experiments.papers.translators import collect_translator
from experiments.papers.when_to_use.measures import collect_measures
from experiments.papers.when_to_use.settings import EXPERIMENTS
from experiments.recipes import list_recipes, load_recipe

LOCAL_OPTIONS = ("data.parses", "data.vectors", "name", "search")  # paths and names of one machine
MAY_DIFFER = ("model.implementation",)  # all implementations agree, except for rounding
COMPARED_DATA = ("dataset", "rows", "digests")  # equal in all runs of an experiment
NO_MEASURES = ("experiment", "data", "runs")  # other entries of stored results are measures


def collect_results(folder: AnyPath, *, earlier: AnyPath | None = None) -> dict[str, Any]:
    """Collect results, options and statistics of attention heads from the runs of an experiment.

    Runs that are not finished are ignored.

    Args:
      folder: Folder of the experiment. It has one subfolder per method, with the run of the method.
      earlier: Folder of stored results. If a method has stored results but no run in `folder`, its
        stored results are added. Their data and options must agree with those of the new runs.
        None adds nothing.

    Returns:
      The results as a dict that `write_results` can store: numbers are rounded, and arrays are
      converted to lists.
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
    config = load_config(runs[first].path)
    name = config.name
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
    content = round_numbers({**content, **_collect_learned(name, runs)})
    stored = None if earlier is None else read_results(name, earlier)
    return content if stored is None else _keep_other_methods(content, stored, config)


def _keep_other_methods(
    content: Mapping[str, Any], stored: Mapping[str, Any], config: Config
) -> dict[str, Any]:
    """Return new results together with the stored results of methods that were not run again.

    Some stored entries, such as the parameters of heads, do not say which run they describe. Such
    entries are kept only if the new results replace no stored run.

    Args:
      content: New results.
      stored: Stored results of the same experiment.
      config: Config of one of the new runs.
    """
    new, old = content["runs"], stored["runs"]
    kept = [method for method in old if method not in new]
    if not kept:
        return dict(content)
    different = _list_differences(content, stored, kept, config)
    if different:
        raise ValueError(
            f"the stored runs of {', '.join(kept)} cannot be kept beside {', '.join(new)}: "
            f"{'; '.join(different)}. Use --replace to drop the stored runs."
        )
    merged = {**content, "runs": {m: new.get(m) or old[m] for m in METHOD_ORDER if m in new | old}}
    for name in [name for name in stored if name not in NO_MEASURES]:
        measures = stored[name]
        if set(measures) <= set(METHOD_ORDER):
            measures = {method: measures[method] for method in kept if method in measures}
        elif len(kept) < len(old):
            measures = {}
        if measures or name in content:
            merged[name] = {**measures, **content.get(name, {})}
    return merged


def _list_differences(
    content: Mapping[str, Any], stored: Mapping[str, Any], kept: Sequence[str], config: Config
) -> list[str]:
    """Describe how new results differ from stored results, with one line per difference.

    The data and the options are compared. An option is compared only if the methods of both runs
    use it. Options in `MAY_DIFFER` are not compared.

    Args:
      content: New results.
      stored: Stored results of the same experiment.
      kept: Methods of the stored runs that are compared.
      config: Config of one of the new runs.
    """
    before, now = (
        {name: one["data"].get(name) for name in COMPARED_DATA} for one in (stored, content)
    )
    lines = describe_differences(before, now)
    used = {
        method: options_read_by(config, method).keys() - set(MAY_DIFFER)
        for method in (*kept, *content["runs"])
    }
    for old, new in itertools.product(kept, content["runs"]):
        before, now = (
            {name: value for name, value in one.items() if name in used[old] & used[new]}
            for one in (stored["runs"][old]["config"], content["runs"][new]["config"])
        )
        lines += describe_differences(before, now)
    return list(dict.fromkeys(lines))


def _select_options(run: Run) -> dict[str, Any]:
    """Return the options of a run, without the options that depend on the machine."""
    config = result_options(load_config(run.path))
    if "model.pretrained" in config:
        config["model.pretrained"] = epath.Path(config["model.pretrained"]).name
    return {name: value for name, value in config.items() if name not in LOCAL_OPTIONS}


def _collect_learned(experiment: str, runs: Mapping[str, Run]) -> dict[str, Any]:
    """Collect statistics of the attention heads of trained models.

    The name of the experiment determines the function that collects them:

    - translation experiments in SENTENCES: `collect_translator`;
    - experiments of the report `when_to_use`: `collect_measures`, which reads the files that the
      commands `heads` and `perplexity` wrote;
    - recipes with a `PAIR` of texts, for guided pre-trained models: `collect_guided_heads`;
    - all others: `collect_heads`, for distance-aware heads.
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
