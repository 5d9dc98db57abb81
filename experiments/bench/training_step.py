"""Time one training step of a language model on long texts of random tokens, and its memory.

The step is the step of `python -m experiments train`. It is compiled once, ahead of the first call,
so that the compiler's memory estimate belongs to the program that is timed.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from distattn_jax import sharding
from distattn_jax.tasks import LanguageModeling, LanguageModelingConfig
from distattn_jax.train.members import list_members, stack_members
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.state import abstract_state, make_initial_state
from distattn_jax.train.step import make_train_steps
from experiments.bench.speed_trainers import NumberedTokens

SCHEDULE_STEPS = 1000  # steps of the learning rate schedule


class StepTime(NamedTuple):
    """Time and memory of a training step. Bytes are those of one device.

    Attributes:
      compile_seconds: Seconds until the program is traced and compiled.
      seconds: Median duration of a step.
      loss: Loss of the last step.
      argument_bytes: Model, optimizer state and batch.
      output_bytes: New model and optimizer state, which replace the arguments.
      temporary_bytes: All other arrays of the step.
    """

    compile_seconds: float
    seconds: float
    loss: float
    argument_bytes: int | None
    output_bytes: int | None
    temporary_bytes: int | None


class StepProgram:
    """Training step of one model on a batch of random tokens.

    Args:
      config: Options of the model, the optimizer and the batch. `data.longest` is the length of
        each text.
      vocabulary: Size of the vocabulary.
      mesh: Devices.
    """

    def __init__(self, config: LanguageModelingConfig, vocabulary: int, mesh: Mesh):
        tokenizer: Any = NumberedTokens(vocabulary)
        self.task, self.mesh = LanguageModeling(config, tokenizer=tokenizer), mesh
        self.vocabulary = vocabulary
        self.abstract = abstract_state(self.task, mesh)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)
        self.settings = stack_members(list_members(config))[1]
        self._steps: Any = make_train_steps(
            self.task,
            make_schedule(config.optimizer, SCHEDULE_STEPS),
            out_shardings=(shardings.state, shardings.sums),
        )

    def make_stack(self) -> dict[str, np.ndarray]:
        """Return a stack of one batch of random tokens, on the host."""
        data = self.task.config.data
        shape = 1, data.batch_size, data.longest
        tokens = np.random.default_rng(0).integers(3, self.vocabulary, shape, dtype=np.int32)
        lengths = np.full(shape[:2], data.longest, np.int32)
        return {
            "inputs": np.roll(tokens, 1, axis=-1),
            "inputs_length": lengths,
            "tokens": tokens,
            "tokens_length": lengths,
            "weight": np.ones(shape[:2], np.float32),
        }

    def lower(self, platform: str | None = None) -> Any:
        """Trace the program for the devices of the mesh, which may be absent.

        Args:
          platform: Platform of the devices, such as "cuda". None means the default platform.
        """
        everywhere = sharding.replicated(self.mesh)

        def describe(x: Any, place: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

        stack = self.make_stack()
        places = sharding.batch_shardings(stack, self.mesh, self.task.layout, leading=1)
        number = describe(np.int32(0), everywhere)
        traced = self._steps.func.trace(
            *self._steps.args,
            self.abstract.state,
            self.abstract.sums,
            jax.tree.map(lambda x: describe(x, everywhere), self.settings),
            jax.tree.map(describe, stack, places),
            number,
            number,
        )
        return traced.lower(lowering_platforms=platform and (platform,))

    def measure(self, steps: int) -> StepTime:
        """Compile the program, run one step, and time further steps one by one."""
        start = time.perf_counter()
        program = self.lower().compile()
        compiled = time.perf_counter() - start
        training = make_initial_state(self.task, {}, self.abstract)()
        state, sums = training.state, training.sums
        del training  # It holds a second copy of the parameters.
        everywhere = sharding.replicated(self.mesh)
        settings = jax.device_put(self.settings, everywhere)
        stack = sharding.place_batch(self.make_stack(), self.mesh, self.task.layout, leading=1)
        numbers = jax.device_put((jnp.int32(0), jnp.int32(1)), everywhere)
        durations, losses = [], [0.0]
        for _ in range(1 + steps):
            start = time.perf_counter()
            state, sums = program(*self._steps.args, state, sums, settings, stack, *numbers)
            losses.append(float(sums.sums["train/loss"][0]))  # waits for the step
            durations.append(time.perf_counter() - start)
        memory = program.memory_analysis()
        return StepTime(
            compile_seconds=compiled,
            seconds=float(np.median(durations[1:])),
            loss=losses[-1] - losses[-2],
            argument_bytes=memory and memory.argument_size_in_bytes,
            output_bytes=memory and memory.output_size_in_bytes,
            temporary_bytes=memory and memory.temp_size_in_bytes,
        )
