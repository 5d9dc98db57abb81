"""Dropout: the same entries whatever computes it, the right share, and no pattern."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import DotProduct, attention
from distattn_jax.attention.dropout import Dropout, make_words
from tests.attention.cases import IMPLEMENTATIONS, ONE_OF_EACH, Sizes, computed_by, inputs, run

KEY = jax.random.key(0)


def kept(rate, example=0, head=0, key=KEY, size=256):
    indices = jnp.arange(size)
    dropout = Dropout(jnp.float32(rate), make_words(key), jnp.int32(example), jnp.int32(head))
    return np.asarray(dropout.kept(indices, indices))


@pytest.mark.parametrize("name", ["distance_aware", "relative_position"])
def test_every_implementation_drops_the_same_entries(name, monkeypatch):
    sizes = Sizes()
    variant, _ = ONE_OF_EACH[name](sizes, "float32")
    results = []
    for implementation in IMPLEMENTATIONS:
        with computed_by(implementation, monkeypatch) as chosen:
            results.append(
                run(
                    variant,
                    *inputs(sizes, "float32"),
                    implementation=chosen,
                    dropout_rate=0.5,
                    dropout_key=KEY,
                )
            )
    for other in results[1:]:
        chex.assert_trees_all_close(results[0], other, rtol=1e-4, atol=1e-5)


def test_the_kept_set_is_the_hash_it_is_said_to_be():
    """In plain integers: other implementations, and later versions, must drop the same entries."""

    def mix(word):
        word = ((word ^ (word >> 16)) * 0x7FEB352D) % 2**32
        word = ((word ^ (word >> 15)) * 0x846CA68B) % 2**32
        return word ^ (word >> 16)

    def chain(word, *indices):
        for index in indices:
            word = mix(word ^ mix((index + 0x9E3779B9) % 2**32))
        return word

    a, c = (int(word) for word in make_words(KEY))
    expected = [
        [mix(chain(a, 3, 5, i) ^ chain(c, 3, 5, j)) >= 0.25 * 2**32 for j in range(8)]
        for i in range(8)
    ]
    np.testing.assert_array_equal(kept(0.25, example=3, head=5, size=8), expected)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_kept_is_one_minus_the_rate(rate):
    share = kept(rate).mean()
    assert abs(share - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate)) / 256


@pytest.mark.parametrize("other", [{"example": 1}, {"head": 1}, {"key": jax.random.key(1)}])
def test_examples_heads_and_keys_drop_independently(other):
    agreement = (kept(0.5) == kept(0.5, **other)).mean()
    assert abs(agreement - 0.5) < 5 * 0.5 / 256


def test_neighbouring_rows_and_columns_drop_independently():
    entries = kept(0.5)
    for shifted in (entries[1:] == entries[:-1], entries[:, 1:] == entries[:, :-1]):
        assert abs(shifted.mean() - 0.5) < 5 * 0.5 / 256
    for axis in (0, 1):  # as many per row and column as chance would have it
        spread = entries.mean(axis).std() / (0.5 / np.sqrt(256))
        assert 0.8 < spread < 1.2


def test_values_are_unbiased_and_the_extra_outputs_are_not_dropped():
    qkv = inputs(Sizes(), "float32")
    plain = run(DotProduct(), *qkv)

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

    rates = jnp.asarray([0.0, 0.2, 0.7])
    together = jax.jit(jax.vmap(values))(rates)
    for rate, result in zip(rates.tolist(), together, strict=True):
        chex.assert_trees_all_close(result, values(rate), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", ["rbg", "threefry2x32", None])
def test_any_kind_of_key_serves(implementation):
    key = (
        jax.random.PRNGKey(0) if implementation is None else jax.random.key(0, impl=implementation)
    )
    assert make_words(key).dtype == jnp.uint32
    assert 0.4 < kept(0.5, key=key).mean() < 0.6
