"""`python -m experiments predict`: words that the model does not know."""

import json

import pytest

from distattn_jax.tasks import TRAINED, load
from experiments.__main__ import main
from experiments.commands.predict import describe_unknown_words, note_unknown_words


@pytest.mark.parametrize(
    ("name", "unknown"), [("nearest", ["Slow", "hotel"]), ("tagger", []), ("language_model", [])]
)
def test_words_outside_the_vocabulary_are_noted_once(name, unknown):
    lines = ["Slow service\n", "\n", "the hotel was awful, Slow\n"]
    noted = {}
    assert list(note_unknown_words(load(TRAINED[name]), lines, noted)) == lines
    assert list(noted) == unknown


def test_a_note_after_the_predictions_names_the_words(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    texts = tmp_path / "texts.txt"
    texts.write_text("the service was slow\n")
    main(["predict", str(TRAINED["nearest"]), str(texts), "--json"])
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["predictions"]) == 1
    assert printed.err.endswith("note: words that the model does not know (1): slow\n")


def test_a_note_about_many_words_names_the_first_ones():
    note = describe_unknown_words([f"word{i}" for i in range(11)])
    assert note.startswith("note: words that the model does not know (11): word0, word1, ")
    assert note.endswith("word9, ...")
