"""Tiny pre-trained model with random parameters, tasks that fine-tune it, and random batches."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax.data import load_pretrained_tokenizer
from distattn_jax.models import PretrainedConfig, PretrainedEncoder
from distattn_jax.models.pretrained import read_parameters, save
from distattn_jax.tasks import PretrainedModelConfig
from distattn_jax.tasks.registry import find_task

WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "good", "bad", "fair", "awful"),
    *("plain", "price", "team", "market", "phone", "the", "is", "vir", "##us"),
)
SEPARATOR, PERIOD = WORDS.index("[SEP]"), WORDS.index(".")
CONFIG = PretrainedConfig(
    family="bert",
    vocabulary=len(WORDS),
    features=8,
    layers=1,
    heads=2,
    hidden_features=8,
    positions=24,
    types=2,
    embedding_features=8,
    groups=1,
    pooler=False,
)


MODEL = PretrainedModelConfig(pretrained="tiny", dropout_rate=(0.0,))
LABELS = ("a", "b", "c")


def write_model(folder):
    """Write config.json, model.safetensors and vocab.txt."""
    save(PretrainedEncoder(CONFIG, rngs=nnx.Rngs(7)), folder)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))


def make_task(folder, config, **arguments):
    """Return a task without data that fine-tunes the model of a folder.

    Args:
      folder: Folder that `write_model` wrote.
      config: Config of one method of a fine-tuning task.
      **arguments: Further arguments of the task.
    """
    return find_task(config.task)(
        config,
        tokenizer=load_pretrained_tokenizer(folder),
        labels=LABELS,
        data={"pretrained": {"config": dataclasses.asdict(CONFIG)}},
        **arguments,
    )


def encoder_parameters(folder):
    """Return the parameters of the pre-trained encoder, by their path in a classifier."""
    return {("encoder", *path): array for path, array in read_parameters(folder, CONFIG).items()}


def make_batch(lengths, *, length=6, seed=0):
    """Return random pairs of these lengths, with random labels."""
    draw = np.random.default_rng(seed)
    shape = (len(lengths), length)
    return {
        "tokens": jnp.asarray(draw.integers(5, len(WORDS), shape), jnp.int32),
        "tokens_length": jnp.asarray(lengths, jnp.int32),
        "types": jnp.asarray(np.broadcast_to(np.arange(length) > 2, shape), jnp.int32),
        "label": jnp.asarray(draw.integers(0, 3, len(lengths)), jnp.int32),
        "weight": jnp.ones(len(lengths), jnp.float32),
    }
