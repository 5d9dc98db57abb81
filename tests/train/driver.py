"""Train a small model in a separate process, for tests that kill it or run several processes.

`python -m tests.train.driver FOLDER [--option value ...]` writes texts into FOLDER to train on.
"""

import dataclasses
import json
import os
import random
import signal
import sys
from pathlib import Path

import jax

from distattn_jax.tasks import TextClassificationConfig, TextClassificationData
from distattn_jax.train import Config, OptimizerConfig, OutputConfig
from distattn_jax.train.options import parse_options
from distattn_jax.train.run import experiment_folder
from experiments.commands.train import join_processes, train
from tests.train import tiny


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


def make_config(folder: Path) -> TextClassificationConfig:
    """Return a run of two seeds: 100 steps, batches of 16 texts, a checkpoint every 10 steps."""
    return TextClassificationConfig(
        name="little",
        methods=("distance_aware",),
        seeds=2,
        epochs=10.0,
        data=TextClassificationData(
            dataset="text_files",
            directory=str(folder / "prepared"),
            manual_dir=str(write_texts(folder)),
            batch_size=16,
            buckets=1,
        ),
        model=dataclasses.replace(tiny.MODEL, dropout_rate=(0.1,)),
        optimizer=OptimizerConfig(learning_rate=(1e-2,), schedule="linear"),
        output=OutputConfig(
            directory=str(folder / "runs"), log_every=7, evaluate_every=25, checkpoint_every=10
        ),
    )


def run_directory(config: Config) -> Path:
    """Return the directory of the run of a config with one method."""
    return Path(experiment_folder(config) / config.method)


def main(folder: str, *flags: str) -> None:
    """Train with the options of the command line."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background ignores it.
    config = parse_options(make_config(Path(folder)), flags, program="driver")
    jax.config.update("jax_num_cpu_devices", int(os.environ.get("DEVICES", "1")))
    join_processes(config.mesh)
    train(config)


def main_with_log(log: str, *arguments: str) -> None:
    """Call `main` in a forked process, which writes its output to the file `log`."""
    with open(log, "w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    try:
        main(*arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if jax.distributed.is_initialized():  # A forked process calls no exit handlers.
            jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
