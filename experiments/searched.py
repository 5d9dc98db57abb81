"""What a search found, for the runs that come after it: the best setting of each method."""

from collections.abc import Collection, Mapping
from typing import Any

from etils import epath

from distattn_jax.models import METHODS
from distattn_jax.train import Config, RunError, load_config
from distattn_jax.train.config import ANY_LAYER, unread
from distattn_jax.train.flags import differences, to_dict
from distattn_jax.train.members import AXES, with_setting
from distattn_jax.train.run import MAY_CHANGE, Run
from distattn_jax.train.tasks import kind_of
from experiments.papers.results import select_members

SEARCHED = "_search"  # ends the name of an experiment that searches
FLAGS = {axis: f"{part}.{axis}" for axis, part in AXES.items()}
# What a search may have otherwise than the runs that take what it found.
MAY_DIFFER = (
    *MAY_CHANGE,
    *FLAGS.values(),
    *("name", "seed", "epochs", "search", "guiding.layers"),
    *("data.buckets", "data.share"),
    *("model.implementation", "model.remat", "optimizer.accumulate"),
)
PLACES = ("data.parses", "data.vectors", "model.pretrained")  # only their last part is compared


def found_by_search(
    config: Config, about: Mapping[str, Any], given: Collection[str] = ()
) -> Config:
    """With the setting of its method that did best in the search, where one is named.

    A form of distance-aware attention that was not searched itself takes what was found for the
    paper's own form.

    Args:
      config: of one method.
      about: what is known of its data.
      given: names of the fields that stay as they are; an error if the search tried several values.
    """
    if not config.search:
        return config
    method, folder = config.methods[0], epath.Path(config.search)
    known = METHODS.get(method)
    if not (folder / method).exists() and known is not None and known.has_distance_weights:
        method = "distance_aware"
    run = Run(folder / method)
    result = run.result
    if result is None:
        raise RunError(f"search must be a folder of finished runs; {run.path} is none.")
    check_search(config, about, run)
    found = dict(result["members"][select_members(result)[0]]["setting"])
    if found.pop("layer", ANY_LAYER) != ANY_LAYER:
        raise RunError(f"search must be of weights, not of layers; {run.path} guides one layer.")
    kept = [axis for axis in found if FLAGS[axis] in given]
    for axis in kept:
        tried = {member["setting"][axis]: None for member in result["members"]}
        if len(tried) > 1:
            raise RunError(
                f"{FLAGS[axis]} must not be given beside search, where {run.path} tried "
                f"{', '.join(map(str, tried))}; got {getattr(getattr(config, AXES[axis]), axis)}."
            )
    return with_setting(config, {axis: found[axis] for axis in found if axis not in kept})


def check_search(config: Config, about: Mapping[str, Any], run: Run) -> None:
    """Raises where a run of a search was of other data, or of another model; see `MAY_DIFFER`.

    Tasks on the same data set are as one: ratings take what was found for classes.
    """
    before, now = load_config(run.path), config
    same_data_set = kind_of(before.task).builder is kind_of(now.task).builder
    different = differences(
        _comparable(before),
        _comparable(now),
        ignoring=(*MAY_DIFFER, *unread(now.methods[0]), *(["task"] if same_data_set else [])),
    )
    different += run.other_files(about)
    if different:
        raise RunError(
            f"search must be of the same task, data and model; {run.path} is not:\n  "
            + "\n  ".join(different)
        )


def _comparable(config: Config) -> dict[str, Any]:
    fields = to_dict(config)
    return {**fields, **{name: epath.Path(fields[name]).name for name in PLACES}}
