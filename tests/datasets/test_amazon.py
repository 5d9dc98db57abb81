"""Tests of Amazon Electronics."""

import gzip
import itertools
import json
import re

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import Amazon

SPLITS = ("train", "validation", "test")


def write(folder, count, *, name="reviews_Electronics_5.json.gz", more=()):
    """Write numbered reviews, of which every fifth is empty."""
    reviews = [
        {"asin": "x", "helpful": [0, 0], "overall": 1.0 + i % 5, "reviewText": f"no. {i}"}
        for i in range(count)
    ]
    for review in reviews[::5]:
        review["reviewText"] = " "
    content = "".join(json.dumps(review) + "\n" for review in [*reviews, *more]).encode()
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def load_numbers(builder):
    return {
        split: [int(row["text"].split()[-1]) for row in load_split(builder, split)]
        for split in SPLITS
    }


@pytest.mark.parametrize("name", ["reviews_Electronics_5.json.gz", "Electronics_sample.json"])
def test_a_small_file_is_divided_completely_and_in_order(tmp_path, name):
    raw = write(tmp_path / "raw", 50, name=name)
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = Amazon(manual_dir=raw, data_dir=tmp_path / "data")
        drawn = load_numbers(builder)
        assert [len(drawn[split]) for split in SPLITS] == [32, 4, 4]
        assert sorted(itertools.chain(*drawn.values())) == [i for i in range(50) if i % 5]
        assert all(rows == sorted(rows) for rows in drawn.values())
        assert drawn["test"] != list(range(46, 50))
        assert builder.left_out == {"empty reviews": 10}
        assert builder.describe_rows() == (
            "the file: 50 rows, of 1,689,188 in the published set (a part)",
            "train: 32 rows, of 40,000 in the published set (a part)",
            "validation: 4 rows, of 5,000 in the published set (a part)",
            "test: 4 rows, of 5,000 in the published set (a part)",
            "left out: 10 empty reviews",
        )
    names = builder.info.features["label"].names
    stars = [names[row["label"]] for row in load_split(builder, "train")]
    assert stars == [str(1 + number % 5) for number in drawn["train"]]


def test_a_large_file_is_sampled_to_the_sizes_of_the_paper(tmp_path, monkeypatch):
    monkeypatch.setattr(Amazon, "SIZES", {"train": 8, "validation": 2, "test": 1})
    raw = write(tmp_path / "raw", 100)
    drawn = load_numbers(Amazon(manual_dir=raw, data_dir=tmp_path / "a"))
    assert [len(drawn[split]) for split in SPLITS] == [8, 2, 1]
    assert len(set(itertools.chain(*drawn.values()))) == 11
    assert drawn == load_numbers(Amazon(manual_dir=raw, data_dir=tmp_path / "b"))
    assert max(drawn["train"]) > 50


@pytest.mark.parametrize(
    ("review", "reason"),
    [
        ({"overall": 3.5, "reviewText": "a"}, "overall must be a whole number .* 5; got '3."),
        ({"overall": 6, "reviewText": "a"}, "overall must be a whole number from 1 to 5; got '6'"),
        ({"overall": 5.0}, "no column 'reviewText'"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, review, reason):
    raw = write(tmp_path / "raw", 20, more=[review])
    path = raw / "reviews_Electronics_5.json.gz"
    with pytest.raises(DataError, match=f"{re.escape(str(path))}:21: {reason}"):
        Amazon(manual_dir=raw, data_dir=tmp_path).prepare()


def test_the_folder_must_contain_exactly_one_file(tmp_path):
    with pytest.raises(DataError, match=r"one file whose name contains Electronics .*; found none"):
        Amazon(manual_dir=tmp_path, data_dir=tmp_path)
    for name in ("a_Electronics.json", "b_Electronics.json"):
        write(tmp_path, 5, name=name)
    with pytest.raises(DataError, match=r"found \['a_Electronics.json', 'b_Electronics.json'\]"):
        Amazon(manual_dir=tmp_path, data_dir=tmp_path)
