"""The optimiser: optax gives the direction, the member's setting and the schedule the rate.

update = -rate · schedule(step) · direction,   rate = learning_rate, times distance_rate for w and v

The rate is not inside the optax chain, because it may differ between members of one program.
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

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]


def schedule_of(config: OptimizerConfig, steps: int) -> Schedule:
    """The share of the peak learning rate at each step: linear warm-up, then the schedule.

    `linear` and `cosine` end at 0 after `steps`; `inverse_square_root` is √(warm-up / step), and
    √(1 / (step + 1)) where there is no warm-up.
    """
    warm = config.warmup_steps
    left = max(steps - warm, 1)

    def inverse_square_root(step: Any) -> Any:
        return jnp.sqrt(max(warm, 1) / (jnp.maximum(step, 0) + max(warm, 1)))

    after = {
        "constant": optax.constant_schedule(1.0),
        "linear": optax.linear_schedule(1.0, 0.0, left),
        "cosine": optax.cosine_decay_schedule(1.0, left),
        "inverse_square_root": inverse_square_root,
    }[config.schedule]
    if not warm:
        return lambda step: jnp.asarray(after(step), jnp.float32)
    # The first step already learns: it gets 1 / warm-up of the peak, not 0.
    rise = optax.linear_schedule(1 / warm, 1.0, warm - 1) if warm > 1 else after
    joined = optax.join_schedules([rise, after], [warm])
    return lambda step: jnp.asarray(joined(step), jnp.float32)


def direction_of(config: OptimizerConfig) -> optax.GradientTransformation:
    """Everything but the rate: clipping, Adam, decay of the matrices."""
    parts = []
    if config.clip_norm:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    parts.append(optax.scale_by_adam(config.b1, config.b2, config.epsilon))
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_are_matrices))
    return optax.chain(*parts)


def updates_of(direction: Any, setting: Setting, share: Float[Array, ""]) -> Any:
    """What is added to the parameters of one member; `share`: the schedule at this step."""
    rate = setting.learning_rate * share

    def update(path: tuple[Any, ...], leaf: Array) -> Array:
        scale = setting.distance_rate if is_distance(path) else 1.0
        return -(rate * scale).astype(leaf.dtype) * leaf

    return jax.tree_util.tree_map_with_path(update, direction)


def is_distance(path: tuple[Any, ...]) -> bool:
    """Whether a parameter is the w or the v of a distance-aware head."""
    names = path_names(path)
    return "variant" in names and ("weight" in names or "shape" in names)


def _are_matrices(params: Any) -> Any:
    """Where the decay applies; the biases of heads, (N, H), are no matrices."""

    def is_matrix(path: tuple[Any, ...], leaf: Array) -> bool:
        return leaf.ndim > 1 and not path_names(path)[-1].endswith("bias")

    return jax.tree_util.tree_map_with_path(is_matrix, params)
