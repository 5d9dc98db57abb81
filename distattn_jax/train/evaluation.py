"""Evaluation: the metrics of all models of a run on one table of examples.

A run trains several models side by side, one for each seed and each setting of its grid.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from distattn_jax.data import Batches
from distattn_jax.sharding import replicated, sequence_shards
from distattn_jax.train.batching import BatchLoader, empty_stack, make_batches
from distattn_jax.train.dispatch import DispatchLimit
from distattn_jax.train.members import group_size, list_members
from distattn_jax.train.step import Counts, make_count_step, make_count_steps
from distattn_jax.train.task import Task


def evaluate(task: Task, params: Any, table: Any, mesh: Mesh) -> dict[str, np.ndarray]:
    """Evaluate every model of a run on a whole table.

    Args:
      task: Model and metrics, with the config of the run.
      params: Parameters of all models of the run, with a leading axis over models.
      table: Examples.
      mesh: Devices.

    Returns:
      A dict from metric name to an array of shape (members,), with one value per model.
    """
    batches = _make_batches(task, table, mesh)
    stop = batches.batches_per_epoch
    count_steps, limit = _count_steps(task, mesh), DispatchLimit(task.config.steps_at_once)
    total = _empty_counts(task, params, batches, mesh)
    with BatchLoader(batches, mesh, task.layout, stop=stop) as loader:
        while loader.position < stop:
            total = limit.call(count_steps, params, total, *loader.take(limit.steps))
    gathered = jax.device_get(total)
    rows = []
    for member in range(len(gathered["loss"])):
        counts = {name: np.asarray(column[member]) for name, column in gathered.items()}
        loss = float(counts["loss"] / counts["weight"])
        rows.append({"loss": loss, **task.metrics(counts)})
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def list_programs(
    task: Task, params: Any, table: Any, mesh: Mesh
) -> Iterator[tuple[int, Callable[[], jax.stages.Lowered]]]:
    """Yield the padded length of each program of `evaluate`, and a function that lowers it.

    The leaves of `params` may be `jax.ShapeDtypeStruct`s instead of arrays.
    """
    batches = _make_batches(task, table, mesh)
    total = _empty_counts(task, params, batches, mesh)
    for bucket, length in enumerate(batches.buckets):
        stacked = empty_stack(task, batches, bucket, mesh)
        yield length, functools.partial(_count_steps(task, mesh).lower, params, total, *stacked)


def _make_batches(task: Task, table: Any, mesh: Mesh) -> Batches:
    """Return the batches of a table in the order of their lengths, for the devices of a mesh."""
    devices, token_devices = mesh.shape["data"], sequence_shards(mesh)
    return make_batches(task, table, shuffle=False, devices=devices, token_devices=token_devices)


@functools.lru_cache(maxsize=8)
def _count_steps(task: Task, mesh: Mesh) -> jax.stages.Wrapped:
    """Return the jitted evaluation program of a task; cached, so that it is compiled once."""
    return make_count_steps(task, group=_group_size(task), out_sharding=replicated(mesh))


def _empty_counts(task: Task, params: Any, batches: Batches, mesh: Mesh) -> Counts:
    """Return counts that are 0 for all models, on the devices."""
    # The columns of the batches that the program receives, so that the step is not traced again.
    batch = {name: column for name, column in batches[0].items() if name != "index"}
    shapes = jax.eval_shape(make_count_step(task, group=_group_size(task)), params, batch)
    zeros = {name: np.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}
    return jax.device_put(zeros, replicated(mesh))


def _group_size(task: Task) -> int:
    return group_size(len(list_members(task.config)), task.config.models_at_once)
