"""Trains every method of a recipe, prints a table, and draws the pictures."""

import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from distattn_jax import sharding
from distattn_jax.train import (
    Config,
    MeshConfig,
    RunError,
    Terminated,
    Trainer,
    open_run,
    prepare,
    task_of,
)
from distattn_jax.train.flags import named, parse
from distattn_jax.train.members import varied
from distattn_jax.train.tasks import directory_of
from experiments.recipes import DEFAULT, config_of
from experiments.searched import found_by_search

TAKE_LESS = (
    "Less is taken by fewer models at a time (--mesh.at-once; the same command then goes on), by "
    "parts of a batch (--optimizer.accumulate), and by layers of pre-trained models that are "
    "computed twice (--model.remat true)"
)
CACHE = Path.home() / ".cache" / "distattn_jax" / "compiled"


def main(arguments: Sequence[str]) -> None:
    """`train [RECIPE] [--field value ...]`."""
    recipe, flags = DEFAULT, list(arguments)
    if flags and not flags[0].startswith("-"):
        recipe = flags.pop(0)
    config = parse(config_of(recipe), flags, program=f"python -m experiments train {recipe}")
    run(config, given=named(flags))


def run(config: Config, *, given: Collection[str]) -> None:
    """Trains what is configured, then reports on it; `given`: fields set by the command line."""
    keep_compiled_programs()
    join(config.mesh)
    train(config, given=given)
    folder = directory_of(config)
    if jax.process_count() == 1:
        from experiments.commands.report import report  # slow to import: after the training

        print(f"\n{report([folder / method for method in config.methods])}")
        print(f"All of this is in {folder / 'report.md'}, the pictures in {folder / 'figures'}.")
    elif jax.process_index() == 0:
        print(f"python -m experiments report {folder} makes tables and pictures of it.")


def train(config: Config, *, given: Collection[str] = ()) -> None:
    """All methods, one after another, each from where it was left."""
    say = print if jax.process_index() == 0 else lambda *_: None
    config, prepared = in_turn(lambda: prepare(config))
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.model)
    for line in prepared.said:
        say(line)
    runs = [found_by_search(config.of(method), prepared.about, given) for method in config.methods]
    for one in runs:
        run = open_run(one, prepared)
        if run.result is not None:
            say(f"{run.path} is finished.")
            continue
        trainer = Trainer(task_of(one, prepared), one, run, mesh)
        count, grid = len(trainer.members), ", ".join(("seeds", *varied(trainer.members)))
        models = f"{count} models side by side (over {grid})" if count > 1 else "1 model"
        if trainer.at_once:
            models += f", {trainer.at_once} at a time"
        say(f"{run.path}: {models}, {trainer.steps} steps.")
        say(trainer.about_the_batches())
        finish(trainer, say)


def finish(trainer: Trainer, say: Callable[[str], None]) -> None:
    """Compiles, trains and measures; says what to do where that ends before its end."""
    path = trainer.run.path
    try:
        if jax.process_count() == 1:  # several must compile in the same order
            began = time.monotonic()
            trainer.compile()
            say(f"compiled in {time.monotonic() - began:.0f} s")
        trainer.finish(trainer.fit())
    except Terminated as stopped:
        print(f"{path}: {stopped}. The same command goes on from there.", file=sys.stderr)
        sys.exit(143)  # as a process that SIGTERM ended
    except jax.errors.JaxRuntimeError as error:
        if not is_memory(error):
            raise
        said = f"{path}: the device's memory is not enough. {TAKE_LESS}. It said: {error}"
        raise RunError(said) from error


def is_memory(error: Exception) -> bool:
    """Whether the memory was not enough, in the words of GPUs and TPUs or of a CPU."""
    return any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory"))


def in_turn(function: Callable[[], Any]) -> Any:
    """Calls it in the first process, then in the others, which may find there what it made."""
    if jax.process_count() == 1:
        return function()
    made = function() if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices("the first process is ready")
    return made or function()


def keep_compiled_programs() -> None:
    """The second start of a run finds its programs compiled."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(CACHE))


def join(mesh: MeshConfig) -> None:
    """Makes this process one of several, if it is to be."""
    if mesh.coordinator:
        jax.distributed.initialize(mesh.coordinator, mesh.processes, mesh.process)
    elif mesh.cluster:
        jax.distributed.initialize()
