"""Trains every method of a recipe, prints a table, and draws the pictures."""

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from etils import epath
from jax.experimental import multihost_utils

from distattn_jax import sharding
from distattn_jax.models import METHODS
from distattn_jax.train import (
    Config,
    MeshConfig,
    RunError,
    Terminated,
    Trainer,
    load_config,
    open_run,
    prepare,
    task_of,
)
from distattn_jax.train.config import ANY_LAYER, unread
from distattn_jax.train.flags import differences, named, parse, to_dict
from distattn_jax.train.members import AXES, varied, with_setting
from distattn_jax.train.run import MAY_CHANGE, Run
from distattn_jax.train.tasks import directory_of, kind_of
from experiments.recipes import DEFAULT, config_of
from experiments.tables import chosen

CACHE = Path.home() / ".cache" / "distattn_jax" / "compiled"
FLAGS = {axis: f"{part}.{axis}" for axis, part in AXES.items()}
# What a search may have otherwise than the runs that take what it found.
MAY_DIFFER = (
    *MAY_CHANGE,
    *FLAGS.values(),
    *("name", "seed", "epochs", "search", "guiding.layers"),
    *("data.buckets", "data.share"),
    *("model.implementation", "model.remat", "optimizer.accumulate"),
)
PLACES = ("data.parses", "data.vectors", "model.pretrained")  # only their last part is compared


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
        grid = ", ".join(("seeds", *varied(trainer.members)))
        count = len(trainer.members)
        say(f"{run.path}: {count} models side by side (over {grid}), {trainer.steps} steps.")
        say(trainer.about_the_batches())
        try:
            training = trainer.fit()
        except Terminated as stopped:
            print(f"{run.path}: {stopped}. The same command goes on from there.", file=sys.stderr)
            sys.exit(143)  # as a process that SIGTERM ended
        trainer.finish(training)


def found_by_search(
    config: Config, about: Mapping[str, Any], given: Collection[str] = ()
) -> Config:
    """With the setting of its method that did best in the search, where one is named.

    A form of distance-aware attention that was not searched itself takes what was found for the
    paper's own form.

    Args:
      config: of one method.
      about: what is known of its data.
      given: names of the fields that stay as they are; an error if the search tried several values.
    """
    if not config.search:
        return config
    method, folder = config.methods[0], epath.Path(config.search)
    known = METHODS.get(method)
    if not (folder / method).exists() and known is not None and known.has_distance_weights:
        method = "distance_aware"
    run = Run(folder / method)
    result = run.result
    if result is None:
        raise RunError(f"search must be a folder of finished runs; {run.path} is none.")
    check_search(config, about, run)
    found = dict(result["members"][chosen(result)[0]]["setting"])
    if found.pop("layer", ANY_LAYER) != ANY_LAYER:
        raise RunError(f"search must be of weights, not of layers; {run.path} guides one layer.")
    kept = [axis for axis in found if FLAGS[axis] in given]
    for axis in kept:
        tried = {member["setting"][axis]: None for member in result["members"]}
        if len(tried) > 1:
            raise RunError(
                f"{FLAGS[axis]} must not be given beside search, where {run.path} tried "
                f"{', '.join(map(str, tried))}; got {getattr(getattr(config, AXES[axis]), axis)}."
            )
    return with_setting(config, {axis: found[axis] for axis in found if axis not in kept})


def check_search(config: Config, about: Mapping[str, Any], run: Run) -> None:
    """Raises where a run of a search was of other data, or of another model; see `MAY_DIFFER`.

    Tasks on the same data set are as one: ratings take what was found for classes.
    """
    before, now = load_config(run.path), config
    same_data_set = kind_of(before.task).builder is kind_of(now.task).builder
    different = differences(
        _comparable(before),
        _comparable(now),
        ignoring=(*MAY_DIFFER, *unread(now.methods[0]), *(["task"] if same_data_set else [])),
    )
    different += run.other_files(about)
    if different:
        raise RunError(
            f"search must be of the same task, data and model; {run.path} is not:\n  "
            + "\n  ".join(different)
        )


def _comparable(config: Config) -> dict[str, Any]:
    fields = to_dict(config)
    return {**fields, **{name: epath.Path(fields[name]).name for name in PLACES}}


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
