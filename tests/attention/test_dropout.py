"""Dropout drops entries at the right rate, independently of each other."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import hash
from distattn_jax.attention import DotProduct, attention
from distattn_jax.attention.dropout import Dropout, drop_threshold, kept_scale, make_words
from tests.attention.cases import Sizes, inputs, run_attention

KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnames="size")
def kept_entries(rate, example=0, head=0, key=KEY, size=256):
    """Return True for the entries that dropout keeps in a square map of one head."""
    indices = jnp.arange(size)
    dropout = Dropout(jnp.float32(rate), make_words(key), jnp.int32(example), jnp.int32(head))
    return dropout.kept(indices, indices)


def test_kept_entries_equal_the_documented_hash():
    """Recompute the hash in Python integers, so that later versions drop the same entries."""

    def mix(word):
        word = ((word ^ (word >> 16)) * 0x7FEB352D) % 2**32
        word = ((word ^ (word >> 15)) * 0x846CA68B) % 2**32
        return word ^ (word >> 16)

    def combine(word, *indices):
        for index in indices:
            word = mix(word ^ mix((index + 0x9E3779B9) % 2**32))
        return word

    def byte(i, j):
        word = mix(combine(a, 3, 5, i & ~8) ^ combine(c, 3, 5, j & ~8))
        number = 2 * (i >> 3 & 1) + (j >> 3 & 1)
        return word >> 8 * number & 255

    a, c = (int(word) for word in make_words(KEY))
    expected = [[byte(i, j) >= 0.25 * 256 for j in range(40)] for i in range(40)]
    np.testing.assert_array_equal(kept_entries(0.25, example=3, head=5, size=40), expected)


@pytest.mark.parametrize("threshold", [0, 1, 26, 127, 128, 129, 200, 255, 256])
def test_flags_of_four_bytes_equal_four_comparisons(threshold):
    words = jax.random.bits(KEY, (4096,), jnp.uint32)
    flags = hash.flag_kept_bytes(words, jnp.uint32(threshold))
    for shift in (0, 8, 16, 24):
        is_kept = hash.is_kept(words, jnp.uint32(shift), jnp.uint32(threshold))
        np.testing.assert_array_equal((flags >> shift >> 7) & 1, is_kept)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_fraction_of_kept_entries_is_one_minus_the_rate(rate):
    fraction = kept_entries(rate).mean()
    assert abs(fraction - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate)) / 256


@pytest.mark.parametrize("other", [{"example": 1}, {"head": 1}, {"key": jax.random.key(1)}])
def test_examples_heads_and_keys_drop_independently(other):
    agreement = (kept_entries(0.5) == kept_entries(0.5, **other)).mean()
    assert abs(agreement - 0.5) < 5 * 0.5 / 256


def test_neighbouring_rows_and_columns_drop_independently():
    entries = np.asarray(kept_entries(0.5))
    for step in (1, 8, 16):  # entries 8 apart may share one hash
        for shifted in (entries[step:] == entries[:-step], entries[:, step:] == entries[:, :-step]):
            assert abs(shifted.mean() - 0.5) < 5 * 0.5 / 256
    for axis in (0, 1):  # counts per row and column vary as for independent entries
        ratio = entries.mean(axis).std() / (0.5 / np.sqrt(256))
        assert 0.8 < ratio < 1.2


def test_values_are_unbiased_and_extra_outputs_have_no_dropout():
    qkv = inputs(Sizes(), "float32")
    plain = run_attention(DotProduct(), *qkv)

    @jax.jit
    @jax.vmap
    def dropped(key):
        return attention(
            *qkv, DotProduct(), dropout_rate=0.25, dropout_key=key, received=True, weights=True
        )

    many = dropped(jax.random.split(KEY, 4000))
    np.testing.assert_allclose(many.values.mean(0), plain.values, atol=0.05)
    chex.assert_trees_all_close(many.received[7], plain.received, rtol=1e-5)
    chex.assert_trees_all_close(many.weights[7], plain.weights, rtol=1e-5)


def test_the_rate_may_be_traced():
    qkv = inputs(Sizes(), "float32")

    def values(rate):
        return attention(*qkv, DotProduct(), dropout_rate=rate, dropout_key=KEY).values

    rates = 0.0, 0.7
    together = jax.jit(jax.vmap(values))(jnp.asarray(rates))
    one_by_one = jax.jit(lambda: jnp.stack([values(rate) for rate in rates]))()
    chex.assert_trees_all_close(together, one_by_one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rate", "threshold"), [(0.0, 0), (1e-6, 1), (0.1, 26), (0.5, 128), (0.9999, 255), (1.0, 256)]
)
def test_the_rate_is_rounded_to_a_multiple_of_one_256th(rate, threshold):
    assert drop_threshold(jnp.float32(rate)) == threshold
    wanted = 256 / (256 - threshold) if threshold < 256 else 0
    np.testing.assert_allclose(kept_scale(jnp.float32(rate)), wanted, rtol=1e-6)


def test_a_traced_rate_of_one_drops_everything_with_gradient_zero():
    query, key, value = inputs(Sizes(), "float32")

    @jax.jit
    @jax.value_and_grad
    def total(query, rate):
        attended = attention(query, key, value, DotProduct(), dropout_rate=rate, dropout_key=KEY)
        return jnp.sin(attended.values).sum()

    value_and_gradient = total(query, jnp.float32(1))
    chex.assert_trees_all_close(value_and_gradient, (jnp.zeros(()), jnp.zeros_like(query)))


@pytest.mark.parametrize("key", [jax.random.key(0, impl="rbg"), jax.random.PRNGKey(0)])
def test_any_kind_of_prng_key_is_accepted(key):
    assert make_words(key).dtype == jnp.uint32
    assert 0.4 < kept_entries(0.5, key=key).mean() < 0.6
