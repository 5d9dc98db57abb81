"""Optimizer: Optax computes the direction of an update, and this module scales the direction.

    update = -learning_rate · multiplier(path) · schedule(step) · direction

The learning rate stays outside the Optax chain, because models that are trained in the same program
may have different learning rates.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from distattn_jax.sharding import path_names
from distattn_jax.train.config import OptimizerConfig
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Task

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]


def make_schedule(config: OptimizerConfig, steps: int) -> Schedule:
    """Return a function from the step to the learning rate, as a fraction of its peak.

    The fraction rises to 1 during warm-up. Afterwards, it follows the schedule of the config:

    - constant: 1
    - linear, cosine: decay to 0 at step `steps`
    - inverse_square_root: √(warmup / step); without warm-up √(1 / (step + 1))
    """
    warmup = count_warmup_steps(config, steps)
    remaining = max(steps - warmup, 1)

    def inverse_square_root(step: Any) -> Any:
        return jnp.sqrt(max(warmup, 1) / (jnp.maximum(step, 0) + max(warmup, 1)))

    after = {
        "constant": optax.constant_schedule(1.0),
        "linear": optax.linear_schedule(1.0, 0.0, remaining),
        "cosine": optax.cosine_decay_schedule(1.0, remaining),
        "inverse_square_root": inverse_square_root,
    }[config.schedule]
    if not warmup:
        return lambda step: jnp.asarray(after(step), jnp.float32)
    # The first step uses 1 / warmup of the peak: a learning rate of 0 would waste it.
    rise = optax.linear_schedule(1 / warmup, 1.0, warmup - 1) if warmup > 1 else after
    joined = optax.join_schedules([rise, after], [warmup])
    return lambda step: jnp.asarray(joined(step), jnp.float32)


def count_warmup_steps(config: OptimizerConfig, steps: int) -> int:
    """Return the number of warm-up steps in a run of `steps` steps."""
    if not config.warmup_share:
        return config.warmup_steps
    return min(config.warmup_steps, round(config.warmup_share * steps))


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Return the Optax chain of clipping, Adam and weight decay, without the learning rate."""
    parts = []
    if config.clip_norm:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    parts.append(optax.scale_by_adam(config.b1, config.b2, config.epsilon))
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_mark_matrices))
    return optax.chain(*parts)


def scale_by_learning_rate(
    direction: Any, task: Task, setting: Setting, schedule_value: Float[Array, ""]
) -> Any:
    """Multiply the output of the Optax chain by minus the learning rate, for one model.

    Args:
      direction: Output of the Optax chain, shaped like the parameters.
      task: Task that supplies the learning-rate multiplier of each parameter.
      setting: Hyperparameters of the model, which include its learning rate.
      schedule_value: Fraction of the peak learning rate at this step.
    """
    rate = setting["learning_rate"] * schedule_value

    def update(path: tuple[Any, ...], leaf: Array) -> Array:
        multiplier = task.learning_rate_multiplier(path_names(path), setting)
        return -(rate * multiplier).astype(leaf.dtype) * leaf

    return jax.tree_util.tree_map_with_path(update, direction)


def _mark_matrices(params: Any) -> Any:
    """Return a pytree of bools, True for every parameter to which weight decay applies.

    Weight decay applies to arrays with at least two axes, except biases. The biases of attention
    heads have two axes, (N, H), and are excluded too.
    """

    def is_matrix(path: tuple[Any, ...], leaf: Array) -> bool:
        return leaf.ndim > 1 and not path_names(path)[-1].endswith("bias")

    return jax.tree_util.tree_map_with_path(is_matrix, params)
