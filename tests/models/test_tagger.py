"""Tagger: padding, spelling, and arguments."""

import jax
import numpy as np
import pytest
from flax import nnx

from distattn_jax.models import Sizes, Tagger

SIZES = Sizes(2, 4, 8, embedding_features=6, hidden_features=8)
WORDS = np.asarray([[2, 3, 4], [5, 6, 0]])
LENGTHS = np.asarray([3, 2])
SPELLING = np.asarray([[[66, 67], [68, 0], [69, 70]], [[71, 0], [72, 73], [0, 0]]])
SPELLING_LENGTHS = np.asarray([[2, 1, 2], [1, 2, 0]])
logits = jax.jit(lambda model, *columns: model(*columns).logits)


@pytest.fixture(scope="module")
def model():
    return Tagger(9, 5, method="vanilla", sizes=SIZES, spelling_features=4, rngs=nnx.Rngs(0))


def pad(array, value, *widths):
    return np.pad(array, [(0, width) for width in widths], constant_values=value)


def test_padding_of_sentences_and_words_does_not_matter(model):
    expected = logits(model, WORDS, LENGTHS, SPELLING, SPELLING_LENGTHS)
    assert expected.shape == (2, 3, 5)
    longer = (pad(SPELLING, 99, 0, 2, 3), pad(SPELLING_LENGTHS, 1, 0, 2))
    found = logits(model, pad(WORDS, 8, 0, 2), LENGTHS, *longer)
    np.testing.assert_allclose(found[0, :3], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1, :2], expected[1, :2], rtol=1e-5, atol=1e-6)


def test_the_spelling_of_a_word_matters_for_its_sentence_only(model):
    expected = logits(model, WORDS, LENGTHS, SPELLING, SPELLING_LENGTHS)
    other = SPELLING.copy()
    other[0, 1, 0] = 100
    found = logits(model, WORDS, LENGTHS, other, SPELLING_LENGTHS)
    change = np.abs(found - expected).max(axis=(1, 2))
    assert change[0] > 1e-4
    assert change[1] == 0


def test_a_model_with_spelling_refuses_words_alone(model):
    with pytest.raises(ValueError, match="spelling and spelling_lengths must be given"):
        logits(model, WORDS, LENGTHS)
