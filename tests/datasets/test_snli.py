"""Tests of SNLI with two classes."""

import json
import re
import zipfile

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import Snli

PAIRS = {
    "train": [
        ("neutral", 'A "dog" runs.', "It is brown."),
        ("-", "A cat.", "A pet?"),
        ("entailment", "A dog runs.", "An animal moves. "),
        ("contradiction", "A dog runs.", "Nothing moves."),
    ],
    "dev": [("entailment", "A.", "B.")],
    "test": [("-", "A.", "B."), ("contradiction", "C.", "D.")],
}
EXPECTED = [
    ('A "dog" runs.', "It is brown.", "not_entailment"),
    ("A dog runs.", "An animal moves.", "entailment"),
    ("A dog runs.", "Nothing moves.", "not_entailment"),
]


def format_json(pairs):
    columns = ("gold_label", "sentence1", "sentence2")
    rows = (dict(zip(columns, pair, strict=True)) for pair in pairs)
    return "".join(
        json.dumps({"annotator_labels": [], **row, "pairID": "x"}) + "\n" for row in rows
    )


def format_table(pairs):
    rows = [("gold_label", "sentence1_parse", "sentence1", "sentence2", "label1", "label2")]
    rows += [
        (label, "( A )", premise, hypothesis, label, "") for label, premise, hypothesis in pairs
    ]
    return "".join("\t".join(row) + "\n" for row in rows)


def write(folder, ending, pairs):
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in pairs.items():
        content = format_json(rows) if ending == "jsonl" else format_table(rows)
        (folder / f"snli_1.0_{split}.{ending}").write_text(content)
    return folder


@pytest.mark.parametrize("subfolder", ["", "snli_1.0"])
@pytest.mark.parametrize("ending", ["jsonl", "txt", "tsv"])
def test_neutral_and_contradiction_become_not_entailment(tmp_path, ending, subfolder):
    write(tmp_path / "raw" / subfolder, ending, PAIRS)
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = Snli(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
        names = builder.info.features["label"].names
        rows = load_split(builder, "train")
        assert [(r["premise"], r["hypothesis"], names[r["label"]]) for r in rows] == EXPECTED
        assert [len(load_split(builder, split)) for split in ("validation", "test")] == [1, 1]
        assert builder.left_out == {"pairs without a consensus on their label": 2}
        assert builder.describe_rows() == (
            "train: 3 rows, of 549,367 in the published set (a part)",
            "validation: 1 rows, of 9,842 in the published set (a part)",
            "test: 1 rows, of 9,824 in the published set (a part)",
            "left out: 2 pairs without a consensus on their label",
        )


def test_the_published_archive_with_two_layouts_is_read(tmp_path, monkeypatch):
    raw = write(tmp_path / "raw" / "snli_1.0", "jsonl", PAIRS)
    write(raw, "txt", {split: rows[-1:] for split, rows in PAIRS.items()})
    with zipfile.ZipFile(tmp_path / "snli.zip", "w") as archive:
        for path in raw.iterdir():
            archive.write(path, f"snli_1.0/{path.name}")
            archive.writestr(f"__MACOSX/snli_1.0/._{path.name}", "")
    monkeypatch.setattr(Snli, "URLS", {(tmp_path / "snli.zip").as_uri(): ""})
    monkeypatch.setattr(Snli, "PUBLISHED_ROWS", {"train": 3, "validation": 1, "test": 1})
    assert len(load_split(Snli(data_dir=tmp_path / "data"), "train")) == 3


@pytest.mark.parametrize(("ending", "line"), [("jsonl", 2), ("txt", 3)])
def test_an_unknown_label_is_an_error_that_names_file_and_line(tmp_path, ending, line):
    raw = write(tmp_path, ending, PAIRS | {"dev": [*PAIRS["dev"], ("maybe", "A", "B")]})
    message = f"{raw}/snli_1.0_dev.{ending}:{line}: gold_label must be one of ['entailment', "
    with pytest.raises(DataError, match=re.escape(message) + ".*; got 'maybe'"):
        Snli(manual_dir=raw, data_dir=tmp_path / "data").prepare()


def test_missing_files_are_an_error_that_names_them(tmp_path):
    with pytest.raises(
        DataError, match=r"must contain snli_1.0_train.jsonl, .*, or snli_1.0_train.txt, "
    ):
        Snli(manual_dir=tmp_path, data_dir=tmp_path)
