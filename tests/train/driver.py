"""Training in a separate process that interrupts itself, or in one of several processes."""

import os
import signal
import sys
import time
from typing import NamedTuple

import jax

from distattn_jax import sharding
from distattn_jax.tasks import make_trainer, open_task_run, prepare
from distattn_jax.train import Config, Run, Trainer
from distattn_jax.train.options import replace_options
from experiments.commands.train import call_in_turn, join_processes, train_to_end
from tests.train.runs import StoppedError


class Attempt(NamedTuple):
    """One attempt to train a run to its end.

    Args:
      number: Signal that the process sends to itself; None to raise an error instead.
      step: Number of steps after which the process is interrupted; by default more than a run has.
      name: Name of the experiment.
    """

    number: signal.Signals | None = None
    step: int = 1000
    name: str = "little"


def train_with_log(log: str, config: Config, *attempts: Attempt) -> None:
    """Train in a forked process, which writes its output to the file `log`.

    The attempts follow each other as if each was made by a new process, but they share a trainer,
    so that its programs are traced once.
    """
    with open(log, "w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background ignores it.
    try:
        join_processes(config.mesh)
        prepared = call_in_turn(lambda: prepare(config))
        mesh = sharding.make_mesh(
            config.mesh.data, config.mesh.model, sequence=config.mesh.sequence
        )
        trainer = make_trainer(prepared.config, prepared, mesh)
        for attempt in attempts:
            run = open_task_run(replace_options(prepared.config, {"name": attempt.name}), prepared)
            _try_to_train(trainer, run, attempt)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if jax.distributed.is_initialized():  # A forked process calls no exit handlers.
            jax.distributed.shutdown()


def _try_to_train(trainer: Trainer, run: Run, attempt: Attempt) -> None:
    """Train as the command does, and print the exit status of a run that was stopped."""
    sent = []

    def interrupt(step, state):
        if step < attempt.step:
            return
        if attempt.number is None:
            raise StoppedError
        if not sent:
            sent.append(attempt.number)
            os.kill(os.getpid(), attempt.number)
        time.sleep(0.5)  # JAX looks for signals once a second, and the run must not end before.

    trainer.fit = lambda run: Trainer.fit(trainer, run, interrupt)
    try:
        train_to_end(trainer, run, print)
    except StoppedError:
        print(f"interrupted after step {attempt.step}")
    except SystemExit as stopped:
        print(f"exit status {stopped.code}")
