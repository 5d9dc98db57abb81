"""Training step and evaluation step: pure functions of one model, mapped over all models."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Int

from distattn_jax.attention import xla
from distattn_jax.train.losses import compose, weighted_sum
from distattn_jax.train.members import Setting, map_members
from distattn_jax.train.optimizer import Schedule, make_optimizer, scale_by_learning_rate
from distattn_jax.train.state import BestParameters, MetricSums, TrainState, model_graph
from distattn_jax.train.task import Batch, Task

Counts = dict[str, Array]
TrainStep = Callable[[Batch, TrainState, MetricSums, Setting, Batch], tuple[TrainState, MetricSums]]

# Operations that XLA puts into CUDA graphs. With WHILE, the GPU runs a whole loop by itself.
# Without it, the host waits for the condition of the loop at every iteration.
GPU_LOOP_OPTIONS = {
    "xla_gpu_enable_command_buffer": (
        "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,COLLECTIVES,DYNAMIC_SLICE_FUSION,CONDITIONAL,WHILE"
    )
}


def make_train_steps(
    task: Task,
    schedule: Schedule,
    *,
    group: int = 0,
    out_shardings: Any = None,
    constants: Mapping[str, Array] | None = None,
) -> functools.partial[tuple[TrainState, MetricSums]]:
    """Return the jitted program that trains all models on consecutive batches.

    The program is a function of (state, sums, settings, stack, begin, end) that returns the new
    (state, sums). It takes one step for each of the batches `begin` to `end` - 1 of the stack, in
    this order. The argument `state` is donated. All models use the same batches.

    `begin` and `end` are traced. One compiled program therefore serves every number of steps, and
    the results do not depend on the number of steps in a call.

    Args:
      task: Model and loss, with the config of the run.
      schedule: Fraction of the peak learning rate at each step.
      group: Number of models computed at a time, a divisor of the number of models. 0 computes all
        models at once.
      out_shardings: Shardings of state and sums.
      constants: Constant arrays of the task, placed on the devices. The compiled program receives
        these arrays as arguments and contains no copy of them.
    """
    train_step = make_train_step(task, schedule, group=group)

    def train_steps(
        fixed: Batch,
        state: TrainState,
        sums: MetricSums,
        settings: Setting,
        stack: Batch,
        begin: Int[Array, ""],
        end: Int[Array, ""],
    ) -> tuple[TrainState, MetricSums]:
        def step_on(i: Array, held: tuple[TrainState, MetricSums]) -> Any:
            return train_step(fixed, *held, settings, _get_batch(stack, i))

        return jax.lax.fori_loop(begin, end, step_on, (state, sums))

    jitted = jax.jit(
        train_steps,
        donate_argnums=1,
        out_shardings=out_shardings,
        compiler_options=GPU_LOOP_OPTIONS if jax.default_backend() == "gpu" else None,
    )
    return functools.partial(jitted, dict(constants or {}))


def make_train_step(task: Task, schedule: Schedule, *, group: int = 0) -> TrainStep:
    """Return the training step of all models on one batch.

    The step is a function of (constants, state, sums, settings, batch) that returns the new (state,
    sums).

    If `optimizer.accumulate` is above 1, a batch is split into parts that are computed one after
    another. The loss of each part is divided by the total weight of the whole batch, so that the
    sum of the gradients of all parts is the gradient of the whole batch.

    Args:
      task: Model and loss, with the config of the run.
      schedule: Fraction of the peak learning rate at each step.
      group: Number of models computed at a time, a divisor of the number of models. 0 computes all
        models at once.
    """
    step_members = map_members(_make_member_step(task, schedule), in_axes=(None, 0, 0, 0, None))

    def train_step(
        fixed: Batch, state: TrainState, sums: MetricSums, settings: Setting, batch: Batch
    ) -> tuple[TrainState, MetricSums]:
        if not group:
            return step_members(fixed, state, sums, settings, batch)

        def step_group(i: Array, held: tuple[TrainState, MetricSums]) -> Any:
            """Update state and metric sums of the models in group i only."""
            start = i * group
            state, sums, own_settings = jax.tree.map(
                lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, group), (*held, settings)
            )
            return jax.tree.map(
                lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, start, axis=0),
                held,
                step_members(fixed, state, sums, own_settings, batch),
            )

        return jax.lax.fori_loop(0, len(state.step) // group, step_group, (state, sums))

    return train_step


def _make_member_step(task: Task, schedule: Schedule) -> Callable[..., Any]:
    """Return the step (constants, state, sums, setting, batch) -> (state, sums) of one model."""
    optimizer, mean_losses = make_optimizer(task.config.optimizer), _make_mean_losses(task)

    def step_member(
        fixed: Batch, state: TrainState, sums: MetricSums, setting: Setting, batch: Batch
    ) -> tuple[TrainState, MetricSums]:
        key = jax.random.fold_in(state.key, state.step)
        batch = {**batch, "weight": task.example_weights(batch)}
        weight = jnp.maximum(batch["weight"].sum(), 1e-6)

        def gradient_of(part: Batch, key: Array) -> tuple[Any, dict[str, Array]]:
            (_, metrics), gradient = jax.value_and_grad(mean_losses, has_aux=True)(
                state.params, part, key, weight, setting, fixed
            )
            return gradient, metrics

        fraction = schedule(state.step)
        gradient, metrics = _sum_over_parts(
            gradient_of, batch, key, task.config.optimizer.accumulate
        )
        direction, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        updates = scale_by_learning_rate(direction, task, setting, fraction)
        params = optax.apply_updates(state.params, updates)
        metrics |= {
            "train/gradient_norm": optax.tree.norm(gradient),
            "train/learning_rate": setting["learning_rate"] * fraction,
        }
        sums = sums.add(metrics, state.step)
        return TrainState(state.step + 1, params, opt_state, state.key), sums

    return step_member


def _make_mean_losses(task: Task) -> Callable[..., tuple[Array, dict[str, Array]]]:
    """Return a function that computes the training loss of a part of a batch.

    The function returns the total loss and a dict of its terms. Each is a weighted sum over the
    part, divided by the total weight of the whole batch.
    """
    graph = model_graph(task)

    def mean_losses(
        params: Any, part: Batch, key: Array, weight: Array, setting: Setting, fixed: Batch
    ) -> tuple[Array, dict[str, Array]]:
        model = nnx.merge(graph, params)
        rngs = _make_dropout_rngs(key) if task.uses_dropout else None
        outputs = task.apply_for_training(model, part, setting, rngs)
        composed = compose(task.loss, task.weighted_losses(setting))(outputs, {**part, **fixed})
        means = {
            name: weighted_sum(term, part["weight"]) / weight
            for name, term in {"train/loss": composed.total, **composed.terms}.items()
        }
        return means["train/loss"], means

    return mean_losses


def _make_dropout_rngs(key: Array) -> nnx.Rngs:
    """Return random number generators that draw the same dropout keys as `nnx.Rngs(dropout=key)`.

    The counter of `nnx.Rngs` is an array, which takes a tenth of the time to trace a program. This
    counter is a Python integer.
    """
    rngs: Any = nnx.Rngs(dropout=key)
    counts = itertools.count()
    rngs.dropout = lambda: jax.random.fold_in(key, next(counts))
    return rngs


def make_count_steps(task: Task, *, group: int = 0, out_sharding: Any = None) -> jax.stages.Wrapped:
    """Return the jitted program that evaluates all models on consecutive batches.

    The program is a function of (params, total, stack, begin, end). It computes the counts of the
    batches `begin` to `end` - 1 of the stack, adds them to `total`, and returns the new total. See
    `make_count_step` about counts.

    Args:
      task: Model, loss and counts.
      group: Number of models computed at a time; 0 computes all models at once.
      out_sharding: Sharding of the counts.
    """
    count_batch = make_count_step(task, group=group)

    def count_steps(
        params: Any, total: Counts, stack: Batch, begin: Int[Array, ""], end: Int[Array, ""]
    ) -> Counts:
        def add_counts(i: Array, total: Counts) -> Counts:
            return jax.tree.map(jnp.add, total, count_batch(params, _get_batch(stack, i)))

        return jax.lax.fori_loop(begin, end, add_counts, total)

    return jax.jit(count_steps, out_shardings=out_sharding)


@functools.lru_cache(maxsize=8)
def make_count_step(task: Task, *, group: int = 0) -> Callable[[Any, Batch], Counts]:
    """Return the evaluation step of all models on one batch.

    The step is a function of (params, batch) that returns the counts of every model. Counts are
    sums over the examples of a batch, from which the metrics are computed. The step is cached, so
    that it is traced once.

    Args:
      task: Model, loss and counts.
      group: Number of models computed at a time; 0 computes all models at once.
    """
    graph = model_graph(task)

    def count_member(params: Any, batch: Batch) -> Counts:
        outputs = task.apply(nnx.merge(graph, params), batch)
        weight, counts = task.example_weights(batch), task.counts(outputs, batch)
        if "loss" not in counts:
            counts["loss"] = weighted_sum(task.loss(outputs, batch), weight)
        return {"weight": weight.sum(), **counts}

    @jax.jit
    def count_step(params: Any, batch: Batch) -> Counts:
        if not group:
            return map_members(count_member, in_axes=(0, None))(params, batch)
        with xla.calls_at_once(group):
            return jax.lax.map(lambda own: count_member(own, batch), params, batch_size=group)

    return count_step


def _get_batch(stack: Batch, i: Int[Array, ""]) -> Batch:
    """Return batch i of a stack of batches."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), stack)


# (best, step, score, params) -> best, for all models
update_best = jax.jit(jax.vmap(BestParameters.update), donate_argnums=0)


def _sum_over_parts(
    function: Callable[[Batch, Array], Any], batch: Batch, key: Array, parts: int
) -> Any:
    """Split a batch into equal parts, apply a function to each part, and sum the results."""
    if parts == 1:
        return function(batch, key)

    # Part p holds the examples p, p + parts, ..., so that each device splits only its own rows.
    def split(rows: Array) -> Array:
        return jnp.moveaxis(rows.reshape(-1, parts, *rows.shape[1:]), 1, 0)

    split_batch = jax.tree.map(split, batch)
    keys = jax.random.split(key, parts)
    first = jax.tree.map(lambda rows: rows[0], split_batch)
    zero = jax.tree.map(
        lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(function, first, keys[0])
    )

    def add(total: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(*part)), None

    return jax.lax.scan(add, zero, (split_batch, keys))[0]
