"""The state of training: one per member, each array made on the devices where it stays."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from distattn_jax import sharding
from distattn_jax.train.members import Member, Setting, stacked
from distattn_jax.train.task import Task
from distattn_jax.tree import frozen_tree

NEVER = jnp.iinfo(jnp.int32).max


@frozen_tree
class TrainState:
    """All that a step needs and changes.

    Attributes:
      step: how many steps were done.
      params: of the model, as plain dictionaries (a call flattens them faster than Flax's own).
      opt_state: of the optimiser.
      key: the randomness of step i is `fold_in(key, i)`.
    """

    step: Int[Array, "*members"]
    params: Any
    opt_state: Any
    key: Key[Array, "*members"]


@frozen_tree
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
        """With these if they are better, or as good and later (one member)."""
        new = Best(step, score, params)
        return jax.tree.map(lambda now, best: jnp.where(score >= self.score, now, best), new, self)


@frozen_tree
class Tally:
    """What the steps since the last line of metrics came to; on the devices until it is read.

    Attributes:
      sums: of each metric, over the steps.
      steps: how many they were.
      bad: the first of them with a loss or a gradient that is not finite; NEVER: none.
    """

    sums: dict[str, Float[Array, "*members"]]
    steps: Int[Array, "*members"]
    bad: Int[Array, "*members"]

    def plus(self, metrics: dict[str, Float[Array, ""]], step: Int[Array, ""]) -> "Tally":
        """With one more step (one member)."""
        finite = jnp.isfinite(metrics["train/loss"] + metrics["train/gradient_norm"])
        sums = {name: self.sums[name] + value for name, value in metrics.items()}
        bad = jnp.minimum(self.bad, jnp.where(finite, NEVER, step))
        return Tally(sums, self.steps + 1, bad)


@frozen_tree
class Training:
    """All that a checkpoint holds; every array leads with the members."""

    state: TrainState
    best: Best
    tally: Tally


def empty_tally(task: Task) -> Tally:
    """Before the first step (one member)."""
    terms = ["loss/task", *(f"loss/{name}" for name in task.guides)]
    names = ["train/loss", "train/gradient_norm", "train/learning_rate", *terms]
    return Tally({name: jnp.float32(0) for name in names}, jnp.int32(0), jnp.int32(NEVER))


def graph_of(task: Task) -> Any:
    """The model without its parameters: what `nnx.merge` needs to put them back."""
    setting = Setting(*(jnp.zeros(()) for _ in Setting._fields))
    return nnx.split(nnx.eval_shape(lambda: task.model(setting, rngs=nnx.Rngs(0))))[0]


class Birth:
    """How the members' first states are made, and what they look like.

    Args:
      task: gives the model.
      optimizer: gives its first state.
      members: of the run.
      mesh: the devices.

    Attributes:
      like: the shapes, dtypes and shardings of a `Training`.
    """

    def __init__(
        self, task: Task, optimizer: optax.GradientTransformation, members: list[Member], mesh: Mesh
    ):
        def one(
            key: Array, setting: Setting, given: Mapping[tuple[str | int, ...], Array]
        ) -> Training:
            params_key, step_key = jax.random.split(key)
            model = task.model(setting, rngs=nnx.Rngs(params=params_key))
            params = _with(nnx.to_pure_dict(nnx.split(model)[1]), given)
            state = TrainState(jnp.int32(0), params, optimizer.init(params), step_key)
            best = Best(jnp.int32(0), jnp.float32(-jnp.inf), params)
            return Training(state, best, empty_tally(task))

        self._every = jax.vmap(one, in_axes=(0, 0, None))
        self._arguments = (*stacked(members), task.initial())
        shapes = jax.eval_shape(self._every, *self._arguments)
        self._places = sharding.shardings(shapes, mesh, task.layout, leading=1)
        self.like = jax.tree.map(
            lambda shape, place: shape.update(sharding=place), shapes, self._places
        )

    def __call__(self) -> Training:
        return jax.jit(self._every, out_shardings=self._places)(*self._arguments)


def _with(params: Any, given: Mapping[tuple[str | int, ...], Array]) -> Any:
    """The parameters with those that are given put in."""
    flat = nnx.traversals.flatten_mapping(params)
    for path, array in given.items():
        if path not in flat or flat[path].shape != array.shape:
            wanted = flat[path].shape if path in flat else "no such parameter"
            name = "/".join(map(str, path))
            raise ValueError(f"initial {name} is {array.shape}; the model has {wanted}.")
        flat[path] = jnp.asarray(array, flat[path].dtype)
    return nnx.traversals.unflatten_mapping(flat)
