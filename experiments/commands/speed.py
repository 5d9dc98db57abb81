"""Times the training loop against a bare jitted one, methods against each other, and seeds.

Methods are attentions, in a text classifier, or guides, in the fine-tuning of a BERT: its sizes are
those of the options, its parameters drawn. Of guides, those that need nothing but tokens.
"""

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import NamedSharding
from tokenizers import Tokenizer

from distattn_jax import sharding
from distattn_jax.data import Ragged, Table, train_word_level
from distattn_jax.models import METHODS, PretrainedConfig
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
from distattn_jax.train.flags import Checked, option, parse, to_dict
from distattn_jax.train.guides import GUIDES
from distattn_jax.train.pretrained_classification import PretrainedClassification
from distattn_jax.train.run import Run, environment
from experiments.commands.train import keep_compiled_programs
from experiments.papers import stored_results
from experiments.papers.formatting import EMPTY

TIMED_GUIDES = tuple(
    name for name, guide in GUIDES.items() if not guide.columns and not guide.constants
)


@dataclasses.dataclass(frozen=True)
class Speed(Checked):
    """What is timed; the sizes of the model are those of the DA-Transformer paper."""

    methods: tuple[str, ...] = option(
        ("distance_aware",),
        "the attentions timed, or the guides",
        choices=(*METHODS, *TIMED_GUIDES),
    )
    seeds: tuple[int, ...] = option((1, 5), "numbers of models trained side by side")
    warm: int = option(50, "steps before the clock is started")
    steps: int = option(400, "steps that are timed")
    repeats: int = option(3, "how often everything is timed; the median counts")
    loop: bool = option(True, "whether the whole loop is timed, too")
    length: int = option(48, "tokens of a text; those of AG's News have about as many")
    vocabulary: int = option(30_000, "different tokens")
    output: str = option(
        "", "folder for speed.json (of guides, guiding_speed.json), for reports; empty: none"
    )
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = {name in TIMED_GUIDES for name in self.methods}
        self.require(len(kinds) == 1, "methods", "either attentions or guides")

    @property
    def guides(self) -> bool:
        """Whether it is guides that are timed."""
        return self.methods[0] in TIMED_GUIDES


def main(arguments: Sequence[str]) -> None:
    """`speed [--field value ...]`: milliseconds of a step, in the loop and bare."""
    speed = parse(Speed(), list(arguments), program="python -m experiments speed")
    keep_compiled_programs()
    device = jax.devices()[0].device_kind
    print(f"{speed.length} tokens x {speed.data.batch_size}, on {device}")
    columns = (
        "parameters",
        "seeds",
        "bare ms",
        "loop ms",
        "loop/bare",
        "bare/one seed",
        "peak MiB",
    )
    print(f"{'method':<28}" + "".join(f"{name:>14}" for name in columns))
    about = {
        "experiment": "guiding_speed" if speed.guides else "speed",
        "environment": environment(),
        "config": to_dict(speed),
    }
    lines = []
    for method in speed.methods:
        one = None
        for seeds in speed.seeds:
            line = timed(speed, method, seeds)
            one = one or line.bare / seeds
            figures = (
                line.bare,
                line.loop,
                line.loop and line.loop / line.bare,
                line.bare / one,
                line.peak_bytes and line.peak_bytes / 2**20,
            )
            cells = (f"{EMPTY if x is None else format(x, '.3f'):>14}" for x in figures)
            print(f"{method:<28}{line.parameters:>14,}{seeds:>14}" + "".join(cells))
            lines.append(line._asdict())
            if speed.output:  # after every line: what is timed is kept if the next is not
                written = stored_results.write_results(
                    stored_results.round_numbers({**about, "lines": lines}), speed.output
                )
    if speed.output:
        print(written)


class Timed(NamedTuple):
    """One step of so many models of a method, in milliseconds."""

    method: str
    parameters: int
    seeds: int
    bare: float
    loop: float | None
    peak_bytes: int | None  # of a device's memory, as the compiler says; None: it does not


def timed(speed: Speed, method: str, seeds: int) -> Timed:
    """The bare jitted step, and the step of the whole loop."""
    trainer = trainer_of(speed, method, seeds)
    bare, loop = [], []
    for _ in range(speed.repeats):
        bare.append(bare_milliseconds(trainer, speed))
        if speed.loop:
            loop.append(loop_milliseconds(trainer, speed))
    leaves = jax.tree.leaves(trainer.birth.like.state.params)
    parameters = sum(leaf.size for leaf in leaves) // seeds
    of_loop = float(np.median(loop)) if loop else None
    of_step = float(np.median(bare))
    return Timed(method, parameters, seeds, of_step, of_loop, trainer.step_bytes())


def trainer_of(speed: Speed, method: str, seeds: int) -> Trainer:
    """A trainer that does nothing but train and log, on made-up texts."""
    config = Config(
        seeds=seeds,
        methods=(method,),
        data=speed.data,
        model=speed.model,
        optimizer=speed.optimizer,
        output=OutputConfig(evaluate_every=10**9, checkpoint_every=10**9),
    )
    task = (made_up_fine_tuning if speed.guides else made_up_task)(speed, method)
    return Trainer(task, config, Run(epath.Path(".")), sharding.make_mesh())


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


def made_up_task(speed: Speed, method: str) -> TextClassification:
    """Texts of random tokens, all of one length."""
    return TextClassification(
        method,
        speed.model,
        labels=tuple("abcd"),
        tokenizer=made_up_tokenizer(speed),
        tables=made_up_tables(speed, "text"),
    )


def made_up_fine_tuning(speed: Speed, guide: str) -> PretrainedClassification:
    """The same for a BERT."""
    model = speed.model
    pretrained = PretrainedConfig(
        family="bert",
        vocabulary=speed.vocabulary,
        features=model.features,
        layers=model.layers,
        heads=model.heads,
        hidden_features=model.hidden_features,
        positions=speed.length,
        types=2,
        embedding_features=model.features,
        groups=model.layers,
        pooler=False,
    )
    return PretrainedClassification(
        guide,
        model,
        labels=tuple("abc"),
        tokenizer=made_up_tokenizer(speed),
        tables=made_up_tables(speed, "tokens", "types"),
        pretrained=pretrained,
    )


def made_up_tokenizer(speed: Speed) -> Tokenizer:
    """As many words as there should be tokens."""
    return train_word_level([f"w{i}" for i in range(speed.vocabulary - 2)])


def made_up_tables(speed: Speed, tokens: str, types: str = "") -> dict[str, Table]:
    """Examples of random tokens, and of types that are all 0, under these names."""
    draw = np.random.default_rng(0)

    def table(count: int) -> Table:
        values = draw.integers(2, speed.vocabulary, count * speed.length, dtype=np.int32)
        offsets = np.arange(count + 1, dtype=np.int64) * speed.length
        columns: dict[str, Any] = {tokens: Ragged(values, offsets)}
        if types:
            columns[types] = Ragged(np.zeros_like(values), offsets)
        return Table({**columns, "label": draw.integers(0, 3, count, dtype=np.int32)})

    return {"train": table(100 * speed.data.batch_size), "validation": table(speed.data.batch_size)}
