"""Tests of MedNLI."""

import json

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import MedNli


def test_the_three_files_become_three_splits(tmp_path):
    labels = {"train": ["neutral", "entailment"], "dev": ["contradiction"], "test": ["neutral"]}
    for part, part_labels in labels.items():
        rows = [
            {
                "gold_label": label,
                "sentence1": f"{part} {i} ",
                "sentence2": "No fever.",
                "pairID": i,
            }
            for i, label in enumerate(part_labels)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"mli_{part}_v1.jsonl").write_text(lines)
    builder = MedNli(manual_dir=tmp_path, data_dir=tmp_path / "data")
    assert load_split(builder, "train") == [
        {"premise": "train 0", "hypothesis": "No fever.", "label": 1},
        {"premise": "train 1", "hypothesis": "No fever.", "label": 0},
    ]
    assert [row["label"] for row in load_split(builder, "validation")] == [2]
    assert [row["premise"] for row in load_split(builder, "test")] == ["test 0"]


def test_the_files_must_be_passed_by_the_user(tmp_path):
    with pytest.raises(
        DataError, match=r"--data.manual-dir\) must be the folder with the raw files; got None"
    ):
        MedNli(data_dir=tmp_path)
    with pytest.raises(DataError, match=r"must contain mli_train_v1.jsonl, mli_dev_v1.jsonl"):
        MedNli(manual_dir=tmp_path, data_dir=tmp_path)
