"""Tests of MultiNLI."""

import json
import re

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import MultiNli

LABELS = ("entailment", "neutral", "contradiction")
TRAIN = [(LABELS[i % 3], f"Premise {i // 3}.", f" Hypothesis {i}.") for i in range(60)]
MATCHED = [("neutral", "A.", "B."), ("-", "A.", "C."), ("contradiction", "A.", "D.")]
PARTS = {"train": TRAIN, "dev_matched": MATCHED, "dev_mismatched": [("entailment", "E.", "F.")]}


def format_json(pairs):
    names = ("gold_label", "sentence1", "sentence2")
    rows = (dict(zip(names, pair, strict=True)) for pair in pairs)
    return "".join(json.dumps({"annotator_labels": [], **row}) + "\n" for row in rows)


def format_table(pairs):
    rows = [("index", "sentence1", "sentence2", "gold_label")]
    rows += [(str(i), first, second, label) for i, (label, first, second) in enumerate(pairs)]
    return "".join("\t".join(row) + "\n" for row in rows)


def write(folder, form, parts=PARTS):
    folder.mkdir(parents=True, exist_ok=True)
    for part, pairs in parts.items():
        content = format_json(pairs) if form.endswith("jsonl") else format_table(pairs)
        (folder / form.format(part)).write_text(content)
    return folder


@pytest.mark.parametrize(
    "form", ["multinli_1.0_{}.jsonl", "multinli_1.0_{}.txt", "multinli_1.0_{}.tsv", "{}.tsv"]
)
def test_every_pair_is_in_one_split_and_splits_share_no_premise(tmp_path, form):
    raw = write(tmp_path / "raw" / "multinli_1.0", form).parent
    builder = MultiNli(manual_dir=raw, data_dir=tmp_path / "data")
    assert builder.info.features["label"].names == list(LABELS)
    train, validation = (load_split(builder, split) for split in ("train", "validation"))
    assert (len(train), len(validation)) == (54, 6)
    assert not {pair["premise"] for pair in train} & {pair["premise"] for pair in validation}
    found = {(LABELS[p["label"]], p["premise"], p["hypothesis"]) for p in train + validation}
    assert found == {(label, first, second.strip()) for label, first, second in TRAIN}
    numbers = [int(pair["hypothesis"].split()[1][:-1]) for pair in train]
    assert numbers == sorted(numbers)
    assert [pair["label"] for pair in load_split(builder, "test")] == [1, 2]
    assert [pair["premise"] for pair in load_split(builder, "test_mismatched")] == ["E."]
    assert builder.describe_rows() == (
        "train: 54 rows",
        "validation: 6 rows",
        "test: 2 rows, of 9,815 in the published set (a part)",
        "test_mismatched: 1 rows, of 9,832 in the published set (a part)",
        "left out: 1 pairs without a consensus on their label",
        "train and validation: 60 rows, of 392,702 in the published train set",
    )


def test_validation_is_the_same_if_dev_mismatched_is_missing(tmp_path):
    few = {part: PARTS[part] for part in ("train", "dev_matched")}
    builders = [
        MultiNli(
            manual_dir=write(tmp_path / name, "multinli_1.0_{}.jsonl", parts),
            data_dir=tmp_path / f"data {name}",
        )
        for name, parts in (("few", few), ("all", PARTS))
    ]
    assert load_split(builders[0], "validation") == load_split(builders[1], "validation")
    assert "test_mismatched" not in builders[0].info.splits


def test_an_unknown_label_is_an_error_that_names_file_and_line(tmp_path):
    parts = PARTS | {"dev_matched": [*MATCHED, ("maybe", "A", "B")]}
    raw = write(tmp_path, "{}.tsv", parts)
    message = f"{raw}/dev_matched.tsv:5: gold_label must be one of ['entailment', "
    with pytest.raises(DataError, match=re.escape(message) + ".*; got 'maybe'"):
        MultiNli(manual_dir=raw, data_dir=tmp_path / "data").prepare()
