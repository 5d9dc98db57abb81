"""Time training steps of several attention variants or guides, for several numbers of seeds.

The jitted step is timed alone and as part of the whole training loop.

Attention variants are timed in a text classifier. Guides (auxiliary losses on the attention) are
timed in the fine-tuning of a BERT with random parameters. Guides that need other inputs besides
tokens cannot be timed by this command.
"""

import dataclasses
import functools
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
from distattn_jax.tasks import (
    GUIDES,
    ModelConfig,
    PretrainedClassification,
    PretrainedClassificationConfig,
    PretrainedModelConfig,
    TextClassification,
    TextClassificationConfig,
    TextTask,
)
from distattn_jax.train import (
    DataConfig,
    OptimizerConfig,
    Options,
    OutputConfig,
    Run,
    Trainer,
    TrainState,
    option,
)
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.options import options_to_dict, parse_options
from distattn_jax.train.run import environment
from distattn_jax.train.step import make_train_step
from experiments.commands.train import enable_compilation_cache
from experiments.papers import stored_results
from experiments.papers.formatting import EMPTY

TIMED_GUIDES = tuple(
    name for name, guide in GUIDES.items() if not guide.columns and not guide.constants
)
NEVER = 10**9  # steps between validations and checkpoints, which are not timed


@dataclasses.dataclass(frozen=True)
class SpeedConfig(Options):
    """Options of the command `speed`. The default sizes are those of the DA-Transformer paper."""

    methods: tuple[str, ...] = option(
        ("distance_aware",),
        "attention variants to time, or guides",
        choices=(*METHODS, *TIMED_GUIDES),
    )
    seeds: tuple[int, ...] = option((1, 5), "numbers of models trained side by side")
    warm: int = option(50, "steps before the clock starts")
    steps: int = option(400, "timed steps")
    repeats: int = option(3, "repetitions of each timing; the median is reported")
    loop: bool = option(True, "also time the whole training loop")
    length: int = option(48, "tokens per text, about as many as in AG's News")
    vocabulary: int = option(30_000, "size of the vocabulary")
    output: str = option(
        "", "folder for speed.json (for guides guiding_speed.json); empty writes no file"
    )
    remat: bool = option(False, "recompute each layer in the backward pass (only for guides)")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = {name in TIMED_GUIDES for name in self.methods}
        self.require(len(kinds) == 1, "methods", "either attentions or guides")

    @property
    def times_guides(self) -> bool:
        """True if the methods are guides, False if they are attention variants."""
        return self.methods[0] in TIMED_GUIDES


def main(arguments: Sequence[str]) -> None:
    """Run `speed [--option value ...]`, and print the milliseconds of a training step.

    "bare" is the jitted step alone; "loop" is a step of the whole training loop.
    """
    config = parse_options(SpeedConfig(), list(arguments), program="python -m experiments speed")
    enable_compilation_cache()
    device = jax.devices()[0].device_kind
    print(f"{config.length} tokens x {config.data.batch_size}, on {device}")
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
        "experiment": "guiding_speed" if config.times_guides else "speed",
        "environment": environment(),
        "config": options_to_dict(config),
    }
    lines = []
    for method in config.methods:
        one_seed = None
        for seeds in config.seeds:
            timing = time_method(config, method, seeds)
            one_seed = one_seed or timing.bare / seeds
            figures = (
                timing.bare,
                timing.loop,
                timing.loop and timing.loop / timing.bare,
                timing.bare / one_seed,
                timing.peak_bytes and timing.peak_bytes / 2**20,
            )
            cells = (f"{EMPTY if x is None else format(x, '.3f'):>14}" for x in figures)
            print(f"{method:<28}{timing.parameters:>14,}{seeds:>14}" + "".join(cells))
            lines.append(timing._asdict())
            if config.output:  # Written after every line, in case the next one fails.
                written = stored_results.write_results(
                    stored_results.round_numbers({**about, "lines": lines}), config.output
                )
    if config.output:
        print(written)


class Timing(NamedTuple):
    """Time of a training step that updates several models side by side.

    Attributes:
      method: Name of the attention variant or guide.
      parameters: Number of parameters of a single model.
      seeds: Number of models.
      bare: Milliseconds of the jitted step alone.
      loop: Milliseconds of a step of the training loop; None if not timed.
      peak_bytes: Device memory that the compiler estimates, in bytes; None if it reports none.
    """

    method: str
    parameters: int
    seeds: int
    bare: float
    loop: float | None
    peak_bytes: int | None


def time_method(config: SpeedConfig, method: str, seeds: int) -> Timing:
    """Measure a training step that updates `seeds` models of one attention variant or guide."""
    trainer = make_speed_trainer(config, method, seeds)
    bare_step = make_bare_step(trainer)
    bare, loop = [], []
    for _ in range(config.repeats):
        bare.append(bare_milliseconds(trainer, bare_step, config))
        if config.loop:
            loop.append(loop_milliseconds(trainer, config))
    params = jax.eval_shape(trainer.initial_state).state.params
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params)) // seeds
    loop_median = float(np.median(loop)) if loop else None
    return Timing(
        method, parameters, seeds, float(np.median(bare)), loop_median, trainer.step_bytes()
    )


def make_speed_trainer(config: SpeedConfig, method: str, seeds: int) -> Trainer:
    """Return a trainer on random texts. It neither validates nor saves before its last step."""
    make = make_fine_tuning if config.times_guides else make_text_classification
    task, tables = make(config, method, seeds)
    return Trainer(task, tables, sharding.make_mesh(), steps=config.warm + config.steps)


class Stopwatch:
    """Callback that measures the mean time of a training step.

    The stopwatch waits until the device has finished the step before it stores the time.
    """

    def __init__(self, config: SpeedConfig):
        self._pending = [config.warm, config.warm + config.steps]
        self._times: list[tuple[int, float]] = []

    def __call__(self, step: int, state: TrainState) -> None:
        """Store the time after the last warm-up step and after the last timed step."""
        if self._pending and step >= self._pending[0]:
            jax.block_until_ready(state)
            self._pending.pop(0)
            self._times.append((step, time.perf_counter()))

    @property
    def milliseconds(self) -> float:
        """Mean milliseconds of a timed step."""
        (first, start), (last, end) = self._times
        return 1e3 * (end - start) / (last - first)


def loop_milliseconds(trainer: Trainer, config: SpeedConfig) -> float:
    """Return the mean milliseconds of a training-loop step, with data, logging and progress."""
    stopwatch = Stopwatch(config)
    with tempfile.TemporaryDirectory() as folder:
        trainer.fit(Run(epath.Path(folder)), stopwatch)
    return stopwatch.milliseconds


def make_bare_step(trainer: Trainer) -> Any:
    """Return the jitted training step of one batch, which the training loop does not use."""
    schedule = make_schedule(trainer.config.optimizer, trainer.steps)
    step = make_train_step(trainer.task, schedule, group=trainer.group)
    return functools.partial(jax.jit(step, donate_argnums=(1, 2)), {})


def bare_milliseconds(trainer: Trainer, bare_step: Any, config: SpeedConfig) -> float:
    """Return the mean milliseconds of the jitted step alone, on batches already on the device."""
    stopwatch = Stopwatch(config)
    placement = NamedSharding(trainer.mesh, trainer.task.layout.batch)
    batches = jax.device_put([trainer.batches[i] for i in range(8)], placement)
    for batch in batches:
        batch.pop("index")
    training = trainer.initial_state()
    state, sums = training.state, training.sums
    for step in range(1, config.warm + config.steps + 1):
        state, sums = bare_step(state, sums, trainer.settings, batches[step % 8])
        stopwatch(step, state)
    return stopwatch.milliseconds


def make_text_classification(
    config: SpeedConfig, method: str, seeds: int
) -> tuple[TextTask, dict[str, Table]]:
    """Return a text classification task that uses `method`, and tables of random tokens."""
    task = TextClassification(
        TextClassificationConfig(
            methods=(method,),
            seeds=seeds,
            data=_text_data(TextClassificationConfig().data, config),
            model=config.model,
            optimizer=config.optimizer,
            output=OutputConfig(evaluate_every=NEVER, checkpoint_every=NEVER),
        ),
        tokenizer=make_tokenizer(config),
        labels=tuple("abcd"),
    )
    return task, make_tables(config, "text")


def make_fine_tuning(
    config: SpeedConfig, guide: str, seeds: int
) -> tuple[TextTask, dict[str, Table]]:
    """Return a fine-tuning task, and tables of random tokens.

    The model is a BERT with random parameters. The training loss includes the guide, an auxiliary
    loss on the attention.
    """
    model = config.model
    pretrained = PretrainedConfig(
        family="bert",
        vocabulary=config.vocabulary,
        features=model.features,
        layers=model.layers,
        heads=model.heads,
        hidden_features=model.hidden_features,
        positions=config.length,
        types=2,
        embedding_features=model.features,
        groups=model.layers,
        pooler=False,
    )
    task = PretrainedClassification(
        PretrainedClassificationConfig(
            methods=(guide,),
            seeds=seeds,
            data=_text_data(PretrainedClassificationConfig().data, config),
            model=PretrainedModelConfig(
                dropout_rate=model.dropout_rate,
                dtype=model.dtype,
                implementation=model.implementation,
                remat=config.remat,
            ),
            optimizer=config.optimizer,
            output=OutputConfig(evaluate_every=NEVER, checkpoint_every=NEVER),
        ),
        tokenizer=make_tokenizer(config),
        labels=tuple("abc"),
        data={"pretrained": {"config": dataclasses.asdict(pretrained)}},
    )
    return task, make_tables(config, "tokens", "types")


def _text_data(data: Any, config: SpeedConfig) -> Any:
    """Return the data options of a task, changed for the timing.

    The batch options are copied from `config`. The maximum text length is raised to `config.length`
    if it is smaller.
    """
    batches = dataclasses.asdict(config.data)
    return dataclasses.replace(data, longest=max(data.longest, config.length), **batches)


def make_tokenizer(config: SpeedConfig) -> Tokenizer:
    """Return a tokenizer with a vocabulary of the configured size."""
    return train_word_level([f"w{i}" for i in range(config.vocabulary - 2)])


def make_tables(config: SpeedConfig, tokens: str, types: str = "") -> dict[str, Table]:
    """Return tables of random tokens and labels, for training and validation.

    Args:
      config: Options, of which the length, the vocabulary and the batch size are used.
      tokens: Name of the column of tokens.
      types: Name of the column of token types, all 0; empty for no such column.
    """
    random = np.random.default_rng(0)

    def make_table(count: int) -> Table:
        values = random.integers(2, config.vocabulary, count * config.length, dtype=np.int32)
        offsets = np.arange(count + 1, dtype=np.int64) * config.length
        columns: dict[str, Any] = {tokens: Ragged(values, offsets)}
        if types:
            columns[types] = Ragged(np.zeros_like(values), offsets)
        return Table({**columns, "label": random.integers(0, 3, count, dtype=np.int32)})

    size = config.data.batch_size
    return {"train": make_table(100 * size), "validation": make_table(size)}
