"""Translation of sentences in batches, and the alignment of words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.data import END_ID, END_TOKEN, encode, train_byte_level_bpe
from distattn_jax.models import Sizes, Translator
from distattn_jax.tasks import decoding
from distattn_jax.tasks.alignment import Alignment, align_words, find_sharpest_layer

SENTENCES = ["a man walks", "", "dogs!", " \t", "a dog, a man and a cat walk home", "cats"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_byte_level_bpe([s for s in SENTENCES if s.strip()], size=270, end=True)


@pytest.fixture(scope="module")
def model():
    sizes = Sizes(heads=2, head_features=4, features=8, layers=1, hidden_features=8, max_distance=2)
    model = Translator(270, method="relative_position", sizes=sizes, rngs=nnx.Rngs(0))
    # Untrained models repeat their input. Without it, translations depend on the source.
    table = model.decoder.embedding.embedding.embedding
    table[...] = 4 * table[...].at[END_ID].set(0)
    return model


def test_every_sentence_is_in_one_batch_of_few_shapes():
    lengths = np.random.default_rng(0).integers(1, 200, 300)
    batches = decoding.plan_batches(lengths, tokens=1024)
    rows = np.concatenate([batch.rows for batch in batches])
    assert sorted(rows[rows >= 0]) == list(range(300))
    for batch in batches:
        assert max(lengths[batch.rows[batch.rows >= 0]]) <= batch.length
        assert len(batch.rows) * batch.length <= 1024
    assert {len(batch.rows) * batch.length for batch in batches} == {1024}
    assert {batch.length for batch in batches} == {32, 64, 128, 256}


def test_few_sentences_and_long_sentences_have_small_batches():
    def shapes(*arguments):
        return [(len(one.rows), one.length) for one in decoding.plan_batches(*arguments)]

    assert shapes([3, 5, 9]) == [(4, decoding.SHORTEST)]
    assert shapes([9, 9], 4) == [(1, decoding.SHORTEST)] * 2
    assert shapes([]) == []


def test_a_translation_depends_neither_on_other_sentences_nor_on_their_order(model, tokenizer):
    done = []
    first = encode(tokenizer, [SENTENCES[i] for i in (0, 4, 2)])
    second = encode(tokenizer, [SENTENCES[i] for i in (2, 5, 4, 0)])
    one = decoding.translate_tokens(model, first, beam_size=2, on_batch=done.append)
    two = decoding.translate_tokens(model, second, beam_size=2, on_batch=done.append)
    assert done == [3, 4]
    assert len({tuple(tokens) for tokens in two}) == 4
    assert one == [two[i] for i in (3, 2, 0)]


def test_the_translation_of_a_blank_line_is_blank(model, tokenizer):
    translations = decoding.translate_sentences(model, tokenizer, SENTENCES, beam_size=2)
    assert len(translations) == 6
    assert [translations[i] for i in (1, 3)] == ["", ""]
    assert len(set(translations)) == 5
    assert decoding.translate_sentences(model, tokenizer, ["", " "]) == ["", ""]


def test_several_models_translate_like_each_of_them(model, tokenizer):
    sources = encode(tokenizer, [SENTENCES[i] for i in (0, 2, 5)])
    graph, params = nnx.split(model)
    other = jax.tree.map(lambda leaf: -leaf, params)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), params, other)
    found = decoding.translate_with_models(graph, stacked, sources, beam_size=2)
    expected = [
        decoding.translate_tokens(nnx.merge(graph, one), sources, beam_size=2)
        for one in (params, other)
    ]
    assert found == expected
    assert found[0] != found[1]


def test_a_translation_fits_on_a_line_and_the_beam_holds_a_hypothesis(model, tokenizer):
    assert decoding.decode_lines(tokenizer, [tokenizer.encode("a\n  man ").ids]) == ["a man"]
    with pytest.raises(ValueError, match=r"beam_size \(--beam\) must be at least 1; got 0"):
        decoding.translate_sentences(model, tokenizer, ["a"], beam_size=0)


def test_words_attend_to_words(model, tokenizer):
    texts = ["Die Hunde laufen!!", "so"]
    sources = encode(tokenizer, ["a dog, a man", "cats"])
    translations = [tokenizer.encode(text).ids[:-1] for text in texts]
    first, second = align_words(model, tokenizer, sources, translations)
    assert first.source == ["a", "dog", ",", "a", "man", END_TOKEN]
    assert first.target == ["Die", "Hunde", "laufen", "!", "!", END_TOKEN]
    assert first.weights.shape == (1, 6, 6)
    assert second.weights.shape == (1, len(second.target), len(second.source))
    for alignment in (first, second):
        np.testing.assert_allclose(alignment.weights.sum(axis=-1), 1, rtol=1e-5)


def test_the_attention_of_a_word_is_that_of_its_tokens(model, tokenizer):
    sources = encode(tokenizer, ["a dog, a man"])
    target = tokenizer.encode("Die").ids[:-1]
    assert len(target) == 3
    (alignment,) = align_words(model, tokenizer, sources, [target])
    inputs = np.asarray([[END_ID, *target]], np.int32)
    outputs = jax.jit(lambda model, *batch: model(*batch, weights=True))(
        model, sources.values[None], sources.lengths, inputs, np.asarray([4])
    )
    weights = np.asarray(outputs.cross_weights)[0].mean(axis=1)  # (L, T, S)
    starts = np.cumsum([0, *(len(tokenizer.decode([token])) for token in sources.values[:-2])])
    of_dog = [i for i, start in enumerate(starts) if len("a") <= start < len("a dog")]
    expected = weights[:, :3, of_dog].sum(axis=2).mean(axis=1)
    np.testing.assert_allclose(alignment.weights[:, 0, 1], expected, rtol=1e-5)


def test_the_sharpest_layer_has_the_largest_weights_on_average():
    sharp, flat, extreme = ([0.1, 0.9], [0.5, 0.5], [0.0, 1.0])
    first = Alignment(["a", "b"], ["c"], np.asarray([[flat], [sharp], [extreme]]))
    second = Alignment(["a", "b"], ["c", "d"], np.asarray([[flat] * 2, [sharp] * 2, [flat] * 2]))
    assert find_sharpest_layer([first]) == 2
    assert find_sharpest_layer([first, second]) == 1
