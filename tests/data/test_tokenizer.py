"""Tests of training, saving and loading tokenizers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.data import (
    END_ID,
    END_TOKEN,
    PADDING_TOKEN,
    TOKENIZERS,
    UNKNOWN_TOKEN,
    DataError,
    decode,
    encode,
    load_tokenizer,
    save_tokenizer,
    train_byte_level_bpe,
    train_word_level,
    train_word_piece,
)

TEXTS = ["The cat's hat!", "a cat, THE cat; le château", "zeta eta theta iota kappa", "", "[PAD] x"]
SIZES = {"word_level": {}, "word_piece": {"size": 90}, "byte_level_bpe": {"size": 280}}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_equal_texts_give_equal_ids_also_after_saving_and_loading(name, tmp_path):
    tokenizers = [TOKENIZERS[name](iter(TEXTS), **SIZES[name]) for _ in range(4)]
    assert len({tokenizer.to_str() for tokenizer in tokenizers}) == 1
    tokenizer = tokenizers[0]
    assert [tokenizer.id_to_token(i) for i in (0, 1)] == [PADDING_TOKEN, UNKNOWN_TOKEN]
    path = tmp_path / "run" / "tokenizer.json"
    save_tokenizer(tokenizer, path)
    expected, actual = encode(tokenizer, TEXTS), encode(load_tokenizer(path), TEXTS)
    np.testing.assert_array_equal(actual.values, expected.values)
    assert expected.lengths[3] == 0
    assert (expected.values > 1).all()  # no word of a training text is unknown


def test_words_are_sorted_by_count_then_alphabetically():
    tokenizer = train_word_level(TEXTS[:2])
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    words = ["cat", "the", "!", "'", ",", ";", "a", "château", "hat", "le", "s"]
    assert vocabulary == [PADDING_TOKEN, UNKNOWN_TOKEN, *words]
    assert train_word_level(TEXTS[:2], min_count=2).get_vocab_size() == 4
    assert train_word_level(TEXTS[:2], max_size=3).get_vocab() == {
        PADDING_TOKEN: 0,
        UNKNOWN_TOKEN: 1,
        "cat": 2,
    }
    ragged = encode(tokenizer, iter(["the dog [PAD]", "", "CAT"]))
    assert ragged.values.tolist() == [3, 1, 1, 1, 1, 2]
    assert ragged.offsets.tolist() == [0, 5, 5, 6]


def test_a_new_word_is_made_of_known_pieces():
    tokenizer = train_word_piece(TEXTS, size=90)
    tokens = tokenizer.encode("Tacx").tokens
    assert "".join(tokens).replace("##", "") == "tacx"
    assert encode(tokenizer, ["ß"]).values.tolist() == [1]


def test_byte_level_bpe_restores_every_text():
    tokenizer = train_byte_level_bpe(TEXTS, size=280)
    text = " Ω ≠ [UNK]\n\tthe  cat"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == 280


END_TOKENIZER = train_byte_level_bpe([*TEXTS, "[END] [END] [END]"], size=290, end=True)
# All characters but surrogates. `st.characters` would first make its table of Unicode, for 2 s.
CODES = st.one_of(st.integers(0, 127), st.integers(128, 0xD7FF), st.integers(0xE000, 0x10FFFF))


@given(st.lists(st.lists(CODES.map(chr)).map("".join), min_size=1, max_size=4))
def test_every_text_ends_with_the_end_token_and_is_decoded_exactly(texts):
    columns = encode(END_TOKENIZER, texts)
    length = int(columns.lengths.max()) + 2
    padded, lengths = columns.pad(np.arange(len(texts)), length)
    for row, size in zip(padded, lengths, strict=True):
        assert row[size - 1] == END_ID
        assert (row[: size - 1] > END_ID).all()
    assert decode(END_TOKENIZER, padded) == texts


def test_the_end_token_has_id_2_after_saving_too_and_its_name_is_plain_text(tmp_path):
    save_tokenizer(END_TOKENIZER, tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded.id_to_token(END_ID) == END_TOKEN
    ids = loaded.encode("[END] the").ids
    assert ids.index(END_ID) == len(ids) - 1
    assert decode(loaded, [ids, [*ids, 5, 6], [], [END_ID, 9]]) == ["[END] the"] * 2 + ["", ""]


def test_an_invalid_argument_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match=r"data.vocabulary\) must be at least 258, .* got 200"):
        train_byte_level_bpe(TEXTS, size=200)
    with pytest.raises(ValueError, match=r"--data.vocabulary\) must be at least \d+, .*; got 5"):
        train_word_piece(TEXTS, size=5)
    with pytest.raises(ValueError, match=r"texts must be a collection of texts; got .* 'one text'"):
        train_word_level("one text")
    with pytest.raises(FileNotFoundError, match=r"path must be a tokenizer.json"):
        load_tokenizer(tmp_path / "no.json")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("{", "", "not a tokenizer, "),
        ("the", "\udcff", ":\\d+: not UTF-8, "),
        ("[UNK]", "[UNK", "not a tokenizer, .*UNK"),
        ('"cat": 2', '"cat": 999999', "the ids of its tokens must be 0 to \\d+"),
        ('"cat": 2', '"cat": 1', "the ids of its tokens must be 0 to \\d+"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, before, after, message):
    path = tmp_path / "tokenizer.json"
    save_tokenizer(train_word_level(TEXTS), path)
    assert before in path.read_text()
    content = path.read_text().replace(before, after, 1)
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=f"tokenizer.json.*{message}"):
        load_tokenizer(path)
