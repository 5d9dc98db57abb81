"""Beam search against a search in plain Python, hypothesis by hypothesis."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.models.beam_search import beam_search
from tests.models.search import search

END, PAD, VOCABULARY = 1, 0, 7


@jax.jit
def next_logits(tokens, state):
    """Return log-probabilities that depend on the last token and on all tokens before it."""
    table, bias, history = state
    history = history * 0.5 + tokens[:, None] * bias
    logits = jnp.take_along_axis(table, tokens[:, None, None], axis=1)[:, 0] + jnp.sin(history)
    return jax.nn.log_softmax(logits), (table, bias, history)


def random_state(batch, seed=0):
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(batch, VOCABULARY, VOCABULARY)) * 2
    bias = generator.normal(size=(batch, VOCABULARY))
    return tuple(np.float32(x) for x in (table, bias, np.zeros((batch, VOCABULARY))))


def log_probabilities(state, first, tokens):
    """Return the log-probability of every next token of one example after a list of tokens."""
    state = tuple(x[None] for x in state)
    for token in (first, *tokens):
        logits, state = next_logits(np.asarray([token]), state)
    return np.asarray(logits[0], np.float64)


@functools.partial(jax.jit, static_argnames=("beam_size", "longest"))
def run(state, first, **options):
    return beam_search(next_logits, state, first, end=END, pad=PAD, **options)


@pytest.mark.parametrize(("beam_size", "length_penalty"), [(1, 0.6), (4, 0.0), (4, 0.6)])
def test_hypotheses_equal_a_search_in_python(beam_size, length_penalty):
    batch, longest = 5, 9
    state, first = random_state(batch), np.full(batch, 2)
    max_lengths = np.asarray([9, 1, 4, 9, 7])
    options = {"beam_size": beam_size, "length_penalty": length_penalty}
    found = jax.device_get(run(state, first, max_lengths=max_lengths, longest=longest, **options))
    for b in range(batch):
        oracle = functools.partial(log_probabilities, tuple(x[b] for x in state), 2)
        expected = search(oracle, longest=max_lengths[b], end=END, **options)
        assert math.isfinite(found.scores[b, 0])
        for k, (tokens, score) in enumerate(expected):
            length = found.lengths[b, k]
            assert found.tokens[b, k, :length].tolist() == tokens
            assert (found.tokens[b, k, length:] == PAD).all()
            np.testing.assert_allclose(found.scores[b, k], score, rtol=1e-4)


def test_the_result_of_an_example_does_not_depend_on_the_batch():
    options = {"beam_size": 3, "longest": 12}
    state, first = random_state(4, seed=1), np.full(4, 3)
    together = run(state, first, max_lengths=np.full(4, 12), **options)
    for b in range(4):
        one = tuple(x[b : b + 1] for x in state)
        alone = run(one, first[:1], max_lengths=np.full(1, 12), **options)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[b])
