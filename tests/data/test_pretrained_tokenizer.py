"""Tests of encoding pairs for BERT and RoBERTa, with words, heads and vectors per token."""

import json
import re

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from distattn_jax.data import (
    DataError,
    ParsedTexts,
    encode_pairs,
    list_words,
    load_pretrained_tokenizer,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, "a", "dog", "do", "run", "##s", ".", "don", "'", "t", "cafe"]
WITHOUT_UNKNOWN = Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]")).to_str().encode()
FIRST, SECOND = "A dog runs.", "dogs don't run"


def write_bert(folder, pieces=PIECES, **settings):
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def write_roberta(folder):
    """Write a RoBERTa tokenizer of single bytes, with truncation and padding enabled."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(ids, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def pieces(text):
    return text.split()


def get_rows(encoded, name):
    return [row.tolist() for row in encoded.columns[name].split()]


def get_tokens(tokenizer, encoded):
    return [[tokenizer.id_to_token(i) for i in row] for row in get_rows(encoded, "tokens")]


def test_bert_pairs_have_three_special_tokens_and_two_types(tmp_path):
    tokenizer = load_pretrained_tokenizer(write_bert(tmp_path))
    encoded = encode_pairs(tokenizer, [FIRST, ""], [SECOND, "Café"], 20)
    assert get_tokens(tokenizer, encoded) == [
        pieces("[CLS] a dog run ##s . [SEP] dog ##s don ' t run [SEP]"),
        pieces("[CLS] [SEP] cafe [SEP]"),
    ]
    assert get_rows(encoded, "types") == [[0] * 7 + [1] * 7, [0, 0, 1, 1]]
    assert get_rows(encoded, "words") == [[0, 1, 2, 3, 3, 4, 0, 5, 5, 6, 7, 8, 9, 0], [0, 0, 1, 0]]
    assert encoded.truncated == 0
    assert encoded.columns.keys() == {"tokens", "types", "words"}


def test_a_single_text_is_encoded_without_a_second_one(tmp_path):
    tokenizer = load_pretrained_tokenizer(write_bert(tmp_path))
    encoded = encode_pairs(tokenizer, [FIRST, "run"], None, 5)
    assert get_tokens(tokenizer, encoded) == [
        pieces("[CLS] a dog run [SEP]"),
        pieces("[CLS] run [SEP]"),
    ]
    assert get_rows(encoded, "types") == [[0] * 5, [0] * 3]
    assert encoded.truncated == 1


def test_roberta_pairs_have_four_special_tokens_and_one_type(tmp_path):
    tokenizer = load_pretrained_tokenizer(write_roberta(tmp_path))
    encoded = encode_pairs(tokenizer, ["ab c"], ["d"], 50)
    assert get_tokens(tokenizer, encoded) == [pieces("<s> a b Ġ c </s> </s> d </s>")]
    assert get_rows(encoded, "types") == [[0] * 9]
    assert get_rows(encoded, "words") == [[0, 1, 1, 2, 2, 0, 0, 3, 0]]


@pytest.mark.parametrize("longest", [4, 5, 6, 8, 9, 12, 13, 30])
def test_the_longer_text_is_truncated_first(tmp_path, longest):
    tokenizer = load_pretrained_tokenizer(write_bert(tmp_path))
    lengths = [(a, b) for a in range(8) for b in range(8)]
    firsts, seconds = (["run " * pair[i] for pair in lengths] for i in (0, 1))
    encoded = encode_pairs(tokenizer, firsts, seconds, longest)
    truncated = 0
    for (a, b), row in zip(lengths, get_tokens(tokenizer, encoded), strict=True):
        truncated += a + b + 3 > longest
        while a + b + 3 > longest:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        assert row == ["[CLS]", *["run"] * a, "[SEP]", *["run"] * b, "[SEP]"]
    assert encoded.truncated == truncated


def write_parses(folder):
    rows = {
        FIRST: [("A", 2), ("dog", 3), ("runs", 0), (".", 3)],
        SECOND: [("dogs", 4), ("do", 4), ("n't", 4), ("run", 0)],
    }
    lines = [
        f"{i}\t{form}\t_\t_\t_\t_\t{head}\tdep\t_\t_\n" + "\n" * (i == len(words))
        for words in rows.values()
        for i, (form, head) in enumerate(words, start=1)
    ]
    (folder / "parses.conllu").write_text("".join(lines))
    return ParsedTexts(folder / "parses.conllu")


def test_heads_are_word_numbers_and_truncated_heads_are_zero(tmp_path):
    tokenizer, parses = load_pretrained_tokenizer(write_bert(tmp_path)), write_parses(tmp_path)
    encoded = encode_pairs(tokenizer, [FIRST], [SECOND], 20, parses=parses)
    # [CLS] a dog run ##s . [SEP] dog ##s don ' t run [SEP]; "don" begins in "do"
    assert get_rows(encoded, "words") == [[0, 1, 2, 3, 3, 4, 0, 5, 5, 6, 7, 7, 8, 0]]
    assert get_rows(encoded, "heads") == [[0, 2, 3, 0, 0, 3, 0, 8, 8, 8, 8, 8, 0, 0]]
    truncated = encode_pairs(tokenizer, [FIRST], [SECOND], 11, parses=parses)
    # [CLS] a dog run ##s [SEP] dog ##s don ' [SEP]: the last "run", which is a head, is truncated
    assert get_rows(truncated, "words") == [[0, 1, 2, 3, 3, 0, 5, 5, 6, 7, 0]]
    assert get_rows(truncated, "heads") == [[0, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]]
    alone = encode_pairs(tokenizer, [SECOND], None, 20, parses=parses)
    assert get_rows(alone, "heads") == [[0, 4, 4, 4, 4, 4, 0, 0]]
    with pytest.raises(DataError, match="found no parse of 'Dogs run'"):
        encode_pairs(tokenizer, ["Dogs run"], None, 20, parses=parses)


def test_heads_are_aligned_with_byte_tokens(tmp_path):
    tokenizer, parses = load_pretrained_tokenizer(write_roberta(tmp_path)), write_parses(tmp_path)
    encoded = encode_pairs(tokenizer, [FIRST], [FIRST], 50, parses=parses)
    # A space is a token here and belongs to no word.
    words = [1, 0, 2, 2, 2, 0, 3, 3, 3, 3, 4]
    heads = [2, 0, 3, 3, 3, 0, 0, 0, 0, 0, 3]
    second = [[i and i + 4 for i in column] for column in (words, heads)]
    assert get_rows(encoded, "words") == [[0, *words, 0, 0, *second[0], 0]]
    assert get_rows(encoded, "heads") == [[0, *heads, 0, 0, *second[1], 0]]


def test_all_tokens_of_a_word_have_the_row_of_its_vector(tmp_path):
    tokenizer = load_pretrained_tokenizer(write_bert(tmp_path))
    assert list_words(tokenizer, [FIRST, "dog"]) == [".", "A", "a", "dog", "runs"]
    rows = {"runs": 1, "a": 2, "dogs": 3, "A": 4}
    encoded = encode_pairs(tokenizer, [FIRST], ["a Dogs"], 20, vectors=rows)
    # [CLS] a dog run ##s . [SEP] a dog ##s [SEP]
    assert get_rows(encoded, "vectors") == [[0, 4, 0, 1, 1, 0, 0, 2, 3, 3, 0]]


@pytest.mark.parametrize(
    ("settings", "more", "expected"),
    [
        ({}, [], ["a", "[UNK]"]),
        ({}, ["Dog"], ["[UNK]", "Dog"]),
        ({"do_lower_case": True}, ["Dog"], ["a", "dog"]),
        ({"do_lower_case": False}, [], ["[UNK]", "[UNK]"]),
    ],
)
def test_lower_casing_follows_the_config_or_else_the_vocabulary(tmp_path, settings, more, expected):
    pieces = PIECES + more if settings else [p for p in PIECES if p != "dog"] + more
    tokenizer = load_pretrained_tokenizer(write_bert(tmp_path, pieces, **settings))
    encoded = encode_pairs(tokenizer, ["A Dog"], None, 9)
    assert get_tokens(tokenizer, encoded)[0][1:-1] == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"[PAD]\n[UNK]\n\xff\n", r"vocab.txt:3: not UTF-8"),
        ("tokenizer.json", b"\xff", r"tokenizer.json:1: not UTF-8"),
        ("tokenizer.json", WITHOUT_UNKNOWN, r"tokenizer.json: not .*Missing \[UNK\] token"),
        ("tokenizer_config.json", b"{\n\n\xff}", r"tokenizer_config.json:3: not UTF-8"),
        ("tokenizer_config.json", b"{\n}}", r"tokenizer_config.json:2: broken JSON, .*column 2"),
        ("tokenizer_config.json", b"[" * 10**5, r"tokenizer_config.json: broken JSON, nested"),
        ("tokenizer_config.json", b"[]", r"tokenizer_config.json: must contain an object"),
        ("tokenizer_config.json", b'{"strip_accents": "no"}', r"json: strip_accents must .*'no'"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name, content, message):
    (write_bert(tmp_path) / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_pretrained_tokenizer(tmp_path)


def test_an_invalid_folder_or_argument_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError, match=r"must contain tokenizer.json or vocab.txt; found neither"):
        load_pretrained_tokenizer(tmp_path)
    write_bert(tmp_path, PIECES[1:])
    with pytest.raises(DataError, match=re.escape("vocab.txt: must contain one token per line")):
        load_pretrained_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer.json: not a tokenizer"):
        load_pretrained_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    tokenizer = load_pretrained_tokenizer(write_bert(tmp_path))
    with pytest.raises(ValueError, match=r"longest\) must be more than the 3 special .* got 3"):
        encode_pairs(tokenizer, ["a"], ["a"], 3)
    with pytest.raises(ValueError, match="second must contain 1 texts, as first; got 2"):
        encode_pairs(tokenizer, ["a"], ["a", "b"], 9)
