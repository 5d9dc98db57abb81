"""Beam search against a search in plain Python, hypothesis by hypothesis."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.models.beam_search import beam_search

END, PAD, VOCABULARY = 1, 0, 7


def next_logits(tokens, state):
    """Return logits that depend on the last token and on all tokens before it."""
    table, bias, history = state
    history = history * 0.5 + tokens[:, None] * bias
    return jnp.take_along_axis(table, tokens[:, None, None], axis=1)[:, 0] + jnp.sin(history), (
        table,
        bias,
        history,
    )


def random_state(batch, seed=0):
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(batch, VOCABULARY, VOCABULARY)) * 2
    bias = generator.normal(size=(batch, VOCABULARY))
    return tuple(jnp.asarray(x, jnp.float32) for x in (table, bias, np.zeros((batch, VOCABULARY))))


def search_in_python(state, first, beam_size, max_length, length_penalty):
    """Return the finished hypotheses of one example, pairs of tokens and score, the best first."""

    def penalty(length):
        return ((5 + length) / 6) ** length_penalty

    alive, finished = [((), 0.0, state)], []
    for length in range(1, max_length + 1):
        candidates = []
        for tokens, total, state in alive:
            last = tokens[-1] if tokens else first
            logits, new_state = next_logits(jnp.asarray([last]), tuple(x[None] for x in state))
            logits = np.asarray(logits[0], np.float64)
            log_probabilities = logits - np.log(np.exp(logits).sum())
            for token, log_probability in enumerate(log_probabilities):
                candidates.append(
                    ((*tokens, token), total + log_probability, tuple(x[0] for x in new_state))
                )
        candidates.sort(key=lambda candidate: -candidate[1])
        alive = []
        for tokens, total, state in candidates[: 2 * beam_size]:
            if tokens[-1] == END or length == max_length:
                finished.append((tokens, total / penalty(length)))
            elif len(alive) < beam_size:
                alive.append((tokens, total, state))
        finished = sorted(finished, key=lambda hypothesis: -hypothesis[1])[:beam_size]
        if len(finished) == beam_size and (
            not alive or finished[-1][1] >= alive[0][1] / penalty(max_length)
        ):
            break
    return finished


@pytest.mark.parametrize("length_penalty", [0.0, 0.6])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_hypotheses_equal_a_search_in_python(beam_size, length_penalty):
    batch, longest = 5, 9
    state, first = random_state(batch), jnp.full(batch, 2)
    max_lengths = jnp.asarray([9, 1, 4, 9, 7])
    run = functools.partial(
        beam_search,
        next_logits,
        beam_size=beam_size,
        longest=longest,
        end=END,
        pad=PAD,
        length_penalty=length_penalty,
    )
    found = jax.jit(run)(state, first, max_lengths=max_lengths)
    for b in range(batch):
        example = tuple(np.asarray(x[b]) for x in state)
        expected = search_in_python(example, 2, beam_size, int(max_lengths[b]), length_penalty)
        assert math.isfinite(found.scores[b, 0])
        for k, (tokens, score) in enumerate(expected):
            length = int(found.lengths[b, k])
            assert tuple(found.tokens[b, k, :length].tolist()) == tokens
            assert (found.tokens[b, k, length:] == PAD).all()
            np.testing.assert_allclose(found.scores[b, k], score, rtol=1e-4)


def test_the_result_of_an_example_does_not_depend_on_the_batch():
    run = functools.partial(beam_search, next_logits, beam_size=3, longest=12, end=END, pad=PAD)
    state, first = random_state(4, seed=1), jnp.full(4, 3)
    together = jax.jit(run)(state, first, max_lengths=jnp.full(4, 12))
    for b in range(4):
        alone = jax.jit(run)(
            tuple(x[b : b + 1] for x in state), first[:1], max_lengths=jnp.full(1, 12)
        )
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[b])
