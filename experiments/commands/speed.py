"""Time training steps of several attention variants or guides, for several numbers of seeds.

The jitted step is timed alone and as part of the whole training loop.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from distattn_jax.train.options import options_to_dict, parse_options
from distattn_jax.train.run import environment
from experiments.bench.speed_trainers import SpeedConfig, default_config, make_speed_trainer
from experiments.bench.training import (
    Steps,
    make_bare_step,
    step_seconds,
    time_bare_step,
    time_loop,
    time_parts,
)
from experiments.commands.train import enable_compilation_cache
from experiments.papers import stored_results
from experiments.papers.formatting import EMPTY


def main(arguments: Sequence[str]) -> None:
    """Run `speed [--option value ...]`, and print the milliseconds of a training step.

    "bare" is the jitted step alone; "loop" is a step of the whole training loop; "steps/call" is
    the number of steps that the loop takes in one call of the compiled program.
    """
    config = parse_options(default_config(), list(arguments), program="python -m experiments speed")
    enable_compilation_cache()
    device = jax.devices()[0].device_kind
    print(f"{config.length} tokens x {config.data.batch_size}, on {device}")
    columns = (
        *("parameters", "seeds", "bare ms", "loop ms"),
        *("loop/bare", "steps/call", "bare/one seed", "peak MiB"),
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
                timing.steps_per_call,
                timing.bare / one_seed,
                timing.peak_bytes and timing.peak_bytes / 2**20,
            )
            cells = (f"{EMPTY if x is None else format(x, '.3f'):>14}" for x in figures)
            print(f"{method:<28}{timing.parameters:>14,}{seeds:>14}" + "".join(cells), flush=True)
            for name, milliseconds in (timing.parts or {}).items():
                print(f"    {name:<52}{milliseconds:>14.3f}", flush=True)
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
      steps_per_call: Number of steps that the training loop makes in one call of the program; None
        if not timed.
      parts: Dict from the name of each part of the training loop to its milliseconds per step; None
        if not timed.
    """

    method: str
    parameters: int
    seeds: int
    bare: float
    loop: float | None
    peak_bytes: int | None
    steps_per_call: float | None = None
    parts: dict[str, float] | None = None


def time_method(config: SpeedConfig, method: str, seeds: int) -> Timing:
    """Measure a training step that updates `seeds` models of one attention variant or guide."""
    trainer = make_speed_trainer(config, method, seeds)
    bare_step, steps = make_bare_step(trainer), Steps(config.warm, config.steps)
    announce_duration(config, step_seconds(trainer, bare_step))
    bare, loop = [], []
    for _ in range(config.repeats):
        bare.append(time_bare_step(trainer, bare_step, steps))
        if config.loop:
            loop.append(time_loop(trainer, steps))
    params = jax.eval_shape(trainer.initial_state).state.params
    return Timing(
        method=method,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(params)) // seeds,
        seeds=seeds,
        bare=float(np.median(bare)),
        loop=float(np.median([watch.milliseconds for watch in loop])) if loop else None,
        peak_bytes=trainer.step_bytes(),
        steps_per_call=loop[0].steps_per_call if loop else None,
        parts=dict(time_parts(trainer, bare_step, steps)) if config.parts else None,
    )


def announce_duration(config: SpeedConfig, seconds: float) -> None:
    """Print how long a line of the table takes, if this is longer than a minute.

    Args:
      config: Options, of which the numbers of steps and repetitions are used.
      seconds: Duration of a step.
    """
    steps = (config.warm + config.steps) * config.repeats * (2 if config.loop else 1)
    if steps * seconds > 60:
        lines = len(config.methods) * len(config.seeds)
        print(
            f"A step takes {seconds:.2g} s, and the next of {lines} lines about "
            f"{steps * seconds / 60:.0f} minutes. Smaller --steps, --warm or --repeats take less.",
            flush=True,
        )
