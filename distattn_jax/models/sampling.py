"""Sampling of sequences, one token at a time, as a single program on the device."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.models.beam_search import NextLogits


class Samples(NamedTuple):
    """Sampled sequences, one for each of B examples.

    Attributes:
      tokens: Token ids, including an end token if there is one. The rest is padding.
      lengths: Number of tokens, including an end token if there is one.
      log_probabilities: Logarithm of the probability of each sequence under the model, before
        temperature and `top_p`.
    """

    tokens: Int[Array, "B L"]
    lengths: Int[Array, " B"]
    log_probabilities: Float[Array, " B"]


def sample(
    next_logits: NextLogits,
    state: Any,
    first_tokens: Int[Array, " B"],
    *,
    max_lengths: Int[Array, " B"],
    longest: int,
    end: int,
    pad: int,
    key: Array | None = None,
    temperature: float | Float[Array, ""] = 1.0,
    top_p: float | Float[Array, ""] = 1.0,
) -> Samples:
    """Sample one sequence for every example. The loop stops when all sequences have ended.

    Args:
      next_logits: Function of (last tokens, state of the decoder) that returns the logits of the
        next token and the new state, for B rows.
      state: State of the decoder before the first token: a pytree of arrays with B rows.
      first_tokens: Token before the first new token of each example, such as a start token. It is
        not part of the result.
      max_lengths: Largest number of tokens of each example.
      longest: Upper limit of `max_lengths`. Must be a Python integer, because it is an axis size.
      end: Id of the token that ends a sequence. If negative, only `max_lengths` ends a sequence.
      pad: Id of the padding token.
      key: PRNG key. None takes the most probable token every time (greedy search).
      temperature: Divisor of the logits, above 0. May be traced.
      top_p: Sample from the smallest set of most probable tokens whose total probability is at
        least `top_p`. May be traced.
    """
    batch = first_tokens.shape[0]
    samples = Samples(
        tokens=jnp.full((batch, longest), pad, jnp.int32),
        lengths=jnp.zeros(batch, jnp.int32),
        log_probabilities=jnp.zeros(batch),
    )

    def is_running(held: tuple[Any, ...]) -> Array:
        step, running, *_ = held
        return (step < longest) & running.any()

    def extend(held: tuple[Any, ...]) -> tuple[Any, ...]:
        step, running, last, samples, state = held
        logits, state = next_logits(last, state)
        logits = logits.astype(jnp.float32)
        if key is None:
            token = logits.argmax(axis=-1)
        else:
            kept = keep_top_p(logits / temperature, top_p)
            token = jax.random.categorical(jax.random.fold_in(key, step), kept)
        token = jnp.where(running, token, pad).astype(jnp.int32)
        log_probability = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=1)
        samples = Samples(
            tokens=samples.tokens.at[:, step].set(token),
            lengths=samples.lengths + running,
            log_probabilities=samples.log_probabilities
            + jnp.where(running, log_probability[:, 0], 0.0),
        )
        running &= (token != end) & (samples.lengths < max_lengths)
        return step + 1, running, token, samples, state

    start = (jnp.int32(0), max_lengths > 0, first_tokens.astype(jnp.int32), samples, state)
    *_, samples, _ = jax.lax.while_loop(is_running, extend, start)
    return samples


def keep_top_p(logits: Float[Array, "B V"], top_p: float | Float[Array, ""]) -> Float[Array, "B V"]:
    """Set the logits of improbable tokens to -inf, for nucleus sampling.

    Keep the smallest set of most probable tokens whose total probability is at least `top_p`. Keep
    at least one token. Also keep tokens that are as probable as the last token of the set.
    """
    ordered = jnp.sort(logits, axis=-1, descending=True)
    probabilities = jax.nn.softmax(ordered)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities  # sum of larger ones
    kept = jnp.maximum((before < top_p).sum(axis=-1, keepdims=True), 1)
    threshold = jnp.take_along_axis(ordered, kept - 1, axis=-1)
    return jnp.where(logits >= threshold, logits, -jnp.inf)
