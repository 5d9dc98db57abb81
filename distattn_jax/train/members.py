"""Members of a run: models trained side by side, one for each seed and each setting of the grid.

All members run in one program: their parameters and settings are arrays with a leading axis over
members, and one training step is vmapped over it.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.train.config import Config
from distattn_jax.train.options import iterate_options, replace_options

ConfigType = TypeVar("ConfigType", bound=Config)
Setting = dict[str, Float[Array, "*members"]]  # one point of the grid: axis name -> value


class Member(NamedTuple):
    """Seed and hyperparameter setting of one model of a run."""

    seed: int
    setting: dict[str, float | int]


def list_grid_axes(config: Config) -> dict[str, str]:
    """Return the axes of the hyperparameter grid: short name -> dotted option name."""
    axes: dict[str, str] = {}
    for name, field, _ in iterate_options(config):
        if field.metadata["grid"]:
            axis = name.rpartition(".")[2]
            assert axis not in axes, f"{name} and {axes[axis]} would be one axis"
            axes[axis] = name
    return axes


def list_members(config: Config) -> list[Member]:
    """Return the seed and setting of every model of a run; the seed changes fastest."""
    values = {name: value for name, _, value in iterate_options(config)}
    axes = list_grid_axes(config)
    seeds = range(config.seed, config.seed + config.seeds)
    return [
        Member(seed, dict(zip(axes, point, strict=True)))
        for point in itertools.product(*(values[name] for name in axes.values()))
        for seed in seeds
    ]


def apply_setting(config: ConfigType, setting: Mapping[str, float]) -> ConfigType:
    """Return the config with the values of one setting; other grid axes stay unchanged."""
    axes = list_grid_axes(config)
    return replace_options(config, {axes[axis]: (value,) for axis, value in setting.items()})


def stack_members(members: list[Member]) -> tuple[Any, Setting]:
    """Return the random keys and the settings of the models, as arrays over models."""
    keys = jax.vmap(jax.random.key)(jnp.asarray([member.seed for member in members], jnp.uint32))
    settings = {
        axis: jnp.asarray([member.setting[axis] for member in members], jnp.float32)
        for axis in members[0].setting
    }
    return keys, settings


def placeholder_setting(config: Config) -> Setting:
    """Return a setting of zeros, for tracing functions whose result does not depend on it."""
    return {axis: jnp.zeros(()) for axis in list_grid_axes(config)}


def group_size(count: int, limit: int) -> int:
    """Return the number of models to compute at a time, in groups of equal size; 0 for all models.

    Args:
      count: Number of models.
      limit: Largest allowed group; 0 for no limit.
    """
    if not 0 < limit < count:
        return 0
    return max(size for size in range(1, limit + 1) if count % size == 0)


def varied_axes(members: list[Member]) -> tuple[str, ...]:
    """Return the axes of the grid that differ between models."""
    return tuple(
        axis for axis in members[0].setting if len({member.setting[axis] for member in members}) > 1
    )
