"""Use the best hyperparameters of a finished search in later runs."""

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from etils import epath

from distattn_jax.tasks.configs import ALL_LAYERS
from distattn_jax.tasks.load import load_config
from distattn_jax.train import Config, Run, RunError
from distattn_jax.train.flags import make_flag
from distattn_jax.train.members import apply_setting, list_grid_axes
from distattn_jax.train.options import (
    describe_differences,
    options_read_by,
    options_to_dict,
    result_options,
)
from distattn_jax.train.results import select_members

ConfigType = TypeVar("ConfigType", bound=Config)
# Options that may differ between a search and the runs that use its result.
MAY_DIFFER = frozenset(
    {
        *("name", "seed", "seeds", "epochs", "steps", "min_steps", "search", "guiding.layers"),
        *("data.buckets", "data.share"),
        *("model.implementation", "model.remat", "optimizer.accumulate"),
        "output.evaluate_every",
    }
)
FAMILIES = ("distance_aware", "two_sided")  # methods whose other forms may use their search
PATHS = ("data.parses", "data.vectors", "model.pretrained")  # compared by their last part only


def apply_search(
    config: ConfigType, data: Mapping[str, Any], set_options: Collection[str] = ()
) -> ConfigType:
    """Return the config with the best hyperparameters that a finished search found.

    `config.search` is the folder of the search. If it is the empty string, the config is returned
    unchanged. If the search did not include the method of the run, and this method is another form
    of `distance_aware` or `two_sided`, the best hyperparameters of that method are used.

    Args:
      config: Config of one run, with exactly one entry in `methods`.
      data: Description of the data of this run, as in data.json.
      set_options: Dotted names of options that keep their values in `config`. An error is raised if
        the search tried several values of one of these options.
    """
    if not config.search:
        return config
    run = _find_run(epath.Path(config.search), config.method)
    result = run.result
    if result is None:
        raise RunError(f"--search must be a folder of finished runs; {run.path} is none.")
    check_search(config, data, run)
    setting = dict(result["members"][select_members(result)[0]]["setting"])
    if setting.pop("layer", ALL_LAYERS) != ALL_LAYERS:
        raise RunError(f"--search must be of weights, not of layers; {run.path} guides one layer.")
    axes, values = list_grid_axes(config), options_to_dict(config)
    read = options_read_by(config, config.method)  # A form of a method may read fewer options.
    setting = {axis: value for axis, value in setting.items() if axes[axis] in read}
    kept = [axis for axis in setting if axes[axis] in set_options]
    for axis in kept:
        tried = {member["setting"][axis]: None for member in result["members"]}
        if len(tried) > 1:
            raise RunError(
                f"{make_flag(axes[axis])} must not be given beside --search, where {run.path} "
                f"tried {', '.join(map(str, tried))}; got {values[axes[axis]]}."
            )
    return apply_setting(config, {axis: setting[axis] for axis in setting if axis not in kept})


def check_search(config: Config, data: Mapping[str, Any], run: Run) -> None:
    """Raise `RunError` if a search and a run have different data or different models.

    Args:
      config: Config of the run that uses the result of the search.
      data: Description of the data of this run, as in data.json.
      run: Run of the search.
    """
    before = load_config(run.path)
    different = describe_differences(_comparable(before, config), _comparable(config, config))
    different += run.describe_changed_files(data)
    if different:
        raise RunError(
            f"--search must be of the same task, data and model; {run.path} is not:\n  "
            + "\n  ".join(different)
        )


def _find_run(folder: epath.Path, method: str) -> Run:
    if not (folder / method).exists():
        forms = (name for name in FAMILIES if method.startswith(f"{name}_"))
        method = next(forms, method)
    return Run(folder / method)


def _comparable(config: Any, reader: Config) -> dict[str, Any]:
    """Return the options of `config` that must be equal in a search and in a run that uses it.

    Args:
      config: Config of the search or of the run.
      reader: Config of the run. Options that the method of the run does not use are left out.
    """
    ignored = MAY_DIFFER | set(list_grid_axes(config).values())
    read = options_read_by(reader, reader.method)
    return {
        name: epath.Path(value).name if name in PATHS else value
        for name, value in result_options(config).items()
        if name in read and name not in ignored
    }
