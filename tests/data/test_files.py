"""Text and JSON files: what is refused, with the file and the line."""

import pytest

from distattn_jax.data.files import DataError, parse_json, read_lines
from distattn_jax.data.tokenizer import LONGEST_WORD, train_byte_level_bpe


@pytest.mark.parametrize("content", [b"a X\rb Y\r\rc Z\r", b"a\rb\rc\n", b"h\nB\rC\rD\n"])
def test_lines_that_end_with_carriage_returns_alone_are_refused(tmp_path, content):
    path = tmp_path / "train.conll"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train.conll: . carriage returns .* without a line feed"):
        list(read_lines(path))


@pytest.mark.parametrize("content", [b"a\r\nb\r\n", b"a\rb\nc\n", b"a", b"a\r", b""])
def test_other_carriage_returns_are_part_of_a_line_or_its_end(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content)
    assert "".join(line for _, line in read_lines(path)).encode() == content


def test_a_key_that_occurs_twice_is_refused():
    with pytest.raises(DataError, match=r"config.json:3: broken JSON, the key 'a' occurs twice"):
        parse_json('{"b": {"a": 1, "a": 2}}', "config.json:3")


def test_training_sees_the_beginning_of_a_long_word():
    """A word of 200,000 characters would take hours."""
    long_word = "ab" * 100_000
    tokenizer = train_byte_level_bpe([long_word, "ab " * 9], size=300)
    assert max(map(len, tokenizer.get_vocab())) <= LONGEST_WORD
    assert tokenizer.decode(tokenizer.encode(long_word).ids) == long_word
