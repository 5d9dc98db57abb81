"""Training state: arrays with a leading axis over models, created directly on their devices."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key

from distattn_jax import sharding
from distattn_jax.train.members import (
    Setting,
    list_members,
    map_members,
    placeholder_setting,
    stack_members,
)
from distattn_jax.train.optimizer import make_optimizer
from distattn_jax.train.task import Task
from distattn_jax.tree import frozen_tree

NEVER = jnp.iinfo(jnp.int32).max
InitialParameters = Mapping[tuple[str | int, ...], Any]  # parameter path -> array


@frozen_tree
class TrainState:
    """Arrays that a training step reads and updates.

    Attributes:
      step: Number of steps done.
      params: Parameters as nested dicts, which JAX flattens faster than states of Flax.
      opt_state: State of the optimizer.
      key: Random key; step i uses `fold_in(key, i)`.
    """

    step: Int[Array, "*members"]
    params: Any
    opt_state: Any
    key: Key[Array, "*members"]


@frozen_tree
class BestParameters:
    """Parameters with the best validation score so far, one set for each model.

    Attributes:
      step: Number of training steps after which the parameters were evaluated.
      score: Validation score; higher is better.
      params: Parameters of the model.
    """

    step: Int[Array, "*members"]
    score: Float[Array, "*members"]
    params: Any

    def update(
        self, step: Int[Array, ""], score: Float[Array, ""], params: Any
    ) -> "BestParameters":
        """Return the best parameters of one model after one more validation.

        The new parameters replace the best parameters if their score is equal or higher.
        """
        new = BestParameters(step, score, params)
        return jax.tree.map(lambda now, best: jnp.where(score >= self.score, now, best), new, self)


@frozen_tree
class MetricSums:
    """Sums of the training metrics since the last logged line, kept on the devices.

    Attributes:
      sums: Sum of each metric over the steps.
      steps: Number of steps summed.
      first_bad_step: Index of the first step whose loss or gradient is not finite, or `NEVER` if
        all losses and gradients are finite.
    """

    sums: dict[str, Float[Array, "*members"]]
    steps: Int[Array, "*members"]
    first_bad_step: Int[Array, "*members"]

    def add(self, metrics: dict[str, Float[Array, ""]], step: Int[Array, ""]) -> "MetricSums":
        """Return the sums of one model with the metrics of one more step added.

        Args:
          metrics: Dict from metric name to the value at this step.
          step: Index of the step.
        """
        finite = jnp.isfinite(metrics["train/loss"] + metrics["train/gradient_norm"])
        sums = {name: self.sums[name] + value for name, value in metrics.items()}
        bad = jnp.minimum(self.first_bad_step, jnp.where(finite, NEVER, step))
        return MetricSums(sums, self.steps + 1, bad)


@frozen_tree
class Training:
    """Content of a checkpoint. Every array has a leading axis over the models of the run."""

    state: TrainState
    best: BestParameters
    sums: MetricSums


def empty_sums(task: Task) -> MetricSums:
    """Return the metric sums of one model before its first step."""
    losses = task.weighted_losses(placeholder_setting(task.config))
    terms = ["loss/task", *(f"loss/{name}" for name in losses)]
    names = ["train/loss", "train/gradient_norm", "train/learning_rate", *terms]
    return MetricSums({name: jnp.float32(0) for name in names}, jnp.int32(0), jnp.int32(NEVER))


@functools.lru_cache(maxsize=8)  # Every program of a run needs it, and a large model takes seconds.
def abstract_model(task: Task) -> tuple[Any, Any]:
    """Return the Flax graph definition of the task's model, and the shapes of its parameters."""
    setting = placeholder_setting(task.config)
    model = nnx.eval_shape(lambda: task.make_model(setting, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)


def model_graph(task: Task) -> Any:
    """Return the Flax graph definition of the task's model, for `nnx.merge(graph, params)`."""
    return abstract_model(task)[0]


def make_initial_state(
    task: Task, given: InitialParameters, abstract: Training
) -> functools.partial[Training]:
    """Return a jitted function of no arguments that computes the initial state of all models.

    The initial state is the state before the first step, sharded over the mesh.

    Args:
      task: Task of the run, with its config.
      given: Dict from parameter path to initial value, for parameters that do not start from random
        values. All models get the same values.
      abstract: Result of `abstract_state`. It defines the shardings.
    """
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    create = jax.jit(_state_creator(task), out_shardings=shardings)
    return functools.partial(create, *stack_members(list_members(task.config)), dict(given))


def abstract_state(task: Task, mesh: Mesh, given: InitialParameters | None = None) -> Training:
    """Return the shapes, dtypes and shardings of the initial state, without computing it."""
    shapes = jax.eval_shape(
        _state_creator(task), *stack_members(list_members(task.config)), dict(given or {})
    )
    shardings = sharding.shardings(shapes, mesh, task.layout, leading=1)
    return jax.tree.map(lambda shape, place: shape.update(sharding=place), shapes, shardings)


@functools.lru_cache(maxsize=8)  # A function that is made once is traced once.
def _state_creator(task: Task) -> Callable[..., Training]:
    """Return a function of (keys, settings, given) that creates the state of all models."""
    optimizer: optax.GradientTransformation = make_optimizer(task.config.optimizer)

    def create_member(key: Array, setting: Setting, given: InitialParameters) -> Training:
        params_key, step_key = jax.random.split(key)
        model = task.make_model(setting, rngs=nnx.Rngs(params=params_key))
        params = _replace_parameters(nnx.to_pure_dict(nnx.split(model)[1]), given)
        state = TrainState(jnp.int32(0), params, optimizer.init(params), step_key)
        best = BestParameters(jnp.int32(0), jnp.float32(-jnp.inf), params)
        return Training(state, best, empty_sums(task))

    return map_members(create_member, in_axes=(0, 0, None))


def _replace_parameters(params: Any, given: InitialParameters) -> Any:
    """Return a copy of `params` in which the parameters in `given` have the given values."""
    flat = nnx.traversals.flatten_mapping(params)
    for path, array in given.items():
        if path not in flat or flat[path].shape != array.shape:
            expected = flat[path].shape if path in flat else "no such parameter"
            name = "/".join(map(str, path))
            raise ValueError(f"initial {name} is {array.shape}; the model has {expected}.")
        flat[path] = jnp.asarray(array, flat[path].dtype)
    return nnx.traversals.unflatten_mapping(flat)
