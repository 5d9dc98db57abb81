"""Beam search as a single program on the device.

A hypothesis is a sequence of tokens that may become the result. It is finished when it has an end
token or the largest allowed length.

The search calls a function `next_logits(tokens, state)`. The arguments are the last token of every
hypothesis and the state of the decoder, such as its cached keys and values. The function returns
the logits of the next token and the new state. The first axis of `tokens` and of every array in the
state has one row for each hypothesis.

For every example, the search keeps the `beam_size` most probable unfinished hypotheses and the
`beam_size` best finished hypotheses. The score of a finished hypothesis of n tokens, the end token
included, is

    log P(tokens) / ((5 + n) / 6) ^ length_penalty                  (Wu et al. 2016, eq. 14)

An example is complete when none of its unfinished hypotheses can get a better score than the worst
of its `beam_size` finished hypotheses. The search ends when all examples are complete. Later steps
do not change the result of a complete example, so the result of an example does not depend on the
other examples of the batch.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

BEAM_SIZE, LENGTH_PENALTY = 4, 0.6  # defaults, as in Vaswani et al. 2017
NextLogits = Callable[[Int[Array, " rows"], Any], tuple[Float[Array, "rows V"], Any]]


class Hypotheses(NamedTuple):
    """The K sequences that a search has found for each of B examples, the best first.

    Attributes:
      tokens: Token ids, including an end token if there is one. The rest is padding.
      lengths: Number of tokens, including an end token if there is one.
      scores: Logarithm of the probability of each sequence, divided by its length penalty.
    """

    tokens: Int[Array, "B K L"]
    lengths: Int[Array, "B K"]
    scores: Float[Array, "B K"]


class _Beams(NamedTuple):
    """Unfinished and finished hypotheses after a number of steps of the search.

    The arrays always have room for K unfinished and K finished hypotheses of each example. If there
    are fewer, the log-probabilities or scores of the unused entries are -inf.

    Attributes:
      step: Number of steps, which is the number of tokens of every unfinished hypothesis.
      tokens: Tokens of the unfinished hypotheses.
      log_probabilities: Logarithm of the probability of each unfinished hypothesis.
      finished: Best finished hypotheses.
      state: State of the decoder, with one row for each unfinished hypothesis.
    """

    step: Int[Array, ""]
    tokens: Int[Array, "B K L"]
    log_probabilities: Float[Array, "B K"]
    finished: Hypotheses
    state: Any


def beam_search(
    next_logits: NextLogits,
    state: Any,
    first_tokens: Int[Array, " B"],
    *,
    beam_size: int,
    max_lengths: Int[Array, " B"],
    longest: int,
    end: int,
    pad: int,
    length_penalty: float | Float[Array, ""] = LENGTH_PENALTY,
) -> Hypotheses:
    """Find the K token sequences with the best scores for every example.

    Args:
      next_logits: Function of (last tokens, state of the decoder) that returns the logits of the
        next token and the new state, for B * beam_size rows.
      state: State of the decoder before the first token: a pytree of arrays with B rows.
      first_tokens: Token before the first new token of each example, such as a start token. It is
        not part of the result.
      beam_size: Number K of hypotheses of each example.
      max_lengths: Largest number of tokens of each example. A hypothesis of this length is finished
        even without an end token.
      longest: Upper limit of `max_lengths`. Must be a Python integer, because it is an axis size.
      end: Id of the token that ends a sequence.
      pad: Id of the padding token.
      length_penalty: Exponent of the length penalty, at least 0. With 0, the score is the
        logarithm of the probability. Larger exponents prefer longer sequences.
    """
    batch = first_tokens.shape[0]
    beams = _start_beams(state, (batch, beam_size), longest=longest, pad=pad)
    penalty = functools.partial(length_penalty_of, exponent=length_penalty)

    def is_complete(beams: _Beams) -> Bool[Array, " B"]:
        """Return True for the examples whose result can no longer change."""
        longest_penalty = penalty(jnp.maximum(max_lengths, beams.step))
        reachable = beams.log_probabilities.max(axis=1) / longest_penalty
        return beams.finished.scores.min(axis=1) >= reachable

    def is_running(beams: _Beams) -> Bool[Array, ""]:
        return (beams.step < longest) & ~is_complete(beams).all()

    def extend(beams: _Beams) -> _Beams:
        """Do one step: extend every unfinished hypothesis by one token, and keep the best."""
        last = _last_tokens(beams, first_tokens)
        logits, state = next_logits(last.reshape(-1), beams.state)
        length = beams.step + 1
        probabilities, parent, token = _best_extensions(beams.log_probabilities, logits)
        tokens = jnp.take_along_axis(beams.tokens, parent[..., None], axis=1)
        tokens = tokens.at[:, :, beams.step].set(token)
        ends = (token == end) | (length >= max_lengths)[:, None]
        ended = Hypotheses(
            tokens=tokens,
            lengths=jnp.broadcast_to(length, token.shape),
            scores=jnp.where(ends, probabilities / penalty(length), -jnp.inf),
        )
        best, chosen = jax.lax.top_k(jnp.where(ends, -jnp.inf, probabilities), beam_size)
        rows = jnp.take_along_axis(parent, chosen, axis=1) + beam_size * jnp.arange(batch)[:, None]
        return _Beams(
            step=length,
            tokens=jnp.take_along_axis(tokens, chosen[..., None], axis=1),
            log_probabilities=best,
            finished=_merge(beams.finished, ended),
            state=jax.tree.map(lambda x: x[rows.reshape(-1)], state),
        )

    return jax.lax.while_loop(is_running, extend, beams).finished


def length_penalty_of(length: Any, exponent: float | Float[Array, ""]) -> Any:
    """Return ((5 + length) / 6) ^ exponent, the divisor of the log-probability of a sequence."""
    return ((5 + length) / 6) ** exponent


def _start_beams(state: Any, shape: tuple[int, int], *, longest: int, pad: int) -> _Beams:
    """Return the hypotheses before the first step: one empty sequence for each example.

    Args:
      state: State of the decoder, with B rows.
      shape: Number of examples, and number of hypotheses of each example: (B, K).
      longest: Largest number of tokens of a hypothesis.
      pad: Id of the padding token.
    """
    nothing = Hypotheses(
        tokens=jnp.full((*shape, longest), pad, jnp.int32),
        lengths=jnp.zeros(shape, jnp.int32),
        scores=jnp.full(shape, -jnp.inf),
    )
    # One hypothesis, of probability 1, exists before the first step.
    log_probabilities = jnp.where(jnp.arange(shape[1]) == 0, 0.0, -jnp.inf)
    return _Beams(
        step=jnp.int32(0),
        tokens=nothing.tokens,
        log_probabilities=jnp.broadcast_to(log_probabilities, shape),
        finished=nothing,
        state=jax.tree.map(lambda x: jnp.repeat(x, shape[1], axis=0), state),
    )


def _last_tokens(beams: _Beams, first_tokens: Int[Array, " B"]) -> Int[Array, "B K"]:
    """Return the last token of every unfinished hypothesis.

    Before the first step, return `first_tokens` instead, repeated K times.
    """
    previous = jnp.maximum(beams.step - 1, 0)
    return jnp.where(
        beams.step == 0,
        jnp.broadcast_to(first_tokens[:, None], beams.log_probabilities.shape),
        jax.lax.dynamic_index_in_dim(beams.tokens, previous, axis=2, keepdims=False),
    )


def _best_extensions(
    log_probabilities: Float[Array, "B K"], logits: Float[Array, "rows V"]
) -> tuple[Float[Array, "B C"], Int[Array, "B C"], Int[Array, "B C"]]:
    """Return the 2K most probable extensions of the K unfinished hypotheses of each example.

    An extension is a hypothesis with one more token. At most K extensions have the end token as
    their new token, so that at least K remain unfinished.

    Args:
      log_probabilities: Logarithm of the probability of each hypothesis.
      logits: Logits of the next token of each hypothesis, B * K rows.

    Returns:
      Three arrays, the most probable extension first: the log-probability of each extension, the
      index of the hypothesis that it extends, and its new token.
    """
    batch, beam_size = log_probabilities.shape
    vocabulary = logits.shape[-1]
    steps = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(batch, beam_size, vocabulary)
    total = (log_probabilities[..., None] + steps).reshape(batch, -1)
    best, index = jax.lax.top_k(total, min(2 * beam_size, total.shape[1]))
    return best, index // vocabulary, index % vocabulary


def _merge(first: Hypotheses, second: Hypotheses) -> Hypotheses:
    """Return the best hypotheses of both arguments, as many as `first` contains."""
    scores, chosen = jax.lax.top_k(
        jnp.concatenate([first.scores, second.scores], axis=1), first.scores.shape[1]
    )
    tokens, lengths = (
        jnp.concatenate([getattr(first, name), getattr(second, name)], axis=1)
        for name in ("tokens", "lengths")
    )
    return Hypotheses(
        tokens=jnp.take_along_axis(tokens, chosen[..., None], axis=1),
        lengths=jnp.take_along_axis(lengths, chosen, axis=1),
        scores=scores,
    )
