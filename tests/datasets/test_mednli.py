"""MedNLI as it is handed out, from a folder only."""

import json

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import MedNli


def test_three_files_are_three_splits(tmp_path):
    labels = {"train": ["neutral", "entailment"], "dev": ["contradiction"], "test": ["neutral"]}
    for part, own in labels.items():
        rows = [
            {
                "gold_label": label,
                "sentence1": f"{part} {i} ",
                "sentence2": "No fever.",
                "pairID": i,
            }
            for i, label in enumerate(own)
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


def test_nothing_is_downloaded(tmp_path):
    with pytest.raises(
        DataError, match=r"manual_dir must be the folder of the raw files; got None"
    ):
        MedNli(data_dir=tmp_path)
    with pytest.raises(DataError, match=r"looked here .* for mli_train_v1.jsonl, mli_dev_v1.jsonl"):
        MedNli(manual_dir=tmp_path, data_dir=tmp_path)
