"""Training step of a model with the sizes of BERT base, to be compiled for TPUs without a TPU.

The model classifies texts of 512 tokens. It has 12 layers of 12 distance-aware heads, and computes
in bfloat16. Its step is the step of `python -m experiments train`, with dropout and Adam.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from distattn_jax import sharding
from distattn_jax.data import train_word_level
from distattn_jax.tasks import ModelConfig, TextClassification, TextClassificationConfig
from distattn_jax.train import OptimizerConfig
from distattn_jax.train.members import list_members, stack_members
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.state import abstract_state
from distattn_jax.train.step import make_train_steps

VOCABULARY = 30_522
STEPS = 1000  # of the learning rate schedule
MODEL = ModelConfig(
    layers=12,
    heads=12,
    head_features=64,
    features=768,
    hidden_features=3072,
    embedding_features=768,
    dropout_rate=(0.1,),
    dtype="bfloat16",
)


def lower_training_step(batch: int, length: int, mesh: Mesh) -> Any:
    """Lower the program that trains the model on a stack of batches, one after the other.

    Args:
      batch: Number of texts in a batch, over all devices.
      length: Number of tokens of a text.
      mesh: Devices, with the axes `data` and `model`.
    """
    words = " ".join(str(number) for number in range(VOCABULARY - 2))  # and two special tokens
    config = TextClassificationConfig(model=MODEL, optimizer=OptimizerConfig())
    task = TextClassification(config, labels=("a", "b"), tokenizer=train_word_level([words]))
    abstract = abstract_state(task, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    steps = make_train_steps(
        task,
        make_schedule(config.optimizer, STEPS),
        out_shardings=(shardings.state, shardings.sums),
    )
    settings = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding.replicated(mesh)),
        stack_members(list_members(config))[1],
    )
    place = NamedSharding(mesh, PartitionSpec(None, *task.layout.batch))
    columns = {"text": (length,), "text_length": (), "label": (), "weight": ()}
    stack = {
        name: jax.ShapeDtypeStruct(
            (1, batch, *shape), jnp.float32 if name == "weight" else jnp.int32, sharding=place
        )
        for name, shape in columns.items()
    }
    number = jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding.replicated(mesh))
    program: Any = steps.func
    traced = program.trace(
        *steps.args, abstract.state, abstract.sums, settings, stack, number, number
    )
    return traced.lower(lowering_platforms=("tpu",))
