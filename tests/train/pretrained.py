"""A pre-trained model that is tiny and random, as a folder; and made-up batches for it."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax.models import PretrainedConfig, PretrainedEncoder
from distattn_jax.models.pretrained import save

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


def write_model(folder):
    """config.json, model.safetensors and vocab.txt."""
    save(PretrainedEncoder(CONFIG, rngs=nnx.Rngs(7)), folder)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))


def batch_of(lengths, *, length=6, seed=0):
    """Random pairs of these lengths, with random labels."""
    draw = np.random.default_rng(seed)
    shape = (len(lengths), length)
    return {
        "tokens": jnp.asarray(draw.integers(5, len(WORDS), shape), jnp.int32),
        "tokens_length": jnp.asarray(lengths, jnp.int32),
        "types": jnp.asarray(np.broadcast_to(np.arange(length) > 2, shape), jnp.int32),
        "label": jnp.asarray(draw.integers(0, 3, len(lengths)), jnp.int32),
        "weight": jnp.ones(len(lengths), jnp.float32),
    }
