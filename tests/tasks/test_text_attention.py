"""Attention maps of every kind of model on texts that a user enters."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax import tasks
from distattn_jax.attention import DistanceAware, RelativePosition
from distattn_jax.data import load_pretrained_tokenizer, train_byte_level_bpe, train_word_level
from distattn_jax.models import pretrained, shift_right
from distattn_jax.tasks.load import select_model
from distattn_jax.tasks.registry import find_task
from tests.tasks.parallel_texts import MODEL as TRANSLATOR
from tests.train import pretrained as tiny_pretrained
from tests.train import tiny

WORDS = train_word_level(["the service was awful but cheap ."])
BYTES = train_byte_level_bpe(["the service was awful"], size=259, end=True)


def make_loaded(config, tokenizer=WORDS):
    """Return a model with random parameters, as if it had been loaded."""
    task = find_task(config.task)(config, tokenizer=tokenizer, labels=("a", "b"))
    return load_random(task)


def load_random(task):
    model = select_model(task, tiny.random_parameters(task), 0)
    nnx.update(model, jax.device_put(nnx.state(model)))
    return tasks.LoadedModel(task, model, task.tokenizer, task.labels, task.config)


def check_rows(part):
    """Check that the weights of every query sum to one, and the shape of the maps."""
    queries = part.tokens if part.query_tokens is None else part.query_tokens
    assert part.maps.shape[2:] == (len(queries), len(part.tokens))
    np.testing.assert_allclose(part.maps.sum(axis=-1), 1, rtol=1e-5)


def test_a_text_classifier_names_tokens_as_they_are_written():
    loaded = make_loaded(
        tasks.TextClassificationConfig(methods=("distance_aware",), model=tiny.MODEL)
    )
    parts = tasks.attend_to_texts(loaded, ["The service was TERRIBLE"])
    assert parts.keys() == {"text"}
    part = parts["text"]
    assert part.tokens == ["The", "service", "was", "[UNK]"]
    check_rows(part)
    (variant,) = part.variants
    assert isinstance(variant, DistanceAware)
    weight = loaded.model.text.sequence.encoder.layers[0].attention.variant.weight
    np.testing.assert_array_equal(variant.weight, weight[...])
    with pytest.raises(ValueError, match=r"texts \(--text\) must contain at least one token; got "):
        tasks.attend_to_texts(loaded, ["  "])
    with pytest.raises(ValueError, match="of a classifier of texts must be 1; got 2"):
        tasks.attend_to_texts(loaded, ["the", "service"])


def test_a_pair_classifier_encodes_its_sentences_one_by_one():
    loaded = make_loaded(tasks.PairClassificationConfig(methods=("vanilla",), model=tiny.MODEL))
    parts = tasks.attend_to_texts(loaded, ["the service was awful", "cheap service"])
    assert [len(parts[name].tokens) for name in ("premise", "hypothesis")] == [4, 2]
    assert parts["premise"].variants is None
    for part in parts.values():
        check_rows(part)
    # Alone, the second sentence is not padded to the length of the first.
    ids = jnp.asarray([WORDS.encode("cheap service").ids])
    alone = jax.jit(lambda: loaded.model.text(ids, jnp.asarray([2]), weights=True))()
    np.testing.assert_allclose(parts["hypothesis"].maps, alone.weights[0], rtol=1e-5, atol=1e-6)


def test_documents_and_readers_have_attention_on_two_levels():
    document = make_loaded(tasks.DocumentClassificationConfig(model=tiny.MODEL))
    parts = tasks.attend_to_texts(document, ["The service was awful. But cheap."])
    assert list(parts) == ["sentence 1", "sentence 2", "document"]
    assert parts["document"].tokens == ["1. The service was awful.", "2. But cheap."]
    news = make_loaded(tasks.NewsRecommendationConfig(model=tiny.MODEL))
    titles = tasks.attend_to_texts(news, ["awful service", "cheap service", "was"])
    assert list(titles) == ["title 1", "title 2", "title 3", "reader"]
    for part in (*parts.values(), *titles.values()):
        check_rows(part)
    with pytest.raises(ValueError, match=r"texts \(--text\) must contain at least one"):
        tasks.attend_to_texts(document, [" "])


def test_a_language_model_begins_with_the_end_token_and_is_causal():
    model = tasks.LanguageModelConfig(
        layers=2, heads=2, head_features=4, features=8, hidden_features=8
    )
    loaded = make_loaded(
        tasks.LanguageModelingConfig(methods=("relative_position",), model=model), BYTES
    )
    part = tasks.attend_to_texts(loaded, ["a c\nb"])["text"]
    assert part.tokens[0] == "[END]"
    assert "".join(part.tokens[1:]) == "a c↵b"
    check_rows(part)
    assert not np.triu(part.maps, 1).any()
    assert [type(variant) for variant in part.variants] == [RelativePosition, RelativePosition]


def test_a_translator_has_three_parts_and_can_be_given_a_translation():
    config = tasks.TranslationConfig(methods=("relative_position",), model=TRANSLATOR)
    loaded = make_loaded(config, BYTES)
    parts = tasks.attend_to_texts(loaded, ["abc", "de"])
    assert list(parts) == ["encoder", "decoder", "cross-attention"]
    assert parts["encoder"].tokens == ["a", "b", "c", "[END]"]
    assert parts["decoder"].tokens == ["[END]", "d", "e"]
    assert parts["cross-attention"].tokens == ["a", "b", "c", "[END]"]
    assert parts["cross-attention"].query_tokens == ["d", "e", "[END]"]
    assert parts["cross-attention"].variants is None
    for part in parts.values():
        check_rows(part)
    source, target = (jnp.asarray([BYTES.encode(text).ids]) for text in ("abc", "de"))
    lengths = jnp.asarray([4]), jnp.asarray([3])
    inputs = source, lengths[0], shift_right(target), lengths[1]
    outputs = jax.jit(lambda: loaded.model(*inputs, weights=True))()
    np.testing.assert_allclose(
        parts["cross-attention"].maps, outputs.cross_weights[0], rtol=1e-5, atol=1e-6
    )


def test_a_pair_in_a_pretrained_encoder_is_one_text_with_two_segments(pretrained_folder):
    encoder, tokenizer = (
        pretrained.load(pretrained_folder),
        load_pretrained_tokenizer(pretrained_folder),
    )
    texts = ["The virus is bad.", "the price"]
    part = tasks.attend_with_encoder(encoder, tokenizer, texts, longest=20)["text"]
    assert part.tokens == [
        *("[CLS]", "The", "vir", "us", "is", "bad", ".", "[SEP]", "the", "price", "[SEP]")
    ]
    assert part.segments == [0] * 8 + [1] * 3
    check_rows(part)
    alone = tasks.attend_with_encoder(encoder, tokenizer, texts[:1], longest=20)["text"]
    assert alone.segments is None
    with pytest.raises(ValueError, match=r"\(--text\) must have at most 10 tokens; got 11"):
        tasks.attend_with_encoder(encoder, tokenizer, texts, longest=10)
    with pytest.raises(ValueError, match=r"texts \(--text\) of a pre-trained encoder must be 1 or"):
        tasks.attend_with_encoder(encoder, tokenizer, ["a"] * 3, longest=20)


def test_a_fine_tuned_model_shows_its_encoder(pretrained_folder):
    config = dataclasses.replace(tasks.ClaimRankingConfig(), model=tiny_pretrained.MODEL)
    task = tiny_pretrained.make_task(pretrained_folder, config)
    part = tasks.attend_to_texts(load_random(task), ["good price", "bad price"])["text"]
    assert part.tokens == ["[CLS]", "good", "price", "[SEP]", "bad", "price", "[SEP]"]
    check_rows(part)
