"""A text classifier that compiles in seconds, its texts, and a few steps of it, for tests here."""

import jax.numpy as jnp
import numpy as np

from distattn_jax import sharding
from distattn_jax.data import Ragged, Table, train_word_level
from distattn_jax.train import Config, ModelConfig, OptimizerConfig
from distattn_jax.train.classification import TextClassification
from distattn_jax.train.members import members_of, stacked
from distattn_jax.train.optimizer import direction_of, schedule_of
from distattn_jax.train.state import Birth, graph_of
from distattn_jax.train.step import train_step_of

MODEL = ModelConfig(
    heads=2,
    head_features=4,
    features=8,
    hidden_features=8,
    embedding_features=8,
    pooling_features=4,
    dropout_rate=(0.0,),
)
# With a large epsilon a gradient that is nothing but rounding does not become a whole step.
OPTIMIZER = OptimizerConfig(learning_rate=(0.1,), epsilon=0.01)
LABELS = ("a", "b", "c")
TOKENIZER = train_word_level(["k l m n o p q r s t"])  # a vocabulary of 12


def config_of(*, model=MODEL, optimizer=OPTIMIZER, **fields):
    return Config(model=model, optimizer=optimizer, **fields)


def task_of(**arguments):
    return TextClassification(
        "distance_aware",
        MODEL,
        **{"labels": LABELS, "tokenizer": TOKENIZER, "tables": {}, **arguments},
    )


def table_of(lengths, *, seed=0):
    """Random texts of these lengths, with random labels."""
    draw = np.random.default_rng(seed)
    values = draw.integers(2, 12, sum(lengths), dtype=np.int32)
    labels = draw.integers(0, len(LABELS), len(lengths), dtype=np.int32)
    return Table({"text": Ragged(values, np.cumsum([0, *lengths])), "label": labels})


def batch_of(lengths, *, seed=0, size=4, length=6):
    """A batch of random texts, filled up to its size with rows of weight 0."""
    indices = np.arange(size)
    indices[len(lengths) :] = -1
    rows = table_of(lengths, seed=seed).take(indices, length)
    weight = (indices >= 0).astype(np.float32)
    return {name: jnp.asarray(column) for name, column in {**rows, "weight": weight}.items()}


def birth_of(config, task):
    return Birth(task, direction_of(config.optimizer), members_of(config), sharding.make_mesh(1, 1))


def step_of(config, task, **arguments):
    """The step of all members, as `Trainer` makes it, for a run of 10 steps."""
    optimizer, schedule = direction_of(config.optimizer), schedule_of(config.optimizer, 10)
    dropout = max(config.model.dropout_rate) > 0
    return train_step_of(task, graph_of(task), optimizer, schedule, dropout=dropout, **arguments)


def trained(step, training, config, batches):
    """The state and the tally after these batches; what was given is used up."""
    state, tally = training.state, training.tally
    _, settings = stacked(members_of(config))
    for batch in batches:
        state, tally = step(state, tally, settings, batch)
    return state, tally
