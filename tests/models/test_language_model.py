"""Language model: causality, generation from prompts of different lengths, sampling."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.models import LanguageModel, Sizes, sample
from distattn_jax.models.sampling import keep_top_p
from distattn_jax.token_ids import END_ID
from tests.models.search import search_greedily

VOCABULARY = 9
SIZES = Sizes(heads=2, head_features=4, features=8, layers=2, hidden_features=16, max_distance=2)
PROMPTS, LENGTHS = np.asarray([[END_ID, 3, 4, 5], [END_ID, 7, 0, 0], [END_ID, 0, 0, 0]]), [4, 2, 1]


@pytest.fixture(scope="module")
def model():
    model = LanguageModel(VOCABULARY, method="distance_aware", sizes=SIZES, rngs=nnx.Rngs(0))
    table = model.embedding.embedding.embedding
    table[...] = 3 * table[...]
    return model


compiled = nnx.jit(LanguageModel.generate, static_argnames="new_tokens")


def generate(model, seed=None, temperature=1.0, top_p=1.0):
    """Continue the prompts, with random tokens if a seed is given."""
    options = {"temperature": temperature, "top_p": top_p}
    options = {} if seed is None else {"key": jax.random.key(seed), **options}
    return compiled(model, PROMPTS, np.asarray(LENGTHS), new_tokens=5, **options)


@nnx.jit
def log_probabilities(model, tokens):
    return jax.nn.log_softmax(model(tokens).logits)


def test_log_probabilities_depend_on_earlier_tokens_only(model):
    tokens = np.pad(PROMPTS[:1], ((0, 0), (0, 5)))
    before = log_probabilities(model, tokens)[0]
    tokens[0, 2] = 8
    after = log_probabilities(model, tokens)[0]
    np.testing.assert_array_equal(after[:2], before[:2])
    assert (after[2:] != before[2:]).any(axis=-1).all()


def test_greedy_texts_equal_a_search_in_python_for_prompts_of_different_lengths(model):
    found = generate(model)

    def search_step(prompt, tokens):
        padded = np.zeros((1, 9), np.int32)
        padded[0, : len(prompt) + len(tokens)] = [*prompt, *tokens]
        return log_probabilities(model, padded)[0, len(prompt) + len(tokens) - 1]

    for example, length in enumerate(LENGTHS):
        oracle = functools.partial(search_step, PROMPTS[example, :length].tolist())
        tokens, total = search_greedily(oracle, longest=5, end=END_ID)
        assert found.tokens[example, : found.lengths[example]].tolist() == tokens
        np.testing.assert_allclose(found.log_probabilities[example], total, rtol=1e-4)


@pytest.mark.parametrize("method", ["adapted", "t5_bias"])
def test_cached_decoding_equals_a_call_on_all_tokens(method):
    tokens = jnp.asarray([[END_ID, 3, 4, 5, 6], [END_ID, 7, 8, 3, 2]])

    @nnx.jit
    def decode(model):
        last, caches = model.read_prompts(tokens[:, :3], jnp.asarray([3, 2]), new_tokens=2)
        logits, caches = model.next_logits(last, caches)
        following = jnp.take_along_axis(tokens, caches[0].lengths[:, None], axis=1)[:, 0]
        return (logits, model.next_logits(following, caches)[0]), model(tokens).logits

    sizes = dataclasses.replace(SIZES, layers=1)
    model = LanguageModel(VOCABULARY, method=method, sizes=sizes, rngs=nnx.Rngs(0))
    steps, expected = decode(model)
    for step, logits in enumerate(steps):
        wanted = jnp.stack([expected[0, 2 + step], expected[1, 1 + step]])
        np.testing.assert_allclose(logits, wanted, atol=1e-5)


def test_texts_depend_on_the_key_and_a_low_temperature_gives_the_greedy_text(model):
    greedy = generate(model).tokens
    np.testing.assert_array_equal(generate(model, seed=0, temperature=1e-4).tokens, greedy)
    np.testing.assert_array_equal(generate(model, seed=0, top_p=1e-6).tokens, greedy)
    first, second = (generate(model, seed, temperature=3.0).tokens for seed in (0, 1))
    assert (first != second).any()


@pytest.mark.parametrize("top_p", [0.3, 0.65, 0.9, 1.0])
def test_top_p_keeps_the_smallest_sufficient_set(top_p):
    probabilities = np.asarray([[0.1, 0.4, 0.2, 0.3], [0.97, 0.01, 0.01, 0.01]])
    kept = np.isfinite(keep_top_p(jnp.log(probabilities), top_p))
    for row, chosen in zip(probabilities, kept, strict=True):
        count = next(n for n in range(1, 5) if np.sort(row)[::-1][:n].sum() >= top_p - 1e-6)
        if row[0] != 0.97 or count == 1:  # Equally probable tokens are kept together.
            assert chosen.sum() == count
        assert row[chosen].sum() >= top_p - 1e-6


def test_samples_follow_the_probabilities():
    probabilities = np.asarray([0.5, 0.3, 0.2])
    rows = 4000

    def next_logits(tokens, state):
        return jnp.broadcast_to(jnp.log(probabilities), (rows, 3)), state

    first, limits = jnp.zeros(rows, jnp.int32), {"max_lengths": jnp.ones(rows, int), "longest": 1}
    drawn = sample(next_logits, first, first, **limits, end=-1, pad=0, key=jax.random.key(0))
    share = np.bincount(np.asarray(drawn.tokens[:, 0]), minlength=3) / rows
    np.testing.assert_allclose(share, probabilities, atol=0.03)


def test_an_ended_text_is_padded_and_the_program_stops():
    calls = []

    def next_logits(tokens, step):
        jax.debug.callback(lambda: calls.append(0))
        wanted = jnp.where(step >= jnp.asarray([1, 3]), 1, 2)  # the end token in step 1 or 3
        return jax.nn.one_hot(wanted, 4), step + 1

    first, limits = jnp.zeros(2, jnp.int32), {"max_lengths": jnp.full(2, 10), "longest": 10}
    found = sample(next_logits, first, first, **limits, end=1, pad=0)
    jax.effects_barrier()
    np.testing.assert_array_equal(found.tokens[:, :5], [[2, 1, 0, 0, 0], [2, 2, 2, 1, 0]])
    np.testing.assert_array_equal(found.lengths, [2, 4])
    assert len(calls) == 4
