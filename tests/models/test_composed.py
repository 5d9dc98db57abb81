"""Models of sentence pairs, documents, news recommendation and tagged sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax import models, modules

SIZES = models.Sizes(
    2, 4, 8, embedding_features=6, hidden_features=8, pooling_features=4, initial_weight=0.5
)
GENERATOR = np.random.default_rng(0)


def tokens(*shape):
    return GENERATOR.integers(2, 20, shape)


def make(kind, **arguments):
    return kind(vocabulary=20, method="distance_aware", sizes=SIZES, rngs=nnx.Rngs(0), **arguments)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (models.PairClassifier, {"classes": 2}),
        (models.Tagger, {"classes": 2}),
        (models.Translator, {}),
    ],
)
def test_the_precision_reaches_every_attention_layer(kind, arguments):
    model = nnx.eval_shape(lambda: make(kind, precision="BF16_BF16_F32", **arguments))
    layers = [x for _, x in nnx.iter_modules(model) if isinstance(x, modules.MultiHeadAttention)]
    assert {layer.precision for layer in layers} == {"BF16_BF16_F32"}


# -- pairs


FIRST, SECOND = tokens(3, 5), tokens(3, 5)
FIRST_LENGTHS, SECOND_LENGTHS = np.asarray([5, 2, 4]), np.asarray([1, 5, 3])


@pytest.fixture(scope="module")
def pairs():
    return jax.jit(make(models.PairClassifier, classes=2))


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
    return jax.jit(make(models.DocumentClassifier, classes=5))


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
    model = make(models.DocumentRegressor)

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
    return jax.jit(make(models.NewsRecommender))


def test_scores_do_not_depend_on_the_order_and_are_zero_for_a_user_without_clicks(recommender):
    scores = recommender(HISTORY, TITLES, CLICKS, CANDIDATES, CANDIDATE_TITLES).scores
    assert scores.shape == (2, 5)
    other = recommender(HISTORY, TITLES, CLICKS, CANDIDATES[:, ::-1], CANDIDATE_TITLES)
    close(other.scores[:, ::-1], scores)
    assert len(np.unique(scores[0])) == 5
    assert not scores[1].any()


# -- tagger

TAGGED = np.asarray([[2, 3, 4], [5, 6, 0]])
TAGGED_LENGTHS = np.asarray([3, 2])
SPELLING = np.asarray([[[66, 67], [68, 0], [69, 70]], [[71, 0], [72, 73], [0, 0]]])
SPELLING_LENGTHS = np.asarray([[2, 1, 2], [1, 2, 0]])
logits = jax.jit(lambda model, *columns: model(*columns).logits)


@pytest.fixture(scope="module")
def tagger():
    return models.Tagger(9, 5, method="vanilla", sizes=SIZES, spelling_features=4, rngs=nnx.Rngs(0))


def pad(array, value, *widths):
    return np.pad(array, [(0, width) for width in widths], constant_values=value)


def test_padding_of_sentences_and_words_does_not_matter(tagger):
    expected = logits(tagger, TAGGED, TAGGED_LENGTHS, SPELLING, SPELLING_LENGTHS)
    assert expected.shape == (2, 3, 5)
    longer = (pad(SPELLING, 99, 0, 2, 3), pad(SPELLING_LENGTHS, 1, 0, 2))
    found = logits(tagger, pad(TAGGED, 8, 0, 2), TAGGED_LENGTHS, *longer)
    np.testing.assert_allclose(found[0, :3], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1, :2], expected[1, :2], rtol=1e-5, atol=1e-6)


def test_the_spelling_of_a_word_matters_for_its_sentence_only(tagger):
    expected = logits(tagger, TAGGED, TAGGED_LENGTHS, SPELLING, SPELLING_LENGTHS)
    other = SPELLING.copy()
    other[0, 1, 0] = 100
    found = logits(tagger, TAGGED, TAGGED_LENGTHS, other, SPELLING_LENGTHS)
    change = np.abs(found - expected).max(axis=(1, 2))
    assert change[0] > 1e-4
    assert change[1] == 0


def test_a_model_with_spelling_refuses_words_alone(tagger):
    with pytest.raises(ValueError, match="spelling and spelling_lengths must be given"):
        logits(tagger, TAGGED, TAGGED_LENGTHS)
