"""The loop: trains all members of a run, and takes up again wherever it was stopped.

The host never waits for the device to log: what a window of steps came to is added up on the
device, and read when the next window is done. It does wait to validate and to save.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from distattn_jax import sharding
from distattn_jax.data import PADDING_ROW, Batches, Nested, Table, choose_buckets
from distattn_jax.train.checkpoint import Checkpoints
from distattn_jax.train.config import Config
from distattn_jax.train.feed import Feed
from distattn_jax.train.interrupt import watch_for_sigterm
from distattn_jax.train.members import group_size, members_of, stacked
from distattn_jax.train.metrics import score
from distattn_jax.train.optimizer import direction_of, schedule_of
from distattn_jax.train.record import Record
from distattn_jax.train.run import Run
from distattn_jax.train.state import Birth, Training, TrainState, empty_tally, graph_of
from distattn_jax.train.step import count_step_of, train_step_of, update_best
from distattn_jax.train.task import Task

PROFILED = range(10, 15)  # steps after the start, when all is compiled


class Terminated(Exception):  # noqa: N818  not an error: the run was asked to leave
    """The run was told to stop (SIGTERM), and saved what it had."""


class Trainer:
    """Trains all members of one run.

    Args:
      task: what is learned.
      config: of the run.
      run: where it is kept.
      mesh: the devices.
    """

    def __init__(self, task: Task, config: Config, run: Run, mesh: Mesh):
        self.task, self.config, self.run, self.mesh = task, config, run, mesh
        if config.data.batch_size % mesh.shape["data"]:
            raise ValueError(
                f"data.batch_size ({config.data.batch_size}) must be a multiple of the devices "
                f"that share a batch ({mesh.shape['data']}, mesh.data)."
            )
        self.members = members_of(config)
        self.at_once = group_size(len(self.members), config.mesh.at_once)
        self.batches = self._batches("train", shuffle=True)
        self.steps = max(round(config.epochs * self.batches.batches_per_epoch), 1)
        optimizer, graph = direction_of(config.optimizer), graph_of(task)
        self.birth = Birth(task, optimizer, self.members, mesh)
        everywhere = sharding.replicated(mesh)
        self.settings = jax.device_put(stacked(self.members)[1], everywhere)
        self.train_step = train_step_of(
            task,
            graph,
            optimizer,
            schedule_of(config.optimizer, self.steps),
            accumulate=config.optimizer.accumulate,
            at_once=self.at_once,
            dropout=max(config.model.dropout_rate) > 0,
            places=jax.tree.map(
                lambda leaf: leaf.sharding, (self.birth.like.state, self.birth.like.tally)
            ),
            constants=jax.device_put(dict(task.constants), everywhere),
        )
        self._count_step = count_step_of(task, graph, at_once=self.at_once, place=everywhere)
        every = jnp.arange(len(self.members))
        self._empty_tally = jax.jit(
            lambda: jax.vmap(lambda _: empty_tally(task))(every),
            out_shardings=jax.tree.map(lambda leaf: leaf.sharding, self.birth.like.tally),
        )

    def compile(self) -> None:
        """Compiles all programs of the run, several at the same time.

        Without this each is compiled when it is first called, while the device waits.
        """
        with ThreadPoolExecutor() as pool:
            compiled = [pool.submit(program.compile) for program in self._programs()]
        for program in compiled:
            program.result()

    def fit(self, after_step: Callable[[int, TrainState], None] | None = None) -> Training:
        """Trains to the end, from the newest checkpoint if there is one.

        Args:
          after_step: called with the number of every step and the state it led to, which the next
            step takes apart: what is to outlast it must be copied.

        Raises:
          NonFiniteError: a loss was not finite.
          Terminated: SIGTERM came; what there was is saved.
        """
        output, task = self.config.output, self.task
        if jax.process_index() == 0:
            self.run.plan(self.steps)
        evaluate_every = output.evaluate_every or self.batches.batches_per_epoch
        save_every = output.checkpoint_every or evaluate_every
        with (
            Checkpoints(self.run.checkpoints, keep=output.keep) as checkpoints,
            watch_for_sigterm() as stop_requested,
        ):
            start, training, position = checkpoints.restore(self.birth.like) or (0, None, None)
            training = training or self.birth()
            state, best, tally = training.state, training.best, training.tally
            batches = self.batches.iterate(self.steps)
            if position is not None:
                batches.set_state(position)
            feed = self._feed(batches)
            record = Record(
                self.run,
                steps=self.steps,
                start=start,
                tensorboard=output.tensorboard,
                evaluation=f"validation/{task.criterion}",
            )
            with record:
                for step in range(start + 1, self.steps + 1):
                    self._profile(step - start, last=step == self.steps)
                    state, tally = self.train_step(state, tally, self.settings, next(feed))
                    record.stepped(step)
                    if after_step is not None:
                        after_step(step, state)
                    stopping, last = stop_requested(step), step == self.steps
                    if step % output.log_every == 0 or last:
                        record.window(step, tally)
                        tally = self._empty_tally()
                    evaluating = step % evaluate_every == 0 or last
                    saving = step % save_every == 0 or last or stopping
                    if evaluating or saving:
                        record.paused(state)
                    if evaluating:
                        record.read()
                        metrics = self.evaluate(state.params, "validation")
                        record.metrics(step, {f"validation/{k}": v for k, v in metrics.items()})
                        found = np.asarray(score(task.criterion, metrics[task.criterion]))
                        found = jax.device_put(found.astype(np.float32), best.score.sharding)
                        best = update_best(best, state.step, found, state.params)
                    if saving:
                        record.read()
                        record.checked(tally)  # nothing is saved that is not finite
                        training = Training(state, best, tally)
                        checkpoints.save(step, training, iterator=feed.state)
                        record.saved(step)
                    if evaluating or saving:
                        record.resumed()
                    if stopping and not last:
                        raise Terminated(f"saved at step {step} of {self.steps}")
            return Training(state, best, tally)

    def evaluate(self, params: Any, split: str) -> dict[str, np.ndarray]:
        """The metrics of a whole split, each an array over members."""
        batches = self._batches(split, shuffle=False)
        total = None
        for batch in self._feed(batches.iterate(batches.batches_per_epoch)):
            counts = self._count_step(params, batch)
            total = counts if total is None else jax.tree.map(jnp.add, total, counts)
        gathered = jax.device_get(total)
        rows = []
        for member in range(len(self.members)):
            own = {name: np.asarray(column[member]) for name, column in gathered.items()}
            loss = float(own["loss"] / own["weight"])
            rows.append({"loss": loss, **self.task.metrics(own)})
        return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}

    def finish(self, training: Training) -> dict[str, Any]:
        """The result: the best parameters of each member, on the validation and the test set."""
        best = training.best
        measured = {split: self.evaluate(best.params, split) for split in self._splits}
        steps = np.asarray(best.step)
        result = {
            "method": self.config.methods[0],
            "task": self.config.task,
            "criterion": self.task.criterion,
            "steps": self.steps,
            "baseline": {split: self.task.baseline(split) for split in measured},
            "parameters": sum(leaf[0].size for leaf in jax.tree.leaves(best.params)),
            "step_bytes": self.step_bytes(),
            "at_once": self.at_once or len(self.members),
            "members": [
                {
                    "seed": member.seed,
                    "setting": member.setting,
                    "best_step": int(steps[i]),
                    **{
                        split: {name: float(column[i]) for name, column in metrics.items()}
                        for split, metrics in measured.items()
                    },
                }
                for i, member in enumerate(self.members)
            ],
        }
        if jax.process_index() == 0:
            self.run.finish(result)
        return result

    def step_bytes(self) -> int | None:
        """What the largest step takes of a device's memory, all members together.

        It is what the compiler says of its program, which was compiled when it was first called;
        None where it says nothing.
        """
        used = self._step_program(self.batches.buckets[-1]).compile().memory_analysis()
        if used is None:
            return None
        held = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
        return held + used.temp_size_in_bytes

    def about_the_batches(self) -> str:
        """What padding and cutting do to the training set."""
        batches, unit = self.batches, self.task.unit
        lengths = ", ".join(map(str, batches.buckets))
        said = f"batches of {batches.batch_size} examples padded to {lengths} {unit}"
        said += f" ({batches.padding_share:.0%} of these are padding)"
        columns = batches.table.columns if isinstance(batches.table, Table) else {}
        for column in map(columns.get, self.task.by):
            if isinstance(column, Nested):
                said += f", each padded to {column.width} tokens"
                said += f" ({column.padding_share:.0%} of these are padding)"
        if batches.truncated:  # what was cut before it came into the table was said of the table
            said += f"; {batches.truncated} of {len(batches.table)} examples lose {unit}"
        return said

    @property
    def _splits(self) -> tuple[str, ...]:
        """What is measured at the end."""
        return ("validation", "test") if self.config.output.test else ("validation",)

    def _programs(self) -> Iterator[Any]:
        """All that the run will call, one for each length of batches; not compiled yet."""
        for bucket in self.batches.buckets:
            yield self._step_program(bucket)
        for split in self._splits:
            batches = self._batches(split, shuffle=False)
            for bucket in batches.buckets:
                batch = self._filler(batches, bucket)
                yield self._count_step.lower(self.birth.like.state.params, batch)

    def _step_program(self, bucket: int) -> Any:
        like, jitted = self.birth.like, self.train_step.func
        batch = self._filler(self.batches, bucket)
        arguments = (*self.train_step.args, like.state, like.tally, self.settings, batch)
        return jitted.lower(*arguments)  # type: ignore[attr-defined]  # it is jitted

    def _filler(self, batches: Batches, bucket: int) -> Any:
        """A batch without any example."""
        rows = batches.batch_size // jax.process_count()
        columns = batches.table.take(np.full(rows, PADDING_ROW), bucket)
        columns["weight"] = np.zeros(rows, np.float32)
        return sharding.place_batch(columns, self.mesh, self.task.layout)

    def _feed(self, batches: Any) -> Feed:
        return Feed(batches, self.mesh, self.task.layout)

    def _batches(self, split: str, *, shuffle: bool) -> Batches:
        table, config = self.task.tables[split], self.config.data
        lengths = table.lengths(self.task.by)
        longest = int(min(lengths.max(), self.task.longest(config) or lengths.max()))
        return Batches(
            table,
            batch_size=config.batch_size,
            buckets=choose_buckets(lengths, count=config.buckets, longest=longest),
            length_columns=self.task.by,
            seed=config.seed,
            shuffle=shuffle,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )

    def _profile(self, done: int, *, last: bool) -> None:
        if not self.config.output.profile:
            return
        if done == PROFILED.start:
            jax.profiler.start_trace(self.run.path / "profile")
        elif done == PROFILED.stop or (last and done in PROFILED):
            jax.profiler.stop_trace()
