"""Evaluation: the metrics of all models of a run on one table of examples.

A run trains several models side by side, one for each seed and each setting of its grid.
"""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from distattn_jax.sharding import replicated
from distattn_jax.train.batching import BatchPrefetcher, empty_batch, make_batches
from distattn_jax.train.members import group_size, list_members
from distattn_jax.train.step import make_count_step
from distattn_jax.train.task import Task


def evaluate(task: Task, params: Any, table: Any, mesh: Mesh) -> dict[str, np.ndarray]:
    """Return the metrics of every model of a run on a whole table, each of shape (members,).

    Args:
      task: Model and metrics, with the config of the run.
      params: Parameters of all models of the run, with a leading axis over models.
      table: Examples.
      mesh: Devices.
    """
    batches = make_batches(task, table, shuffle=False)
    count_step = _count_step(task, mesh)
    iterator = batches.iterate(batches.batches_per_epoch)
    total = None
    for batch in BatchPrefetcher(iterator, mesh, task.layout):
        counts = count_step(params, batch)
        total = counts if total is None else jax.tree.map(jnp.add, total, counts)
    gathered = jax.device_get(total)
    rows = []
    for member in range(len(gathered["loss"])):
        counts = {name: np.asarray(column[member]) for name, column in gathered.items()}
        loss = float(counts["loss"] / counts["weight"])
        rows.append({"loss": loss, **task.metrics(counts)})
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def lower_evaluation(task: Task, params: Any, table: Any, mesh: Mesh) -> Iterator[Any]:
    """Yield the lowered (not yet compiled) programs that `evaluate` runs on a table.

    There is one program for each padded length of the batches. The leaves of `params` may be
    `jax.ShapeDtypeStruct`s instead of arrays.
    """
    batches = make_batches(task, table, shuffle=False)
    for bucket in batches.buckets:
        batch = empty_batch(task, batches, bucket, mesh)
        yield _count_step(task, mesh).lower(params, batch)


@functools.lru_cache(maxsize=8)
def _count_step(task: Task, mesh: Mesh) -> jax.stages.Wrapped:
    """Return the jitted evaluation step of a task; cached, so that it is compiled once."""
    group = group_size(len(list_members(task.config)), task.config.models_at_once)
    return make_count_step(task, group=group, out_sharding=replicated(mesh))
