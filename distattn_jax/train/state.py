"""The state of training, one per member, made where it belongs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from distattn_jax import sharding
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Task


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything a step changes; every array leads with the members.

    Attributes:
      step: how many steps were done.
      params: of the model.
      opt_state: of the optimiser.
      key: the randomness of step i is `fold_in(key, i)`.
    """

    step: Int[Array, "*members"]
    params: Any
    opt_state: Any
    key: Key[Array, "*members"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Best:
    """The parameters with the best validation so far, of each member its own.

    Attributes:
      step: after how many steps they were seen.
      score: the criterion there.
      params: of the model.
    """

    step: Int[Array, "*members"]
    score: Float[Array, "*members"]
    params: Any

    def updated(self, step: Int[Array, ""], score: Float[Array, ""], params: Any) -> "Best":
        """With these where they are better (one member)."""
        new = Best(step, score, params)
        return jax.tree.map(lambda now, best: jnp.where(score > self.score, now, best), new, self)


def graph_of(task: Task) -> Any:
    """The model without its parameters: what `nnx.merge` needs to put them back."""
    return nnx.split(_abstract_model(task))[0]


def initial_state(
    task: Task, optimizer: optax.GradientTransformation, keys: Array, settings: Setting, mesh: Mesh
) -> tuple[TrainState, Best]:
    """The members' first states, each array made on the devices where it stays."""
    given = {path: jnp.asarray(array) for path, array in task.initial().items()}

    def one(key: Array, setting: Setting, given: Mapping[tuple[str, ...], Array]):
        params_key, step_key = jax.random.split(key)
        params = nnx.split(task.model(setting, rngs=nnx.Rngs(params=params_key)))[1]
        params = _with(params, given)
        state = TrainState(jnp.int32(0), params, optimizer.init(params), step_key)
        return state, Best(jnp.int32(0), jnp.float32(-jnp.inf), params)

    every = jax.vmap(one, in_axes=(0, 0, None))
    shapes = jax.eval_shape(every, keys, settings, given)
    places = sharding.shardings(shapes, mesh, task.layout, leading=1)
    return jax.jit(every, out_shardings=places)(keys, settings, given)


def _abstract_model(task: Task) -> Any:
    setting = Setting(*(jnp.zeros(()) for _ in Setting._fields))
    return nnx.eval_shape(lambda: task.model(setting, rngs=nnx.Rngs(0)))


def _with(params: Any, given: Mapping[tuple[str, ...], Array]) -> Any:
    """The parameters with those that are given put in."""
    flat = dict(nnx.to_flat_state(params))
    for path, array in given.items():
        if path not in flat or flat[path].shape != array.shape:
            wanted = flat[path].shape if path in flat else "no such parameter"
            raise ValueError(f"initial {'/'.join(path)} is {array.shape}; the model has {wanted}.")
        flat[path] = flat[path].replace(array.astype(flat[path].dtype))
    return nnx.from_flat_state(flat)
