"""What spaCy says becomes CoNLL-U that the guide `dependency` reads."""

import types

import numpy as np
import pytest

from distattn_jax.data import ParsedTexts
from experiments.papers.attention_guiding.parse_texts import texts_of, written


def document(*sentences):
    """As spaCy has it, of sentences of (text, place of the head in the document)."""
    rows = [row for sentence in sentences for row in sentence]
    tokens = [
        types.SimpleNamespace(
            i=i, text=text, is_space=text.isspace(), pos_="", tag_="", dep_="", whitespace_=" "
        )
        for i, (text, _) in enumerate(rows)
    ]
    for token, (_, head) in zip(tokens, rows, strict=True):
        token.head = tokens[head]
    left = iter(tokens)
    return types.SimpleNamespace(sents=[[next(left) for _ in rows] for rows in sentences])


def test_heads_are_read_again_and_white_space_is_no_word(tmp_path):
    rains = [("It", 2), ("  ", 0), ("rains", 2)]
    stays = [("\n", 3), ("He", 5), ("\t", 6), ("stays", 6)]  # "He" hangs on white space
    path = tmp_path / "parses.conllu"
    path.write_text(written(document(rains, stays)) + written(document([("Go", 0)])))
    parses = ParsedTexts(path)
    assert len(parses) == 2
    np.testing.assert_array_equal(parses["It rains He stays"].heads, [2, 0, 4, 0])
    np.testing.assert_array_equal(parses["Go"].heads, [0])


def test_texts_are_those_of_the_fields_each_once(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"a": "x ", "b": ["y", "z"], "c": 1}\n{"a": "x", "b": ""}\n')
    assert texts_of(path, ["a", "b"]) == ["x", "y z"]
    with pytest.raises(ValueError, match=r"texts.jsonl:1: must be .* texts in a, c"):
        texts_of(path, ["a", "c"])
