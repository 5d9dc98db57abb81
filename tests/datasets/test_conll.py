"""CoNLL files become sentences with tags. Tags of an unknown scheme are refused."""

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import Conll

FILES = {
    "train.txt": "-DOCSTART- O\n\nEU B-ORG\nrejects O\n\n\n\nGerman B-MISC\n",
    "dev.txt": "EU B-ORG\n",
    "test.txt": "New B-LOC\nYork I-LOC\n",
}


@pytest.fixture
def make(tmp_path):
    """Return a function that makes the builder of `FILES`, with some files replaced."""

    def make(**files):
        folder = tmp_path / "raw"
        folder.mkdir()
        for name, content in (FILES | files).items():
            if content is not None:
                (folder / name).write_text(content)
        return Conll(manual_dir=folder, data_dir=tmp_path)

    return make


def test_sentences_are_read_and_empty_ones_are_counted(make):
    builder = make()
    assert load_split(builder, "train") == [
        {"text": "EU rejects", "label": [2, 4]},
        {"text": "German", "label": [1]},
    ]
    assert builder.left_out == {"-DOCSTART- lines of train": 1, "empty sentences of train": 2}


def test_classes_are_the_tags_of_all_files(make):
    builder = make()
    builder.prepare()
    names = builder.info.features["label"].names
    assert names == ["B-LOC", "B-MISC", "B-ORG", "I-LOC", "O"]
    (row,) = load_split(builder, "test")
    assert [names[i] for i in row["label"]] == ["B-LOC", "I-LOC"]


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("LOC", r"test.txt:2: the tag must be O, or a type after B-, .* got 'LOC'\.$"),
        ("I-", r"test.txt:2: the tag must be O, or a type after B-, .* got 'I-'\.$"),
        ("L-LOC", r"test.txt:2: .* got 'L-LOC', of an unknown scheme. In BILOU, L- means E-"),
    ],
)
def test_a_tag_that_does_not_fit_to_spans_is_named(make, tag, message):
    builder = make(**{"test.txt": f"New B-LOC\nYork {tag}\n"})
    with pytest.raises(DataError, match=message):
        builder.prepare()


def test_tags_without_prefixes_may_have_any_form(make):
    builder = make(**dict.fromkeys(FILES, "( -LRB-\na O\nb L-X\n"))
    builder.prepare()
    assert builder.info.features["label"].names == ["-LRB-", "L-X", "O"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"dev.txt": None}, "one file validation or valid or val or dev with .* found none"),
        ({"valid.conll": "a O\n"}, "found valid.conll, dev.txt"),
        ({"dev.txt": None, "dev.conllu": "\n"}, "all CoNLL-U .* train.txt, dev.conllu, test.txt"),
    ],
)
def test_missing_and_ambiguous_files_are_named(make, files, message):
    with pytest.raises(DataError, match=message):
        make(**files)


def test_a_file_without_words_is_refused(make):
    with pytest.raises(DataError, match="has no rows for the split 'test'"):
        make(**{"test.txt": "\n# nothing\n"}).prepare()


def test_a_sentence_in_two_splits_is_found_whatever_its_tags(make):
    (warning,) = make(**{"dev.txt": "New O\nYork B-PER\n"}).describe_repeats()
    assert warning.startswith("warning: test shares 1 of its 1 sentences (100.0 %) with validation")
