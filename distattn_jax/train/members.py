"""Members of a run: models trained side by side, one for each seed and each setting of the grid.

A setting is one combination of hyperparameter values. All members run in one program: their
parameters and settings are arrays with a leading axis over members, and `map_members` maps the
training step over this axis.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention import xla
from distattn_jax.train.config import Config
from distattn_jax.train.options import iterate_options, replace_options

ConfigType = TypeVar("ConfigType", bound=Config)
Setting = dict[str, Float[Array, "*members"]]  # one point of the grid: axis name -> value


class Member(NamedTuple):
    """Seed and hyperparameters of one of the models that a run trains side by side."""

    seed: int
    setting: dict[str, float | int]


def list_grid_axes(config: Config) -> dict[str, str]:
    """Return the axes of the hyperparameter grid: a dict from short to dotted option name.

    For example, the entry `learning_rate` has the value `optimizer.learning_rate`.
    """
    axes: dict[str, str] = {}
    for name, field, _ in iterate_options(config):
        if field.metadata["grid"]:
            axis = name.rpartition(".")[2]
            assert axis not in axes, f"{name} and {axes[axis]} would be one axis"
            axes[axis] = name
    return axes


def list_members(config: Config) -> list[Member]:
    """Return the seed and the hyperparameters of every model that a run trains side by side.

    Models with equal hyperparameters and different seeds are adjacent.
    """
    values = {name: value for name, _, value in iterate_options(config)}
    axes = list_grid_axes(config)
    seeds = range(config.seed, config.seed + config.seeds)
    return [
        Member(seed, dict(zip(axes, point, strict=True)))
        for point in itertools.product(*(values[name] for name in axes.values()))
        for seed in seeds
    ]


def apply_setting(config: ConfigType, setting: Mapping[str, float]) -> ConfigType:
    """Return a copy of the config with the hyperparameter values of `setting`.

    Args:
      config: Config to copy.
      setting: Dict from short option name, e.g. `learning_rate`, to value. Other options stay
        unchanged.
    """
    axes = list_grid_axes(config)
    return replace_options(config, {axes[axis]: (value,) for axis, value in setting.items()})


def stack_members(members: list[Member]) -> tuple[Any, Setting]:
    """Return the random keys and the hyperparameters of the models as stacked arrays.

    The leading axis of each array is the model.
    """
    keys = jax.vmap(jax.random.key)(jnp.asarray([member.seed for member in members], jnp.uint32))
    settings = {
        axis: jnp.asarray([member.setting[axis] for member in members], jnp.float32)
        for axis in members[0].setting
    }
    return keys, settings


def placeholder_setting(config: Config) -> Setting:
    """Return a dict from each hyperparameter of the grid to 0.

    Use this setting if only the structure of a result is needed, e.g. the names of the losses.
    """
    return {axis: jnp.zeros(()) for axis in list_grid_axes(config)}


def group_size(count: int, limit: int) -> int:
    """Return how many models to compute at a time, so that all groups have the same size.

    The result is the largest divisor of `count` that is at most `limit`. If all models can be
    computed at once, the result is 0.

    Args:
      count: Number of models.
      limit: Largest allowed size of a group; 0 means no limit.
    """
    if not 0 < limit < count:
        return 0
    return max(size for size in range(1, limit + 1) if count % size == 0)


def varied_axes(members: list[Member]) -> tuple[str, ...]:
    """Return the names of the hyperparameters that have different values in different models."""
    return tuple(
        axis for axis in members[0].setting if len({member.setting[axis] for member in members}) > 1
    )


def map_members(function: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Callable:
    """Return `jax.vmap` of a function of one model, but call the function itself for one model.

    A program without the axis of models compiles faster, and its steps take less time on a CPU.
    On a GPU, all models share `xla.LARGEST_GPU_MAP`.

    Args:
      function: Function of arrays of one model.
      in_axes: 0 for arguments whose arrays have the axis of models, None for all others.
    """

    def mapped(*arguments: Any) -> Any:
        own = [arguments[i] for i, axis in enumerate(in_axes) if axis == 0]
        count = jax.tree.leaves(own)[0].shape[0]
        if count != 1:
            with xla.calls_at_once(count):
                return jax.vmap(function, in_axes)(*arguments)
        alone = (
            x if axis is None else jax.tree.map(lambda leaf: leaf[0], x)
            for x, axis in zip(arguments, in_axes, strict=True)
        )
        return jax.tree.map(lambda leaf: leaf[None], function(*alone))

    return mapped
