"""Split runs of the method `switched_positions` into the rows of Tables 1 to 3.

Such a run trains several kinds of positions side by side. The setting of a model defines its kind
of positions. `key_distance` and `value_distance` are the distances at which relative positions are
clipped for keys and for values: -1 means no position vectors, and a `value_distance` of -2 means
the distance of the keys. `sinusoids` is 1 if sinusoidal position encodings are added.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from distattn_jax.models.methods import SAME_AS_KEYS
from distattn_jax.train.results import group_by_setting
from experiments.papers.shaw.settings import DATA_SETS, DISTANCES, RELATIVE, SIZES, experiment_name
from experiments.papers.stored_results import SEARCHED

SWITCHED = "switched_positions"
BASE_DISTANCE = 16  # k of the base model in the paper


class Kind(NamedTuple):
    """Kind of positions of a model.

    Attributes:
      method: Name of the method with this kind of positions, e.g. "relative_position".
      distance: Distance k at which relative positions are clipped. -1 means no position vectors.
    """

    method: str
    distance: int


def find_kind(setting: Mapping[str, float]) -> Kind | None:
    """Return the kind of positions of a model with this setting of hyperparameters.

    Return None if no table of the paper contains this kind.
    """
    keys, values = int(setting["key_distance"]), int(setting["value_distance"])
    values = keys if values == SAME_AS_KEYS else values
    used = (keys >= 0, values >= 0, bool(setting["sinusoids"]))
    methods = {
        (False, False, True): "vanilla",
        (False, False, False): "no_positions",
        (True, False, False): "relative_position_keys",
        (False, True, False): "relative_position_values",
        (True, True, False): RELATIVE,
        (True, True, True): "relative_and_absolute",
    }
    if used not in methods or (used[0] and used[1] and keys != values):
        return None
    return Kind(methods[used], max(keys, values))


def split_run(run: Mapping[str, Any]) -> dict[Kind, dict[str, Any]]:
    """Return a dict from each kind of positions to a run that has only the models of this kind."""
    result = run["result"]
    runs = {}
    for members in group_by_setting(result):
        kind = find_kind(result["members"][members[0]]["setting"])
        if kind is not None:
            chosen = [result["members"][i] for i in members]
            own = {**result, "method": kind.method, "members": chosen}
            runs[kind] = {**run, "result": own}
    return runs


def add_switched_runs(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the stored results, with runs of `switched_positions` split into parts.

    Each part is a run with the models of one kind of positions. k is the clipping distance of
    relative positions. These parts are added:

    - Relative positions, to the experiment of Tables 1 and 3: the part with k = 16. If the run has
      a single k and is not an experiment of Table 2, the part with this k.
    - Relative positions, to the experiments of Table 2: the part with each k of Table 2, if the
      model is small, and if the run has several k or is itself an experiment of Table 2.
    - Other kinds of positions, to the experiment of Tables 1 and 3: all parts.

    A part never replaces another run of the experiment. Hyperparameter searches are not split.

    Args:
      stored: Dict from the name of each experiment to its stored results.
    """
    added = dict(stored)
    for data, size in itertools.product(DATA_SETS, SIZES):
        for name, content in stored.items():
            is_part = name.startswith(experiment_name(data, size)) and not name.endswith(SEARCHED)
            if is_part and SWITCHED in content["runs"]:
                runs = split_run(content["runs"][SWITCHED])
                for target, kind in _find_targets(name, runs, data, size):
                    before = added.get(target) or {"data": content["data"], "runs": {}}
                    parts = {kind.method: runs[kind], **before["runs"]}
                    added[target] = {"experiment": target, **before, "runs": parts}
    return added


def _find_targets(
    name: str, runs: Mapping[Kind, Any], data: str, size: str
) -> Iterator[tuple[str, Kind]]:
    """Yield (name of an experiment, kind of positions) for every part that is added.

    The part with this kind of positions is added to this experiment.

    Args:
      name: Name of the experiment that contains the run of `switched_positions`.
      runs: Dict from the kind of positions to the part of the run with this kind.
      data: Name of the data set.
      size: Size of the model.
    """
    distances = [kind.distance for kind in runs if kind.method == RELATIVE]
    for kind in runs:
        own = experiment_name(data, size, kind.distance)
        is_relative = kind.method == RELATIVE
        is_main = (len(distances) == 1 and name != own) or kind.distance == BASE_DISTANCE
        if not is_relative or is_main:
            yield experiment_name(data, size), kind
        is_sweep = len(distances) > 1 or name == own
        if is_relative and is_sweep and size == SIZES[0] and kind.distance in DISTANCES:
            yield own, kind
