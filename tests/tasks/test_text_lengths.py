"""Language models on texts of other lengths than in training: perplexity, far attention."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.tasks import load, measure_far_attention, measure_perplexity, prepare
from distattn_jax.train import RunError
from experiments.commands import perplexity
from tests.tasks.letters import make_config


def test_perplexity_of_each_position_equals_a_loop_over_examples(letters_run, letters_folder):
    results = measure_perplexity(letters_run, (48, 96), split="train", tokens=200)
    loaded = load(letters_run)
    predict = nnx.jit(lambda model, *inputs: jax.nn.log_softmax(model(*inputs).logits))
    tokens = prepare(make_config(letters_folder)).tables["train"].columns["tokens"].values[:192]
    before = np.append(2, tokens[:-1]).astype(np.int32)
    for length, result in results.items():
        losses = []
        for start in range(0, 192, length):
            inputs = jnp.asarray(before[None, start : start + length])
            log_probabilities = predict(loaded.model, inputs, jnp.array([length]))
            predicted = tokens[start : start + length]
            losses.append(-np.asarray(log_probabilities)[0, np.arange(length), predicted])
        losses = np.asarray(losses)
        np.testing.assert_allclose(result.perplexity, np.exp(losses.mean()), rtol=1e-4)
        edges = [0, 64, 96] if length == 96 else [0, 48]
        assert result.starts == tuple(edges[:-1])
        means = [losses[:, a:b].mean() for a, b in itertools.pairwise(edges)]
        np.testing.assert_allclose(result.by_position, np.exp([means]), rtol=1e-4)


def test_the_command_prints_and_stores_perplexities(letters_run, capsys):
    perplexity.main([str(letters_run), "--lengths", "24", "48", "--split", "validation"])
    printed = capsys.readouterr().out
    assert "trained on 24 tokens. Perplexity on validation by length" in printed
    stored = json.loads((letters_run / "perplexity.json").read_text())
    assert list(stored["lengths"]) == ["24", "48"]
    perplexity.main([str(letters_run), "--lengths", "24", "--split", "validation", "--json"])
    (document,) = json.loads(capsys.readouterr().out)["runs"]
    assert document == {
        "run": str(letters_run),
        "split": "validation",
        "trained_length": 24,
        "lengths": {"24": stored["lengths"]["24"]},
    }


def test_lengths_that_a_split_lacks_are_left_out(letters_run):
    assert perplexity.choose_lengths(str(letters_run), "test", None) == [24, 48]  # of 48 tokens
    assert perplexity.choose_lengths(str(letters_run), "train", 100) == [24, 48, 96]


def test_a_text_that_is_too_short_is_an_error(letters_run):
    with pytest.raises(
        RunError, match=r"lengths must be at most .*; got 64, but test has 48 tokens"
    ):
        measure_perplexity(letters_run, (64,))
    with pytest.raises(RunError, match=r"at most the number of tokens of test; got 640"):
        measure_far_attention(letters_run, (640,))


def test_a_run_of_another_task_is_an_error(translation_run):
    with pytest.raises(RunError, match=r"must be a run on language modeling; got .* translation"):
        measure_perplexity(translation_run, (64,))


def test_far_attention_equals_a_loop_over_queries(letters_run, letters_folder):
    found = measure_far_attention(letters_run, (16, 24), distance=5, split="train", examples=1)
    model = load(letters_run).model
    attend = nnx.jit(lambda model, *inputs: model(*inputs, weights=True).weights)
    tokens = prepare(make_config(letters_folder)).tables["train"].columns["inputs"].values
    for length, result in found.items():
        inputs = jnp.asarray(tokens[None, :length])
        weights = np.asarray(attend(model, inputs, jnp.array([length])))[0, 0]
        shares, uniform = [], []
        for i in range(length // 2, length):
            shares.append(weights[:, i, : i - 5].sum(axis=-1) / weights[:, i].sum(axis=-1))
            uniform.append((i - 5) / (i + 1))
        np.testing.assert_allclose(result.heads[0, 0], np.mean(shares, axis=0), rtol=1e-4)
        np.testing.assert_allclose(result.uniform, np.mean(uniform))


def test_no_key_of_a_text_as_long_as_in_training_is_far(letters_run):
    (found,) = measure_far_attention(letters_run, (24,)).values()
    assert not found.heads.any()
    assert found.uniform == 0
