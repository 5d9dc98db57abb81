"""Trainers on random texts, for the command `speed`, which times their training steps.

Attention variants are timed in a text classifier. Guides (auxiliary losses on the attention) are
timed while a BERT with random parameters is fine-tuned. Guides that need more inputs than tokens
cannot be timed.
"""

import dataclasses
from typing import Any, cast

import jax
import numpy as np

from distattn_jax import sharding
from distattn_jax.data import Ragged, Table
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
from distattn_jax.train import OptimizerConfig, Options, OutputConfig, Trainer, option

TIMED_GUIDES = tuple(
    name for name, guide in GUIDES.items() if not guide.columns and not guide.constants
)
NEVER = 10**9  # steps between validations and checkpoints, which are not timed


@dataclasses.dataclass(frozen=True)
class BatchConfig(Options):
    """Options that define how examples are divided into batches."""

    batch_size: int = option(64, "number of examples in a batch, over all devices", minimum=1)
    buckets: int = option(4, "number of different lengths that batches are padded to", minimum=1)
    seed: int = option(0, "seed of the order of examples", minimum=0, maximum=2**32 - 1)


@dataclasses.dataclass(frozen=True)
class SpeedConfig(Options):
    """Options of the command `speed`. The default sizes are those of the DA-Transformer paper."""

    methods: tuple[str, ...] = option(
        ("distance_aware",),
        "attention variants to time, or guides",
        choices=(*METHODS, *TIMED_GUIDES),
    )
    seeds: tuple[int, ...] = option((1, 5), "numbers of models trained side by side")
    warm: int = option(50, "steps before the clock starts; fewer on a CPU")
    steps: int = option(400, "timed steps; fewer on a CPU")
    repeats: int = option(3, "repetitions of each timing, with their median; fewer on a CPU")
    loop: bool = option(True, "also time the whole training loop")
    parts: bool = option(False, "also time the parts of the training loop")
    length: int = option(48, "tokens per text, about as many as in AG's News")
    shortest: int = option(0, "tokens of the shortest text; 0 for texts of equal length")
    vocabulary: int = option(30_000, "size of the vocabulary")
    output: str = option(
        "", "folder for speed.json (for guides guiding_speed.json); empty writes no file"
    )
    remat: bool = option(False, "recompute each layer in the backward pass (only for guides)")
    data: BatchConfig = BatchConfig()
    model: ModelConfig = ModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "seeds", "warm", "steps", "repeats", "length")
        self.require_at_least(3, "vocabulary")
        self.require(0 <= self.shortest <= self.length, "shortest", "from 0 to --length")
        kinds = {name in TIMED_GUIDES for name in self.methods}
        self.require(len(kinds) == 1, "methods", "either attentions or guides")

    @property
    def times_guides(self) -> bool:
        """True if the methods are guides, losses on the attention. False for attention variants."""
        return self.methods[0] in TIMED_GUIDES


def default_config() -> SpeedConfig:
    """Return the default options. On a CPU, where a step takes seconds, few steps are timed."""
    if jax.default_backend() == "cpu":
        return SpeedConfig(warm=2, steps=10, repeats=1)
    return SpeedConfig()


def make_speed_trainer(config: SpeedConfig, method: str, seeds: int) -> Trainer:
    """Return a trainer on random texts that neither validates nor saves before its last step."""
    make = make_fine_tuning if config.times_guides else make_text_classification
    task, tables = make(config, method, seeds)
    return Trainer(task, tables, sharding.make_mesh(), steps=config.warm + config.steps)


def make_text_classification(
    config: SpeedConfig, method: str, seeds: int
) -> tuple[TextTask, dict[str, Table]]:
    """Return a text classification task that uses `method`, and tables of random tokens."""
    task = TextClassification(
        TextClassificationConfig(
            model=config.model,
            **_shared_options(config, method, seeds, TextClassificationConfig().data),
        ),
        tokenizer=cast(Any, NumberedTokens(config.vocabulary)),
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
            model=PretrainedModelConfig(
                dropout_rate=model.dropout_rate,
                dtype=model.dtype,
                implementation=model.implementation,
                remat=config.remat,
            ),
            **_shared_options(config, guide, seeds, PretrainedClassificationConfig().data),
        ),
        tokenizer=cast(Any, NumberedTokens(config.vocabulary)),
        labels=tuple("abc"),
        data={"pretrained": {"config": dataclasses.asdict(pretrained)}},
    )
    return task, make_tables(config, "tokens", "types")


def _shared_options(config: SpeedConfig, method: str, seeds: int, data: Any) -> dict[str, Any]:
    """Return the options of a task that are taken from the options of the command `speed`.

    Args:
      config: Options of the command `speed`.
      method: Attention variant or guide.
      seeds: Number of models.
      data: Default data options of the task. The batch options of `config` replace the batch
        options in `data`. If `config.length` is above the maximum length of a text in `data`, it
        replaces this maximum.
    """
    longest, batches = max(data.longest, config.length), dataclasses.asdict(config.data)
    return {
        "methods": (method,),
        "seeds": seeds,
        "data": dataclasses.replace(data, longest=longest, **batches),
        "optimizer": config.optimizer,
        "output": OutputConfig(evaluate_every=NEVER, checkpoint_every=NEVER),
    }


class NumberedTokens:
    """Placeholder for a tokenizer that only knows its size, because texts are random token ids.

    Args:
      size: Number of tokens.
    """

    def __init__(self, size: int):
        self._size = size

    def get_vocab_size(self) -> int:
        """Return the number of tokens."""
        return self._size

    def token_to_id(self, token: str) -> None:
        """Return None, because the tokens have no names."""


def make_tables(config: SpeedConfig, tokens: str, types: str = "") -> dict[str, Table]:
    """Return tables of random tokens and labels, for training and validation.

    Args:
      config: Options, of which the length, the vocabulary and the batch size are used.
      tokens: Name of the column of tokens.
      types: Name of the column of token types, all 0; empty for no such column.
    """
    random = np.random.default_rng(0)

    def make_table(count: int) -> Table:
        lengths = random.integers(config.shortest or config.length, config.length + 1, count)
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        values = random.integers(2, config.vocabulary, offsets[-1], dtype=np.int32)
        columns: dict[str, Any] = {tokens: Ragged(values, offsets)}
        if types:
            columns[types] = Ragged(np.zeros_like(values), offsets)
        return Table({**columns, "label": random.integers(0, 3, count, dtype=np.int32)})

    size = config.data.batch_size
    return {"train": make_table(100 * size), "validation": make_table(size)}
