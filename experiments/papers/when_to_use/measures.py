"""Measures of trained heads: parameters w and v, cost of pruning, attention to far tokens.

w is the distance weight of a head, and v is the shape of its sigmoid. The cost of pruning is the
loss in the validation metric if heads are removed.

The command `heads` writes these measures to a file in the folder of a run. The command `perplexity`
writes another file there. `collect_measures` reads both files.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distattn_jax.tasks import (
    LanguageModeling,
    TextTask,
    distance_parameters,
    measure_far_attention,
    measure_pruning,
    variant_parameters,
)
from distattn_jax.train import Run
from distattn_jax.train.results import select_members
from distattn_jax.train.run import AnyPath
from distattn_jax.train.run_files import read_json
from experiments.papers.when_to_use.settings import OURS, REMEDY

HEADS_FILE, PERPLEXITY_FILE = "heads.json", "perplexity.json"  # in the folder of a run
PRUNED_SHARES = (0.25, 0.5, 0.75)  # of all heads of a model
# Methods whose heads have the parameters w and v of the learnable sigmoid.
SIGMOID_METHODS = (OURS, REMEDY, "distance_aware_early_add")
TWO_SIDED = "two_sided"  # start of the names of all methods with two-sided attention


def measure_heads(
    path: AnyPath, task: TextTask, params: Any, validation: Any, lengths: Sequence[int]
) -> dict[str, Any]:
    """Measure the heads of all models of a run. Return the content of the file `heads.json`.

    Args:
      path: Folder of the run.
      task: Task of the run.
      params: Parameters of all models, with a leading axis over models.
      validation: Examples of the validation set, for pruning.
      lengths: Lengths of the texts, in tokens, on which the attention of language models to far
        tokens is measured.
    """
    content: dict[str, Any] = {}
    if task.config.method in SIGMOID_METHODS:
        ((weight, shape),) = distance_parameters(params).values()
        content |= {"weight": weight.tolist(), "shape": shape.tolist()}
        if task.config.method == OURS:
            counts = [round(share * weight[0].size) for share in PRUNED_SHARES]
            found = measure_pruning(task, params, validation, counts)
            content["pruning"] = {
                "criterion": found.criterion,
                "counts": counts,
                "heads": weight[0].size,
                "whole": found.whole.tolist(),
                "orders": {name: values.T.tolist() for name, values in found.orders.items()},
            }
    if task.config.method.startswith(TWO_SIDED):
        (content["two_sided"],) = (
            {name: array.tolist() for name, array in leaves.items()}
            for leaves in variant_parameters(params).values()
        )
    if isinstance(task, LanguageModeling) and lengths:
        far = measure_far_attention(path, lengths)
        content["far"] = {
            str(length): {"heads": one.heads.tolist(), "uniform": one.uniform}
            for length, one in far.items()
        }
    return content


def collect_measures(runs: Mapping[str, Run]) -> dict[str, Any]:
    """Collect the content of perplexity.json and heads.json from the folders of runs.

    Only the models with the best hyperparameters of each run are included.

    Args:
      runs: Dict from method to its finished run.

    Returns:
      Dict from "perplexity" and "heads" to a dict from method to the content of its file. A list
      over all models becomes a list over the seeds of the best hyperparameters.
    """
    collected: dict[str, Any] = {"perplexity": {}, "heads": {}}
    for method, run in runs.items():
        assert run.result is not None
        members = select_members(run.result)
        for name, file in (("perplexity", PERPLEXITY_FILE), ("heads", HEADS_FILE)):
            content = read_json(run.path / file)
            if content is not None:
                count = len(run.result["members"])
                collected[name][method] = _select_members(content, members, count)
    return {name: found for name, found in collected.items() if found}


def _select_members(content: Any, members: Sequence[int], count: int) -> Any:
    """Return the content of a file with only the selected models in each list over models.

    Args:
      content: Nested dicts of lists and numbers. All lists are over models, except for the keys
        "starts" and "counts".
      members: Indices of the selected models.
      count: Number of all models.
    """
    if not isinstance(content, Mapping):
        return content
    selected = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            selected[key] = _select_members(value, members, count)
        elif key in ("starts", "counts") or not isinstance(value, list):
            selected[key] = value
        else:
            assert len(value) == count, f"{key} has {len(value)} entries for {count} models"
            selected[key] = np.asarray(value)[list(members)]
    return selected
