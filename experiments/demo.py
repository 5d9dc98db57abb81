"""A demonstration: who can find the nearest?

Command: make train (or python -m experiments). Device: CPU. Minutes: about one.

A sequence is filler with a few opinions (1 .. 4) in it; the label of every position is the opinion
nearest to it, positions with a tie left out. Three one-layer encoders learn it from fresh random
sequences and are asked about others, as long and twice as long: one that knows no position, one
with sinusoids added to its embeddings, and one whose attention is distance-aware.
"""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.modules import DistanceAware, Encoder, add_positions

OPINIONS, LENGTH, FEATURES, HEADS = 4, 32, 32, 4
BATCH, STEPS, LEARNING_RATE = 64, 600, 3e-3
MODELS = {
    "no positions": {"distance_aware": False, "positions": False},
    "sinusoidal positions": {"distance_aware": False, "positions": True},
    "distance-aware": {"distance_aware": True, "positions": False},
}


class Task(NamedTuple):
    """Sequences, their labels, and which positions have one."""

    tokens: Int[Array, "B T"]
    labels: Int[Array, "B T"]
    counts: Bool[Array, "B T"]


def draw(key: Array, length: int, batch: int = BATCH) -> Task:
    """Random sequences, a tenth of them opinions."""
    where, what = jax.random.split(key)
    opinions = jax.random.randint(what, (batch, length), 1, OPINIONS + 1)
    tokens = jnp.where(jax.random.bernoulli(where, 0.1, (batch, length)), opinions, 0)
    position = jnp.arange(length)
    distance = jnp.abs(position[:, None] - position[None, :])[None]  # (1, T, S)
    far = jnp.where(tokens[:, None, :] > 0, distance, 2 * length)  # (B, T, S)
    nearest = far.min(axis=-1, keepdims=True)
    labels = jnp.take_along_axis(tokens, far.argmin(axis=-1), axis=1)
    is_unique = (far == nearest).sum(axis=-1) == 1
    return Task(tokens, jnp.maximum(labels - 1, 0), is_unique & (nearest[..., 0] < length))


class Tagger(nnx.Module):
    """Embedding, one encoder layer, a linear layer to the opinions."""

    def __init__(self, *, distance_aware: bool, positions: bool, rngs: nnx.Rngs):
        variant = functools.partial(DistanceAware, HEADS) if distance_aware else None
        self.positions = positions
        self.embed = nnx.Embed(OPINIONS + 1, FEATURES, rngs=rngs)
        self.encoder = Encoder(1, FEATURES, HEADS, variant=variant, rngs=rngs)
        self.out = nnx.Linear(FEATURES, OPINIONS, rngs=rngs)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B T C"]:
        x = self.embed(tokens)
        return self.out(self.encoder(add_positions(x) if self.positions else x))


def mean_over(entries: Array, counts: Array) -> Array:
    """The mean of the entries that count."""
    return jnp.where(counts, entries, 0).sum() / counts.sum()


def train(model: Tagger, key: Array) -> Tagger:
    """All steps as one compiled program."""
    optimiser = optax.adam(LEARNING_RATE)

    def loss(model, task):
        logits = model(task.tokens)
        entropy = optax.softmax_cross_entropy_with_integer_labels(logits, task.labels)
        return mean_over(entropy, task.counts)

    def step(carry, key):
        model, state = carry
        gradient = jax.grad(loss)(model, draw(key, LENGTH))
        updates, state = optimiser.update(gradient, state)
        return (optax.apply_updates(model, updates), state), None

    keys = jax.random.split(key, STEPS)
    return jax.jit(lambda model: jax.lax.scan(step, (model, optimiser.init(model)), keys)[0][0])(
        model
    )


@functools.partial(jax.jit, static_argnames="length")
def accuracy(model: Tagger, key: Array, length: int) -> Array:
    """Share of the positions tagged right, on sequences not seen in training."""
    task = draw(key, length, batch=1024)
    return mean_over(model(task.tokens).argmax(axis=-1) == task.labels, task.counts)


def main() -> None:
    """Trains the three and prints what came out."""
    train_key, test_key = jax.random.split(jax.random.key(0))
    print(f"The nearest opinion: {STEPS} steps of {BATCH} sequences of {LENGTH} tokens.\n")
    print(f"{'attention':<28}{'accuracy':>10}{'twice as long':>16}{'seconds':>10}")
    print(f"{'(guessing)':<28}{1 / OPINIONS:>10.1%}{1 / OPINIONS:>16.1%}")
    for name, kind in MODELS.items():
        started = time.perf_counter()
        model = train(Tagger(**kind, rngs=nnx.Rngs(0)), train_key)
        shares = [float(accuracy(model, test_key, length)) for length in (LENGTH, 2 * LENGTH)]
        seconds = time.perf_counter() - started
        print(f"{name:<28}{shares[0]:>10.1%}{shares[1]:>16.1%}{seconds:>10.1f}", flush=True)
    learned = model.encoder.blocks[0].attention.variant
    assert isinstance(learned, DistanceAware)
    print("\nWhat the distance-aware heads learned (w < 0: near keys, w > 0: far keys):")
    for head, (w, v) in enumerate(zip(learned.weight[...], learned.shape[...], strict=True)):
        print(f"  head {head}: w = {w:+.2f}, v = {v:+.2f}")
