"""The trained models in the package: small, described, and as good as their cards say."""

import re

import jax
import numpy as np
import pytest

from distattn_jax.data import END_ID, Table, encode
from distattn_jax.tasks import TRAINED, load
from distattn_jax.tasks.load import WEIGHTS_FILE
from experiments.recipes import nearest


def compute_logits(loaded, text):
    """Return the logits of the model for one text."""
    table = Table(loaded.task.encode([{"text": text}]))
    length = int(table.lengths(loaded.task.length_columns)[0])
    return np.asarray(jax.jit(loaded.task.apply)(loaded.model, table.take(np.arange(1), length))[0])


def test_all_models_together_are_small():
    sizes = [path.stat().st_size for folder in TRAINED.values() for path in folder.iterdir()]
    assert sum(sizes) < 3_000_000
    assert {folder.name for folder in TRAINED["nearest"].parent.iterdir()} == set(TRAINED)


@pytest.mark.parametrize("name", TRAINED)
def test_the_card_names_data_licence_command_and_results(name):
    card = (TRAINED[name] / "README.md").read_text()
    assert (TRAINED[name] / WEIGHTS_FILE).is_file()
    assert "Licence" in card
    assert "python -m experiments train" in card
    assert re.search(r"^\| test \| [\d.]+ \|", card, re.MULTILINE)


def test_the_classifier_finds_the_nearest_opinion():
    loaded = load(TRAINED["nearest"])
    logits = compute_logits(loaded, nearest.SENTENCE)
    assert loaded.labels[int(logits.argmax())] == "good"


def test_the_tagger_tells_verbs_from_nouns():
    loaded = load(TRAINED["tagger"])
    logits = compute_logits(loaded, "They walk to the old house .")[0]
    tags = [loaded.labels[i] for i in logits.argmax(axis=-1)]
    assert tags == ["PRON", "VERB", "ADP", "DET", "ADJ", "NOUN", "PUNCT"]


def test_the_language_model_prefers_words_in_their_order():
    loaded = load(TRAINED["language_model"])
    tokens = encode(loaded.tokenizer, ["What is the matter, my good lord?"]).values
    orders = np.stack([tokens, tokens[::-1]])
    inputs = np.concatenate([np.full((2, 1), END_ID), orders[:, :-1]], axis=1).astype(np.int32)
    lengths = np.full(2, len(tokens), np.int32)
    batch = {"inputs": inputs, "inputs_length": lengths}
    outputs = jax.jit(loaded.task.apply)(loaded.model, batch).logits
    likelihoods = np.take_along_axis(jax.nn.log_softmax(outputs), orders[..., None], axis=-1)
    forward, backward = np.asarray(likelihoods).mean(axis=(1, 2))
    assert forward > backward + 3
    assert forward > -4.5  # An untrained model has about -6.9, the logarithm of 1 / 1024.
