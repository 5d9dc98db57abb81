"""Tests of AG's News."""

import re

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import AgNews

TOPICS = ["World", "Sports", "Business", "Sci/Tech"]
ODD = '"3","He said ""buy"", so","a\\b, \\$5"\n"4","","alone "\n'


def write(folder, train, test):
    folder.mkdir(exist_ok=True)
    (folder / "train.csv").write_text(train)
    (folder / "test.csv").write_text(test)
    return folder


def make_rows(count):
    return "".join(f'"{1 + i % 4}","title {i}","text {i}"\n' for i in range(count))


def test_a_text_is_title_and_description_and_a_label_is_a_topic(tmp_path):
    builder = AgNews(manual_dir=write(tmp_path / "raw", make_rows(20), ODD), data_dir=tmp_path)
    names = builder.info.features["label"].names
    assert names == TOPICS
    examples = [(row["text"], names[row["label"]]) for row in load_split(builder, "test")]
    assert examples == [('He said "buy", so a\\b, \\$5', "Business"), ("alone", "Sci/Tech")]


def test_validation_is_always_the_same_tenth_of_the_training_rows(tmp_path):
    raw = write(tmp_path / "raw", make_rows(48), ODD)
    builder = AgNews(manual_dir=raw, data_dir=tmp_path / "a")
    train, validation = (load_split(builder, split) for split in ("train", "validation"))
    numbers = [[int(row["text"].split()[-1]) for row in split] for split in (train, validation)]
    assert numbers[1] == [8, 22, 23, 38, 41]  # fixed, so that the split never changes
    assert numbers[0] == [i for i in range(48) if i not in numbers[1]]
    assert all(row["label"] == number % 4 for row, number in zip(train, numbers[0], strict=True))
    again = AgNews(manual_dir=raw, data_dir=tmp_path / "b")
    assert load_split(again, "validation") == validation


def test_an_incomplete_set_is_described_as_a_part(tmp_path):
    builder = AgNews(manual_dir=write(tmp_path / "raw", make_rows(20), ODD), data_dir=tmp_path)
    assert builder.describe_rows() == (
        "train: 18 rows, of 108,000 in the published set (a part)",
        "validation: 2 rows, of 12,000 in the published set (a part)",
        "test: 2 rows, of 7,600 in the published set (a part)",
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('"5","a","b"\n', r"the class must be one of \['1', '2', '3', '4'\]; got '5'"),
        ('"1",""," "\n', "title and description are both empty"),
        ('"1","a"\n', "must have 3 fields; got 2"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, row, reason):
    for file, contents in (
        ("train", (make_rows(20) + row, ODD)),
        ("test", (make_rows(20), make_rows(20) + row)),
    ):
        raw = write(tmp_path / file, *contents)
        builder = AgNews(manual_dir=raw, data_dir=tmp_path)
        with pytest.raises(DataError, match=re.escape(f"{raw / file}.csv:21: ") + reason):
            builder.prepare()


def test_missing_files_and_empty_splits_are_errors(tmp_path):
    raw = write(tmp_path / "raw", make_rows(4), ODD)
    with pytest.raises(DataError, match="raw: has no rows for the split 'validation'"):
        AgNews(manual_dir=raw, data_dir=tmp_path).prepare()
    (raw / "test.csv").unlink()
    with pytest.raises(DataError, match=r"test.csv: no such file; expected train.csv and test"):
        AgNews(manual_dir=raw, data_dir=tmp_path)
