"""Times the training loop against a bare jitted one, and several seeds against one."""

import dataclasses
import tempfile
import time
from collections.abc import Sequence

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding

from distattn_jax import sharding
from distattn_jax.data import Ragged, Table, word_level
from distattn_jax.train import (
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    OutputConfig,
    Trainer,
    TrainState,
)
from distattn_jax.train.classification import TextClassification
from distattn_jax.train.flags import Checked, option, parse
from distattn_jax.train.run import Run
from experiments.commands.train import keep_compiled_programs


@dataclasses.dataclass(frozen=True)
class Speed(Checked):
    """What is timed; the sizes of the model are those of the DA-Transformer paper."""

    method: str = option("distance_aware", "the attention")
    seeds: tuple[int, ...] = option((1, 5), "numbers of models trained side by side")
    warm: int = option(50, "steps before the clock is started")
    steps: int = option(400, "steps that are timed")
    repeats: int = option(3, "how often everything is timed; the median counts")
    length: int = option(48, "tokens of a text; those of AG's News have about as many")
    vocabulary: int = option(30_000, "different tokens")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()


def main(arguments: Sequence[str]) -> None:
    """`speed [--field value ...]`: milliseconds of a step, in the loop and bare."""
    speed = parse(Speed(), list(arguments), program="python -m experiments speed")
    keep_compiled_programs()
    device = jax.devices()[0].device_kind
    print(f"{speed.method}, {speed.length} tokens x {speed.data.batch_size}, on {device}")
    print(f"{'seeds':>5}{'bare ms':>10}{'loop ms':>10}{'loop/bare':>11}{'bare/one seed':>15}")
    one = None
    for seeds in speed.seeds:
        bare, loop = timed(speed, seeds)
        one = one or bare / seeds
        print(f"{seeds:>5}{bare:>10.3f}{loop:>10.3f}{loop / bare:>11.3f}{bare / one:>15.2f}")


def timed(speed: Speed, seeds: int) -> tuple[float, float]:
    """Milliseconds of one step of so many seeds: of the bare jitted step, and of the whole loop."""
    trainer = trainer_of(speed, seeds)
    bare, loop = [], []
    for _ in range(speed.repeats):
        bare.append(bare_milliseconds(trainer, speed))
        loop.append(loop_milliseconds(trainer, speed))
    return float(np.median(bare)), float(np.median(loop))


def trainer_of(speed: Speed, seeds: int) -> Trainer:
    """A trainer that does nothing but train and log, on made-up texts."""
    config = Config(
        seeds=seeds,
        methods=(speed.method,),
        data=speed.data,
        model=speed.model,
        optimizer=speed.optimizer,
        output=OutputConfig(evaluate_every=10**9, checkpoint_every=10**9),
    )
    return Trainer(made_up_task(speed), config, Run(epath.Path(".")), sharding.make_mesh())


class Stopwatch:
    """The milliseconds of a step, measured between two steps with the device idle at both."""

    def __init__(self, speed: Speed):
        self._marks = {speed.warm: 0.0, speed.warm + speed.steps: 0.0}

    def __call__(self, step: int, state: TrainState) -> None:
        """Called after every step."""
        if step in self._marks:
            jax.block_until_ready(state)
            self._marks[step] = time.perf_counter()

    @property
    def milliseconds(self) -> float:
        """Of one step."""
        (first, began), (last, ended) = self._marks.items()
        return 1e3 * (ended - began) / (last - first)


def loop_milliseconds(trainer: Trainer, speed: Speed) -> float:
    """Of the loop as users run it: data, logging, progress."""
    stopwatch = Stopwatch(speed)
    with tempfile.TemporaryDirectory() as folder:
        trainer.run, trainer.steps = Run(epath.Path(folder)), speed.warm + speed.steps
        trainer.fit(stopwatch)
    return stopwatch.milliseconds


def bare_milliseconds(trainer: Trainer, speed: Speed) -> float:
    """Of the jitted step alone, on batches that already lie on the device."""
    stopwatch = Stopwatch(speed)
    everywhere = NamedSharding(trainer.mesh, trainer.task.layout.batch)
    batches = jax.device_put([trainer.batches[i] for i in range(8)], everywhere)
    for batch in batches:
        batch.pop("index")
    training = trainer.birth()
    state, tally = training.state, training.tally
    for step in range(1, speed.warm + speed.steps + 1):
        state, tally = trainer.train_step(state, tally, trainer.settings, batches[step % 8])
        stopwatch(step, state)
    return stopwatch.milliseconds


def made_up_task(speed: Speed) -> TextClassification:
    """Texts of random tokens, all of one length."""
    draw = np.random.default_rng(0)
    tokenizer = word_level([f"w{i}" for i in range(speed.vocabulary - 2)])
    examples = 100 * speed.data.batch_size

    def table(count: int) -> Table:
        values = draw.integers(2, speed.vocabulary, count * speed.length, dtype=np.int32)
        offsets = np.arange(count + 1, dtype=np.int64) * speed.length
        labels = draw.integers(0, 4, count, dtype=np.int32)
        return Table({"text": Ragged(values, offsets), "label": labels})

    tables = {"train": table(examples), "validation": table(speed.data.batch_size)}
    return TextClassification(
        speed.method, speed.model, labels=tuple("abcd"), tokenizer=tokenizer, tables=tables
    )
