"""Train every method of a recipe, print a table and draw figures."""

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from distattn_jax import sharding
from distattn_jax.tasks import make_trainer, open_task_run, prepare
from distattn_jax.tasks.search import apply_search
from distattn_jax.train import (
    Config,
    MeshConfig,
    OptimizerConfig,
    Run,
    RunError,
    Terminated,
    Trainer,
)
from distattn_jax.train.config import SHORT_RUN, ConfigType
from distattn_jax.train.members import varied_axes
from distattn_jax.train.optimizer import count_warmup_steps
from distattn_jax.train.options import list_set_options, parse_options, replace_options
from distattn_jax.train.progress import show_elapsed
from distattn_jax.train.run import experiment_folder
from distattn_jax.train.run_files import is_disk_full
from experiments.bench.programs import is_out_of_memory
from experiments.commands._compilation_cache import enable_compilation_cache
from experiments.papers.terminal import summarize_report
from experiments.recipes import DEFAULT, load_recipe

SAVE_MEMORY = (
    "To use less memory, train fewer models at a time (--models-at-once; the same command then "
    "resumes), split batches into parts (--optimizer.accumulate), recompute the layers "
    "(--model.remat true), or share long texts between devices (--mesh.sequence)"
)


def main(arguments: Sequence[str]) -> None:
    """Run `train [RECIPE] [--option value ...]`: train all methods, then report on the runs."""
    recipe, flags = DEFAULT, list(arguments)
    if flags and not flags[0].startswith("-"):
        recipe = flags.pop(0)
    config = parse_options(
        load_recipe(recipe).get_config(), flags, program=f"python -m experiments train {recipe}"
    )
    set_options = list_set_options(flags)
    try:
        run(obey_set_options(config, set_options), set_options=set_options)
    except KeyboardInterrupt:  # outside the training loop, which handles Ctrl-C itself
        raise KeyboardInterrupt("The same command resumes.") from None


def obey_set_options(config: ConfigType, set_options: Collection[str]) -> ConfigType:
    """Return the config without the limits of the recipe on options that the command line sets.

    A recipe for any amount of data has a smallest number of steps and a largest share of warm-up.

    Args:
      config: Config of the experiment.
      set_options: Dotted names of the options that the command line sets.
    """
    limits = {
        "epochs": ("min_steps", 0),
        "optimizer.warmup_steps": ("optimizer.warmup_share", 0.0),
    }
    lifted = (limits[name] for name in limits.keys() & set(set_options))
    changes = {name: value for name, value in lifted if name not in set_options}
    return replace_options(config, changes)


def run(config: Config, *, set_options: Collection[str]) -> None:
    """Train all methods of a config, then write and print a report on the runs.

    Args:
      config: Config of the experiment.
      set_options: Dotted names of the options that the command line sets.
    """
    enable_compilation_cache(config.output.compiled)
    join_processes(config.mesh)
    train(config, set_options=set_options)
    folder = experiment_folder(config)
    if jax.process_count() == 1:
        with show_elapsed("drawing"):
            summary = summarize_runs(folder, config.methods)
        print(f"\n{summary}")
    elif jax.process_index() == 0:
        print(f"python -m experiments report {folder} makes tables and pictures of it.")


def summarize_runs(folder: epath.Path, methods: Iterable[str]) -> str:
    """Write the report on an experiment, and return its summary for the terminal.

    Without pandas, return how to make the report later: the training has stored its results.

    Args:
      folder: Folder of the experiment.
      methods: Names of the methods that were trained.
    """
    # It imports Matplotlib, which is slow.
    from experiments.commands.report import MissingPackageError, report

    try:
        return summarize_report(report([folder / method for method in methods]), folder)
    except MissingPackageError as error:
        return (
            f"The results are stored in {folder}. {error} Then `python -m experiments report "
            f"{folder}` makes them."
        )


def train(config: Config, *, set_options: Collection[str] = ()) -> None:
    """Train all methods one after another. A run that has a checkpoint is resumed.

    Args:
      config: Config of the experiment.
      set_options: Dotted names of the options that the command line sets.
    """
    say = print if jax.process_index() == 0 else lambda *_: None
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.model, sequence=config.mesh.sequence)
    say(describe_devices(config, mesh))
    prepared = call_in_turn(lambda: prepare(config))
    for line in prepared.messages:
        say(line)
    configs = [prepared.config.for_method(method) for method in config.methods]
    if len(configs) > 1:
        say(describe_methods(config.methods))
    for one in [apply_search(one, prepared.about, set_options) for one in configs]:
        run = open_task_run(one, prepared)
        if run.result is not None:
            say(f"{run.path} is finished.")
            continue
        trainer = make_trainer(one, prepared, mesh)
        per_epoch = trainer.batches.batches_per_epoch
        length = describe_steps(trainer.steps, per_epoch, one.optimizer)
        say(f"{run.path}: {describe_models(trainer)}, {length}")
        say(trainer.describe_batches())
        train_to_end(trainer, run, say)


def describe_devices(config: Config, mesh: Mesh) -> str:
    """Describe the devices, the mesh and the precision of an experiment."""
    model: Any = getattr(config, "model", None)
    precision = getattr(model, "dtype", "float32")
    if getattr(model, "precision", ""):
        precision += f", attention {model.precision}"
    devices = f"{mesh.size} x {mesh.devices.flat[0].device_kind}"
    axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
    return f"devices: {devices}; mesh: {axes}; precision: {precision}"


def describe_methods(methods: Sequence[str]) -> str:
    """Name the methods that are trained one after another, and the option that selects some."""
    names = ", ".join(methods)
    return f"{len(methods)} methods, one after another: {names} (--methods selects some)"


def describe_steps(steps: int, per_epoch: int, optimizer: OptimizerConfig) -> str:
    """Describe the length of a run, with warnings if the run or the rest after warm-up is short.

    Args:
      steps: Number of steps.
      per_epoch: Number of batches in an epoch.
      optimizer: Options of the optimizer.
    """
    warmup = count_warmup_steps(optimizer, steps)
    epochs = f"{steps / per_epoch:.3g}"
    text = f"{steps} steps ({epochs} {'epoch' if epochs == '1' else 'epochs'})"
    text += f", {warmup} of them warm-up." if 0 < warmup < steps else "."
    if warmup >= steps:
        text += (
            f"\nwarning: the warm-up has {warmup} steps, but the run has only {steps}: the "
            "learning rate does not reach its peak before the end. Set --optimizer.warmup-steps to "
            f"at most {steps // 10}, or --steps to at least {10 * warmup}."
        )
    if steps < SHORT_RUN:
        text += f"\nwarning: {steps} steps are few. A model learns little in less than {SHORT_RUN}."
    return text


def describe_models(trainer: Trainer) -> str:
    """Describe the number of models, and the hyperparameters in which they differ."""
    count = len(trainer.members)
    if count == 1:
        return "1 model"
    axes = ", ".join(("seeds", *varied_axes(trainer.members)))
    text = f"{count} models side by side (over {axes})"
    return f"{text}, {trainer.group} at a time" if trainer.group else text


def group_programs(names: Iterable[str]) -> str:
    """Join names of programs, such as "training on 8, 16 tokens; initial parameters"."""
    lengths: dict[tuple[str, str], list[str]] = {}
    for name in dict.fromkeys(names):
        kind, _, size = name.partition(" on ")
        length, _, unit = size.partition(" ")
        lengths.setdefault((kind, unit), []).append(length)
    return "; ".join(
        f"{kind} on {', '.join(sorted(found, key=int))} {unit}" if unit else kind
        for (kind, unit), found in lengths.items()
    )


def train_to_end(trainer: Trainer, run: Run, say: Callable[[str], None]) -> None:
    """Compile, train and evaluate one run, and write its result.

    If SIGTERM or Ctrl-C ends the run, the program prints how to resume the run, then exits.

    Args:
      trainer: Trainer of the run.
      run: Folder of the run.
      say: Function that prints a message.

    Raises:
      RunError: The device has too little memory, or the disk is full. The message says what to do.
    """
    try:
        if jax.process_count() == 1:  # Several processes must compile in the same order.
            start = time.monotonic()
            with show_elapsed("compiling") as show:
                names = trainer.compile(report=lambda now: show(f"compiling {group_programs(now)}"))
            seconds = time.monotonic() - start
            say(f"compiled in {seconds:.0f} s: {group_programs(names)}")
        else:
            say("Each program compiles at its first call, which may take minutes.")
        training = trainer.fit(run)
        with show_elapsed("testing") if jax.process_index() == 0 else contextlib.nullcontext():
            result = trainer.measure(training)
        if jax.process_index() == 0:
            run.write_result(result)
    except Terminated as stopped:
        print(f"{run.path}: {stopped}. The same command resumes it.", file=sys.stderr)
        sys.exit(stopped.exit_status)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        message = f"{run.path}: the device has too little memory. {SAVE_MEMORY}. It said: {error}"
        raise RunError(message) from error
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise RunError(
            f"{run.path}: no space is left on the disk. Free some space, then the same command "
            "resumes from the newest checkpoint."
        ) from error


def call_in_turn(function: Callable[[], Any]) -> Any:
    """Call a function in every process, in the first process before all others.

    The calls in the other processes can therefore read the files that the first call wrote. Each
    process returns the result of its own call.
    """
    if jax.process_count() == 1:
        return function()
    made = function() if jax.process_index() == 0 else None
    multihost_utils.sync_global_devices("the first process is ready")
    return made or function()


def join_processes(mesh: MeshConfig) -> None:
    """Call `jax.distributed.initialize` if the run has several processes."""
    if mesh.coordinator:
        jax.distributed.initialize(mesh.coordinator, mesh.processes, mesh.process)
    elif mesh.cluster:
        jax.distributed.initialize()
