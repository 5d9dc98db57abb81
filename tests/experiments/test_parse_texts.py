"""CoNLL-U from spaCy documents, as the guide `dependency` reads it."""

import types

import numpy as np
import pytest

from distattn_jax.data import ParsedTexts
from experiments.papers.attention_guiding.parse_texts import format_document, read_texts


def document(*sentences):
    """Return a substitute for a spaCy document, from sentences of (text, index of the head)."""
    rows = [row for sentence in sentences for row in sentence]
    tokens = [
        types.SimpleNamespace(
            i=i, text=text, is_space=text.isspace(), pos_="", tag_="", dep_="", whitespace_=" "
        )
        for i, (text, _) in enumerate(rows)
    ]
    for token, (_, head) in zip(tokens, rows, strict=True):
        token.head = tokens[head]
    remaining = iter(tokens)
    return types.SimpleNamespace(sents=[[next(remaining) for _ in rows] for rows in sentences])


def test_heads_survive_and_white_space_is_not_a_word(tmp_path):
    rains = [("It", 2), ("  ", 0), ("rains", 2)]
    stays = [("\n", 3), ("He", 5), ("\t", 6), ("stays", 6)]  # The head of "He" is white space.
    path = tmp_path / "parses.conllu"
    documents = (document(rains, stays), document([("Go", 0)]))
    path.write_text("".join(map(format_document, documents)))
    parses = ParsedTexts(path)
    assert len(parses) == 2
    np.testing.assert_array_equal(parses["It rains He stays"].heads, [2, 0, 4, 0])
    np.testing.assert_array_equal(parses["Go"].heads, [0])


def test_each_text_of_the_fields_is_read_once(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"a": "x ", "b": ["y", "z"], "c": 1}\n{"a": "x", "b": ""}\n')
    assert read_texts(path, ["a", "b"]) == ["x", "y z"]
    with pytest.raises(ValueError, match=r"texts.jsonl:1: must be .* texts in a, c"):
        read_texts(path, ["a", "c"])
