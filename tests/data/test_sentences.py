"""Tests of splitting a text into sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.data import split_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It works. Is it good? Yes!", ["It works.", "Is it good?", "Yes!"]),
        ("I paid 3.5 dollars at example.com.", ["I paid 3.5 dollars at example.com."]),
        ("Great!!! And then... it broke?!", ["Great!!!", "And then...", "it broke?!"]),
        ("Wait . . . what", ["Wait . . .", "what"]),
        ("a list\n\n  of lines\r\nhere", ["a list", "of lines", "here"]),
        ('"Buy it." (I did.) Fine', ['"Buy it."', "(I did.)", "Fine"]),
        ("It was fine.But in 2010.Then no", ["It was fine.", "But in 2010.", "Then no"]),
        ("no mark at all", ["no mark at all"]),
        ("  one.  ", ["one."]),
        ("...", ["..."]),
        (" \n ", []),
    ],
)
def test_sentences_end_at_punctuation_and_line_breaks(text, expected):
    assert split_sentences(text) == expected


@given(st.text(alphabet="aA3 .!?\"')\n\r\t", max_size=40))
def test_only_white_space_is_removed_and_no_sentence_is_empty(text):
    pieces = split_sentences(text)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(piece == piece.strip() != "" for piece in pieces)
