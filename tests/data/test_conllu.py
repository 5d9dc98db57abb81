"""Tests of CoNLL-U files: lookup by text, alignment with tokens, errors with line numbers."""

import gzip

import numpy as np
import pytest

from distattn_jax.data import DataError, ParsedTexts


def sentence(*words, text=None, new_text=False):
    """Return the CoNLL-U lines of one sentence, whose words are (id, form, head)."""
    lines = ["# newdoc"] * new_text + ([] if text is None else [f"# text = {text}"])
    lines += [f"{i}\t{form}\t_\t_\t_\t_\t{head}\tdep\t_\t_" for i, form, head in words]
    return "\n".join(lines) + "\n\n"


RAINS = sentence((1, "It", 2), (2, "rains", 0), (3, ".", 2), text="It rains.", new_text=True)
STAYS = sentence((1, "He", 2), (2, "stays", 0), text="He stays")
DOGS = sentence((1, "Dogs", 2), (2, "bark", 0), text="Dogs  bark", new_text=True)


def read_parses(folder, content, name="parses.conllu"):
    (folder / name).write_text(content)
    return ParsedTexts(folder / name)


def test_a_text_is_everything_between_two_newdoc_lines(tmp_path):
    parses = read_parses(tmp_path, RAINS + STAYS + DOGS)
    assert len(parses) == 2
    whole = parses["It rains.\n He  stays"]  # white space is ignored
    np.testing.assert_array_equal(whole.heads, [2, 0, 2, 5, 0])
    np.testing.assert_array_equal(whole.ends, [2, 7, 8, 10, 15])
    np.testing.assert_array_equal(parses["Dogs bark"].heads, [2, 0])
    assert len(parses[" "]) == 0


def test_without_newdoc_lines_every_sentence_is_a_text(tmp_path):
    parses = read_parses(tmp_path, STAYS + sentence((1, "Go", 0)).rstrip("\n"))
    assert len(parses) == 2
    np.testing.assert_array_equal(parses["He stays"].heads, [2, 0])
    np.testing.assert_array_equal(parses["Go"].heads, [0])


def test_all_files_of_a_folder_are_read_and_the_first_parse_of_a_text_is_used(tmp_path):
    (tmp_path / "a.conllu").write_text(RAINS)
    other = sentence((1, "It", 0), (2, "rains", 1), (3, ".", 1))
    (tmp_path / "b.conllu.gz").write_bytes(gzip.compress((other + STAYS).encode()))
    parses = ParsedTexts(tmp_path)
    np.testing.assert_array_equal(parses["It rains."].heads, [2, 0, 2])
    assert len(parses["He stays"]) == 2


def test_a_token_belongs_to_the_word_in_which_it_begins(tmp_path):
    parse = read_parses(tmp_path, sentence((1, "I", 3), (2, "do", 3), (3, "n't", 0)))["I  don't"]
    #        I       " don"  '       t       space   "do"    "n't"
    spans = [(0, 1), (2, 6), (6, 7), (7, 8), (1, 3), (3, 5), (5, 8)]
    np.testing.assert_array_equal(parse.find_words("I  don't", spans), [1, 2, 3, 3, 0, 2, 3])
    assert parse.find_words("I  don't", []).shape == (0,)


def test_a_multiword_token_is_one_word(tmp_path):
    rows = [("1-2", "zum", "_"), (1, "zu", 3), (2, "dem", 3), (3, "Haus", 0), ("3.1", "x", "_")]
    rows += [("4-5", "im", "_"), (4, "in", 5), (5, "dem", 3)]
    parse = read_parses(tmp_path, sentence(*rows, text="zum Haus im"))["zum Haus im"]
    np.testing.assert_array_equal(parse.heads, [2, 0, 2])
    np.testing.assert_array_equal(parse.ends, [3, 7, 9])


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (RAINS + "1\tA\n\n", 7, "must have 10 fields; got 2"),
        (sentence((1, "A", 0), (3, "B", 1)), 2, "the id must be 2; got '3'"),
        (sentence((1, "A", 0), (2, "B", 3)), 2, "the head must be 0 to 2; got '3'"),
        (sentence((1, "A", "x")), 1, "the head must be 0 to 1; got 'x'"),
        (sentence((1, "A", "²")), 1, "the head must be 0 to 1; got '²'"),
        (sentence((1, "A", "9" * 5000)), 1, "the head must be 0 to 1; got '999"),
        (sentence(("1-" + "9" * 5000, "A", 0)), 1, "the id must end with a word after 1, at most"),
        (sentence(("1-3", "AB", "_"), (1, "A", 0), (2, "B", 1)), 1, "the id must .* 2; got '1-3'"),
        (sentence((1, " ", 0)), 1, "the form must not be empty"),
        (sentence((1, "A", 0), text="B"), 1, "the text must be .* its words, 'A'; got 'B'"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, content, line, message):
    with pytest.raises(DataError, match=f"{tmp_path}/parses.conllu:{line}: {message}"):
        read_parses(tmp_path, content)


def test_a_missing_parse_a_missing_file_and_an_empty_file_are_errors(tmp_path):
    parses = read_parses(tmp_path, RAINS)
    with pytest.raises(DataError, match=r"parses.conllu: must contain .* no parse of 'It rained.'"):
        parses["It rained."]
    with pytest.raises(DataError, match=r"must be a file, or a folder with files"):
        ParsedTexts(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="has no sentences"):
        read_parses(tmp_path, "# newdoc\n\n")
