"""Seeds and settings as one batch axis: the members of a run are models trained side by side."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.train.config import Config


class Setting(NamedTuple):
    """The numbers that may differ between members without another program: arrays over members."""

    learning_rate: Float[Array, "*members"]
    distance_rate: Float[Array, "*members"]
    dropout_rate: Float[Array, "*members"]
    initial_weight: Float[Array, "*members"]
    initial_shape: Float[Array, "*members"]
    alpha: Float[Array, "*members"]
    beta: Float[Array, "*members"]
    gamma: Float[Array, "*members"]
    layer: Float[Array, "*members"]


class Member(NamedTuple):
    """One model of a run."""

    seed: int
    setting: dict[str, float | int]


AXES = {
    "learning_rate": "optimizer",
    "distance_rate": "optimizer",
    "dropout_rate": "model",
    "initial_weight": "model",
    "initial_shape": "model",
    "alpha": "guiding",
    "beta": "guiding",
    "gamma": "guiding",
    "layer": "guiding",
}  # which part of the configuration holds the values of each


def members_of(config: Config) -> list[Member]:
    """All settings of the grid, each with all seeds: settings slow, seeds fast."""
    values = [getattr(getattr(config, part), name) for name, part in AXES.items()]
    seeds = range(config.seed, config.seed + config.seeds)
    return [
        Member(seed, dict(zip(AXES, point, strict=True)))
        for point in itertools.product(*values)
        for seed in seeds
    ]


def with_setting(config: Config, setting: Mapping[str, float]) -> Config:
    """The configuration with one setting in the place of its grid.

    What the setting does not name, as one of an earlier version, stays as it is.
    """
    for name, value in setting.items():
        changed = dataclasses.replace(getattr(config, AXES[name]), **{name: (value,)})
        config = dataclasses.replace(config, **{AXES[name]: changed})
    return config


def stacked(members: list[Member]) -> tuple[Any, Setting]:
    """The members' random keys and settings, as arrays over members."""
    keys = jax.vmap(jax.random.key)(jnp.asarray([member.seed for member in members], jnp.uint32))
    columns = {
        name: jnp.asarray([member.setting[name] for member in members], jnp.float32)
        for name in Setting._fields
    }
    return keys, Setting(**columns)


def group_size(count: int, most: int) -> int:
    """How many of `count` members are computed at a time, in equal groups; 0: all of them.

    `most`: no group is larger; 0: no limit.
    """
    if not 0 < most < count:
        return 0
    return max(size for size in range(1, most + 1) if count % size == 0)


def varied(members: list[Member]) -> tuple[str, ...]:
    """The names of the numbers that differ between members."""
    return tuple(
        name for name in Setting._fields if len({member.setting[name] for member in members}) > 1
    )
