"""Text classifier that compiles in seconds, random texts for it, and a few steps of training."""

import jax
import numpy as np

from distattn_jax import sharding
from distattn_jax.data import Ragged, Table, train_word_level
from distattn_jax.tasks import ModelConfig, TextClassification, TextClassificationConfig
from distattn_jax.train import OptimizerConfig
from distattn_jax.train.members import list_members, stack_members
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.state import abstract_state, make_initial_state
from distattn_jax.train.step import make_train_steps

MODEL = ModelConfig(
    heads=2,
    head_features=4,
    features=8,
    hidden_features=8,
    embedding_features=8,
    pooling_features=4,
    dropout_rate=(0.0,),
)
# A large epsilon keeps Adam from turning the rounding errors of a gradient into whole steps.
OPTIMIZER = OptimizerConfig(learning_rate=(0.1,), epsilon=0.01)
LABELS = ("a", "b", "c")
STACKED = 6  # batches in a stack
TOKENIZER = train_word_level(["k l m n o p q r s t"])  # a vocabulary of 12


def make_config(*, model=MODEL, optimizer=OPTIMIZER, **fields):
    return TextClassificationConfig(model=model, optimizer=optimizer, **fields)


def make_task(config=None, **arguments):
    """Return a task without data; by default with the config of `make_config()`."""
    arguments = {"labels": LABELS, "tokenizer": TOKENIZER, **arguments}
    return TextClassification(config or make_config(), **arguments)


def make_table(lengths, *, seed=0):
    """Return random texts of these lengths, with random labels."""
    draw = np.random.default_rng(seed)
    values = draw.integers(2, 12, sum(lengths), dtype=np.int32)
    labels = draw.integers(0, len(LABELS), len(lengths), dtype=np.int32)
    return Table({"text": Ragged(values, np.cumsum([0, *lengths])), "label": labels})


def make_batch(lengths, *, seed=0, size=4, length=6):
    """Return a batch of random texts, filled up to its size with rows of weight 0."""
    indices = np.arange(size)
    indices[len(lengths) :] = -1
    rows = make_table(lengths, seed=seed).take(indices, length)
    return {**rows, "weight": (indices >= 0).astype(np.float32)}


def random_parameters(task):
    """Return random parameters of all members, made without compiling a program."""
    draw = np.random.default_rng(0)
    shapes = abstract_state(task, sharding.make_mesh(1, 1)).state.params
    return jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(leaf.dtype) / 2, shapes)


def make_state(task, initial_parameters=None):
    """Return the state of all members before the first step, on one device."""
    given = initial_parameters or {}
    abstract = abstract_state(task, sharding.make_mesh(1, 1), given)
    return make_initial_state(task, given, abstract)()


def make_step(task, **arguments):
    """Return the training step of all members on one batch, for a run of 10 steps."""
    steps = make_train_steps(task, make_schedule(task.config.optimizer, 10), **arguments)

    def step(state, sums, settings, batch):
        stack = {name: np.stack([column] * STACKED) for name, column in batch.items()}
        return steps(state, sums, settings, stack, 0, 1)

    return step


def train(step, training, config, batches):
    """Return the state and the metric sums after these batches; the step donates its state."""
    state, sums = training.state, training.sums
    _, settings = stack_members(list_members(config))
    for batch in batches:
        state, sums = step(state, sums, settings, batch)
    return state, sums
