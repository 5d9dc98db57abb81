"""Short runs, for tests of the training loop and of trained models."""

import contextlib
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from distattn_jax import sharding, tasks
from distattn_jax.train import (
    Config,
    MeshConfig,
    OptimizerConfig,
    OutputConfig,
    Run,
    Trainer,
    journal,
)
from distattn_jax.train.options import replace_options
from distattn_jax.train.run import AnyPath, experiment_folder
from tests.train import tiny


class StoppedError(Exception):
    """Raised by a test in the middle of a run."""


def write_texts(folder: Path) -> Path:
    """Write texts whose label says if the first word comes before "e", and return their folder."""
    raw = folder / "raw"
    if not raw.exists():
        raw.mkdir(parents=True)
        draw = random.Random(0)
        for split, count in {"train": 150, "validation": 21, "test": 21}.items():
            lines = []
            for _ in range(count):
                words = [draw.choice("abcdefgh") for _ in range(draw.randint(3, 8))]
                label = "early" if words[0] < "e" else "late"
                lines.append(json.dumps({"text": " ".join(words), "label": label}))
            (raw / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return raw


def short_config(texts: Path, output: Path, **changes) -> tasks.TextClassificationConfig:
    """Return a config of thirty steps, with dropout, a learning-rate schedule and two seeds.

    Args:
      texts: Folder of the data set.
      output: Folder of the runs.
      **changes: Further options, by dotted name.
    """
    config = tasks.TextClassificationConfig(
        name="little",
        methods=("distance_aware",),
        seeds=2,
        epochs=3.0,
        data=tasks.TextClassificationData(
            dataset="text_files",
            directory=str(texts / "prepared"),
            manual_dir=str(write_texts(texts)),
            batch_size=16,
            buckets=1,
        ),
        model=dataclasses.replace(tiny.MODEL, dropout_rate=(0.1,)),
        optimizer=OptimizerConfig(learning_rate=(1e-2,), schedule="linear"),
        output=OutputConfig(
            directory=str(output), log_every=5, evaluate_every=15, checkpoint_every=10
        ),
    )
    return replace_options(config, changes)


def quick_run(folder: Path, steps: int, **output) -> dict[str, Any]:
    """Return fields of a config that trains a small model on one device, in a few steps."""
    output = {"evaluate_every": steps, "tensorboard": False, **output}
    return {
        "steps": steps,
        "optimizer": OptimizerConfig(learning_rate=(0.03,)),
        "mesh": MeshConfig(data=1),
        "output": OutputConfig(directory=str(folder / "runs"), **output),
    }


def run_directory(config: Config) -> Path:
    """Return the directory of the run of a config with one method."""
    return Path(experiment_folder(config) / config.method)


def start(config: Config, mesh: tuple[int, int] = (1, 1), sequence: int = 1) -> tuple[Trainer, Run]:
    """Return the trainer of a run, and its folder. The mesh has the sizes (data, model)."""
    prepared = tasks.prepare(config)
    devices = sharding.make_mesh(*mesh, sequence=sequence)
    trainer = tasks.make_trainer(prepared.config, prepared, devices)
    return trainer, tasks.open_task_run(prepared.config, prepared)


def finish(trainer: Trainer, run: Run) -> Path:
    """Train to the end, write the result, and return the run folder."""
    run.write_result(trainer.measure(trainer.fit(run)))
    return Path(run.path)


def stop_after(trainer: Trainer, run: Run, steps: int) -> None:
    """Train for this number of steps or a few more, as a run that is killed."""

    def stop(step, state):
        if step >= steps:
            raise StoppedError

    with contextlib.suppress(StoppedError):
        trainer.fit(run, stop)
        raise AssertionError(f"the run ended before step {steps}")


def assert_same_metrics(one: AnyPath, two: AnyPath) -> None:
    """Check that two runs have logged the same metrics, up to rounding errors."""
    lines = zip(journal.read(epath.Path(one)), journal.read(epath.Path(two)), strict=True)
    for expected, actual in lines:
        assert expected.keys() == actual.keys()
        for name in expected:
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-5)


@contextlib.contextmanager
def keep_compiled(folder):
    """Keep compiled programs in a folder, so that similar runs compile only once."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = [getattr(jax.config, name) for name in names]
    for name, value in zip(names, (str(folder), 0.0), strict=True):
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            jax.config.update(name, value)
