"""Tests of the IMDB reviews in both layouts."""

import json

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import Imdb

REVIEWS = {
    split: [
        (f"{split} review {i} <br /><br />end", ("negative", "positive")[i % 2]) for i in range(20)
    ]
    for split in ("train", "test")
}


def write_folders(folder):
    for split, reviews in REVIEWS.items():
        for label in ("neg", "pos", "unsup"):
            (folder / "aclImdb" / split / label).mkdir(parents=True)
        for i, (text, label) in enumerate(reviews):
            (folder / "aclImdb" / split / label[:3] / f"{i}_{i % 10}.txt").write_text(text)
        (folder / "aclImdb" / split / "unsup" / "0_0.txt").write_text("no label")
    return folder


def write_rows(folder, extra=()):
    folder.mkdir()
    for split, reviews in REVIEWS.items():
        rows = [*reviews, *extra] if split == "test" else reviews
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def read(builder, split):
    names = builder.info.features["label"].names
    return {(row["text"], names[row["label"]]) for row in load_split(builder, split)}


@pytest.mark.parametrize("write", [write_folders, write_rows])
def test_both_layouts_contain_the_same_reviews_without_line_breaks(tmp_path, write):
    builder = Imdb(manual_dir=write(tmp_path / "raw"), data_dir=tmp_path / "data")
    expected = {
        split: {(text.replace(" <br /><br />", " "), label) for text, label in reviews}
        for split, reviews in REVIEWS.items()
    }
    assert read(builder, "test") == expected["test"]
    train, validation = read(builder, "train"), read(builder, "validation")
    assert len(validation) == 2
    assert train | validation == expected["train"]
    assert not train & validation


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", "mixed"), r"test.jsonl:21: the label must be one of .*; got 'mixed'"),
        (("<br />", "pos"), r"test.jsonl:21: the review is empty"),
    ],
)
def test_a_bad_row_is_an_error_that_names_file_and_line(tmp_path, row, message):
    builder = Imdb(manual_dir=write_rows(tmp_path / "raw", [row]), data_dir=tmp_path / "data")
    with pytest.raises(DataError, match=message):
        builder.prepare()


def test_a_folder_without_reviews_is_an_error(tmp_path):
    (tmp_path / "raw" / "train" / "neg").mkdir(parents=True)
    with pytest.raises(DataError, match=r"train/neg: must contain reviews"):
        Imdb(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
