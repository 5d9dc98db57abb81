"""Models of sentence pairs, documents and news recommendation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.models import (
    DocumentClassifier,
    DocumentRegressor,
    NewsRecommender,
    PairClassifier,
    Sizes,
)

SIZES = Sizes(
    2, 4, 8, embedding_features=6, hidden_features=8, pooling_features=4, initial_weight=0.5
)
GENERATOR = np.random.default_rng(0)


def tokens(*shape):
    return GENERATOR.integers(2, 20, shape)


def make(kind, **arguments):
    return kind(vocabulary=20, method="distance_aware", sizes=SIZES, rngs=nnx.Rngs(0), **arguments)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


# -- pairs


FIRST, SECOND = tokens(3, 5), tokens(3, 5)
FIRST_LENGTHS, SECOND_LENGTHS = np.asarray([5, 2, 4]), np.asarray([1, 5, 3])


@pytest.fixture(scope="module")
def pairs():
    return jax.jit(make(PairClassifier, classes=2))


def test_the_order_of_the_sentences_of_a_pair_matters(pairs):
    logits = pairs(FIRST, FIRST_LENGTHS, SECOND, SECOND_LENGTHS).logits
    swapped = pairs(SECOND, SECOND_LENGTHS, FIRST, FIRST_LENGTHS).logits
    assert logits.shape == (3, 2)
    assert (jnp.abs(logits - swapped) > 1e-4).any(axis=1).all()


def test_padding_of_either_sentence_does_not_matter(pairs):
    padded = np.where(np.arange(5) < FIRST_LENGTHS[:, None], FIRST, 0)
    close(
        pairs(padded, FIRST_LENGTHS, SECOND, SECOND_LENGTHS).logits,
        pairs(FIRST, FIRST_LENGTHS, SECOND, SECOND_LENGTHS).logits,
    )


# -- documents

DOCUMENTS = tokens(2, 3, 4)
WORDS = np.asarray([[4, 2, 3], [3, 4, 0]])
SENTENCES = np.asarray([3, 2])


@pytest.fixture(scope="module")
def documents():
    return jax.jit(make(DocumentClassifier, classes=5))


def test_documents_of_a_batch_are_independent(documents):
    logits = documents(DOCUMENTS, WORDS, SENTENCES).logits
    assert logits.shape == (2, 5)
    close(documents(DOCUMENTS[::-1], WORDS[::-1], SENTENCES[::-1]).logits, logits[::-1])
    changed = np.stack([DOCUMENTS[0] % 19 + 1, DOCUMENTS[1]])
    found = documents(changed, WORDS, SENTENCES).logits
    close(found[1], logits[1])
    assert (found[0] != logits[0]).any()


def test_padding_of_words_and_sentences_does_not_matter(documents):
    expected = documents(DOCUMENTS, WORDS, SENTENCES).logits
    other = np.where(np.arange(4) < WORDS[..., None], DOCUMENTS, 7)
    close(documents(other, WORDS, SENTENCES).logits, expected)
    close(documents(DOCUMENTS, np.asarray([[4, 2, 3], [3, 4, 4]]), SENTENCES).logits, expected)


def test_the_order_of_sentences_matters(documents):
    logits = documents(DOCUMENTS[:, [1, 0, 2]], WORDS[:, [1, 0, 2]], SENTENCES).logits
    change = jnp.abs(logits - documents(DOCUMENTS, WORDS, SENTENCES).logits)
    assert change[0].max() > 1e-5  # swapping two of three sentences changes distances
    assert change[1].max() < 1e-5  # swapping both of two sentences keeps them


def test_a_document_without_words_has_a_finite_rating_and_gradient():
    model = make(DocumentRegressor)

    def total(model, *arrays):
        return model(*arrays).rating.sum()

    arrays = (DOCUMENTS, np.zeros_like(WORDS), np.asarray([3, 0]))
    rating, gradient = jax.jit(nnx.value_and_grad(total))(model, *arrays)
    assert np.isfinite(rating)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


# -- news recommendation

HISTORY, CANDIDATES = tokens(2, 3, 4), tokens(2, 5, 4)
TITLES, CANDIDATE_TITLES = np.full((2, 3), 4), np.full((2, 5), 4)
CLICKS = np.asarray([3, 0])


@pytest.fixture(scope="module")
def recommender():
    return jax.jit(make(NewsRecommender))


def test_scores_do_not_depend_on_the_order_and_are_zero_for_a_user_without_clicks(recommender):
    scores = recommender(HISTORY, TITLES, CLICKS, CANDIDATES, CANDIDATE_TITLES).scores
    assert scores.shape == (2, 5)
    other = recommender(HISTORY, TITLES, CLICKS, CANDIDATES[:, ::-1], CANDIDATE_TITLES)
    close(other.scores[:, ::-1], scores)
    assert len(np.unique(scores[0])) == 5
    assert not scores[1].any()
