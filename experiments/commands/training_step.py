"""Time a training step of a language model on a long text, in tokens per second, and its memory."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from distattn_jax import sharding
from distattn_jax.models import METHODS
from distattn_jax.tasks import LanguageModelConfig, LanguageModelingConfig
from distattn_jax.train import MeshConfig, OptimizerConfig
from distattn_jax.train.config import MAX_BATCH
from distattn_jax.train.options import Options, option, parse_options
from experiments.bench.training_step import StepProgram, StepTime
from experiments.commands._compilation_cache import enable_compilation_cache
from experiments.commands._json import keep_output_for_json, print_json
from experiments.papers.formatting import EMPTY
from experiments.recipes import long_language_model

LONG, SHORT = 1_048_576, 2048  # tokens of a text by default, on a GPU or TPU and on a CPU
RECIPE = long_language_model.get_config()


@dataclasses.dataclass(frozen=True)
class TrainingStepConfig(Options):
    """Options of the command. The model is that of the recipe long_language_model."""

    tokens: int = option(LONG, f"tokens of a text; on a CPU {SHORT} by default", minimum=1)
    batch_size: int = option(1, "number of texts, over all devices", minimum=1, maximum=MAX_BATCH)
    methods: tuple[str, ...] = option(
        ("distance_aware",), "attention variants to time", choices=tuple(METHODS)
    )
    vocabulary: int = option(16_384, "size of the vocabulary", minimum=4)
    steps: int = option(5, "timed steps, after one that is not timed", minimum=1)
    json: bool = option(False, "print one JSON document instead of text, for programs")
    model: LanguageModelConfig = RECIPE.model
    optimizer: OptimizerConfig = RECIPE.optimizer
    mesh: MeshConfig = MeshConfig(data=1)


def main(arguments: Sequence[str]) -> None:
    """Run `training_step [--option value ...]`, and print seconds, tokens per second and memory."""
    default = TrainingStepConfig(tokens=SHORT if jax.default_backend() == "cpu" else LONG)
    config = parse_options(default, list(arguments), program="python -m experiments training_step")
    enable_compilation_cache()
    lines = []
    with keep_output_for_json(config.json):
        mesh = sharding.make_mesh(
            config.mesh.data, config.mesh.model, sequence=config.mesh.sequence
        )
        axes = ", ".join(f"{name} {size}" for name, size in mesh.shape.items())
        print(
            f"{config.batch_size} x {config.tokens:,} tokens, vocabulary {config.vocabulary:,}, "
            f"{config.model.dtype}, on {mesh.size} x {jax.devices()[0].device_kind} ({axes})"
        )
        columns = ("compile s", "step s", "tokens/s", "arguments", "outputs", "temporaries", "loss")
        print(f"{'method':<28}" + "".join(f"{name:>13}" for name in columns))
        for method in config.methods:
            timed = StepProgram(make_config(config, method), config.vocabulary, mesh).measure(
                config.steps
            )
            lines.append({"method": method, **describe(config, timed)})
            print(format_line(lines[-1]), flush=True)
    if config.json:
        print_json({"lines": lines})


def make_config(config: TrainingStepConfig, method: str) -> LanguageModelingConfig:
    """Return the config of a run that makes the step of one method."""
    data = dataclasses.replace(RECIPE.data, longest=config.tokens, batch_size=config.batch_size)
    return dataclasses.replace(
        RECIPE,
        methods=(method,),
        data=data,
        model=config.model,
        optimizer=config.optimizer,
        mesh=config.mesh,
    ).for_method(method)


def describe(config: TrainingStepConfig, timed: StepTime) -> dict[str, Any]:
    """Return the figures of a step, with its tokens per second."""
    rate = config.batch_size * config.tokens / timed.seconds
    return {**timed._asdict(), "tokens_per_second": rate}


def format_line(line: dict[str, Any]) -> str:
    """Return a line of the table, with memory in MiB."""
    sizes = (line[f"{name}_bytes"] for name in ("argument", "output", "temporary"))
    cells = (
        f"{line['compile_seconds']:.1f}",
        f"{line['seconds']:.3f}",
        f"{line['tokens_per_second']:,.0f}",
        *(EMPTY if size is None else f"{size / 2**20:,.0f} MiB" for size in sizes),
        f"{line['loss']:.3f}",
    )
    return f"{line['method']:<28}" + "".join(f"{cell:>13}" for cell in cells)
