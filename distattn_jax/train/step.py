"""One step of training and one of evaluation: pure, for one member, then for all of them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array

from distattn_jax.train.losses import compose, weighted_sum
from distattn_jax.train.members import Setting
from distattn_jax.train.optimizer import Schedule, updates_of
from distattn_jax.train.state import Best, Tally, TrainState
from distattn_jax.train.task import Batch, Task


def train_step_of(
    task: Task,
    graph: Any,
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    accumulate: int = 1,
    at_once: int = 0,
    dropout: bool = True,
    places: Any = None,
    constants: Mapping[str, Array] | None = None,
) -> functools.partial[tuple[TrainState, Tally]]:
    """The jitted step of all members: (state, tally, settings, batch) -> (state, tally).

    The first two are donated. The batch is the same for all members. With `accumulate` > 1 its
    parts are computed one after another, and their gradients added: the result is that of the
    whole batch, because every part is divided by the weight of the whole. With `at_once` so many
    members are computed at a time, which must divide all of them. Without `dropout` no random bits
    are drawn, whatever the settings say. `places`: the shardings of state and tally. `constants`:
    those of the task, where they are to lie; they are arguments of the program, which would else
    hold copies of them.
    """

    def part_loss(
        params: Any, part: Batch, key: Array, weight: Array, setting: Setting, fixed: Batch
    ):
        model = nnx.merge(graph, params)
        rngs = nnx.Rngs(dropout=key) if dropout else None
        outputs = task.outputs_to_learn(model, part, dropout_rate=setting.dropout_rate, rngs=rngs)
        composed = compose(task.loss, task.guides_of(setting))(outputs, {**part, **fixed})
        mean = {
            name: weighted_sum(term, part["weight"]) / weight
            for name, term in {"train/loss": composed.total, **composed.terms}.items()
        }
        return mean["train/loss"], mean

    def one(fixed: Batch, state: TrainState, tally: Tally, setting: Setting, batch: Batch):
        key = jax.random.fold_in(state.key, state.step)
        weight = jnp.maximum(batch["weight"].sum(), 1e-6)

        def gradient_of(part: Batch, key: Array) -> tuple[Any, dict[str, Array]]:
            (_, metrics), gradient = jax.value_and_grad(part_loss, has_aux=True)(
                state.params, part, key, weight, setting, fixed
            )
            return gradient, metrics

        share = schedule(state.step)
        gradient, metrics = _summed(gradient_of, batch, key, accumulate)
        direction, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates_of(direction, setting, share))
        metrics |= {
            "train/gradient_norm": optax.tree.norm(gradient),
            "train/learning_rate": setting.learning_rate * share,
        }
        tally = tally.plus(metrics, state.step)
        state = TrainState(state.step + 1, params, opt_state, state.key)
        return state, tally

    def train_step(
        fixed: Batch, state: TrainState, tally: Tally, settings: Setting, batch: Batch
    ) -> tuple[TrainState, Tally]:
        together = jax.vmap(one, in_axes=(None, 0, 0, 0, None))
        if not at_once:
            return together(fixed, state, tally, settings, batch)

        def group(i: Array, held: tuple[TrainState, Tally]) -> tuple[TrainState, Tally]:
            """One group of members does its step in the place where it is held."""
            start = i * at_once
            state, tally, own = jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, at_once), (*held, settings)
            )
            return jax.tree.map(
                lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, start, axis=0),
                held,
                together(fixed, state, tally, own, batch),
            )

        return jax.lax.fori_loop(0, len(state.step) // at_once, group, (state, tally))

    jitted = jax.jit(train_step, donate_argnums=(1, 2), out_shardings=places)
    return functools.partial(jitted, dict(constants or {}))


def count_step_of(
    task: Task, graph: Any, *, at_once: int = 0, place: Any = None
) -> jax.stages.Wrapped:
    """The jitted evaluation of all members: (params, batch) -> counts, each leading with members.

    `at_once`: as in `train_step_of`. `place`: the sharding of the counts.
    """

    def one(params: Any, batch: Batch) -> dict[str, Array]:
        outputs = task.outputs(nnx.merge(graph, params), batch)
        loss = weighted_sum(task.loss(outputs, batch), batch["weight"])
        return {"loss": loss, "weight": batch["weight"].sum(), **task.counts(outputs, batch)}

    def count_step(params: Any, batch: Batch) -> dict[str, Array]:
        if not at_once:
            return jax.vmap(one, in_axes=(0, None))(params, batch)
        return jax.lax.map(lambda own: one(own, batch), params, batch_size=at_once)

    return jax.jit(count_step, out_shardings=place)


update_best = jax.jit(jax.vmap(Best.updated), donate_argnums=0)  # (best, step, score, params)


def _summed(function: Callable[[Batch, Array], Any], batch: Batch, key: Array, parts: int) -> Any:
    """The sum of the function over parts of the batch, computed one after another."""
    if parts == 1:
        return function(batch, key)

    # Part p takes the examples p, p + parts, ...: each device then cuts only what it holds.
    def cut(rows: Array) -> Array:
        return jnp.moveaxis(rows.reshape(-1, parts, *rows.shape[1:]), 1, 0)

    cut_batch = jax.tree.map(cut, batch)
    keys = jax.random.split(key, parts)
    first = jax.tree.map(lambda rows: rows[0], cut_batch)
    zero = jax.tree.map(
        lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(function, first, keys[0])
    )

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*part)), None

    return jax.lax.scan(add, zero, (cut_batch, keys))[0]
