"""Tests of natural language inference: SNLI with two classes, MultiNLI and MedNLI."""

import json
import re
import zipfile

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import MedNli, MultiNli, Snli

LABELS = ("entailment", "neutral", "contradiction")
COLUMNS = ("gold_label", "sentence1", "sentence2")
SNLI = {
    "train": [
        ("neutral", 'A "dog" runs.', "It is brown."),
        ("-", "A cat.", "A pet?"),
        ("entailment", "A dog runs.", "An animal moves. "),
        ("contradiction", "A dog runs.", "Nothing moves."),
    ],
    "dev": [("entailment", "A.", "B.")],
    "test": [("-", "A.", "B."), ("contradiction", "C.", "D.")],
}
MULTI_NLI = {
    "train": [(LABELS[i % 3], f"Premise {i // 3}.", f" Hypothesis {i}.") for i in range(60)],
    "dev_matched": [("neutral", "A.", "B."), ("-", "A.", "C."), ("contradiction", "A.", "D.")],
    "dev_mismatched": [("entailment", "E.", "F.")],
}
MED_NLI = {
    "train": [("neutral", "train 0 ", "No fever."), ("entailment", "train 1", "No fever.")],
    "dev": [("contradiction", "dev 0", "No fever.")],
    "test": [("neutral", "test 0", "No fever.")],
}


def write(folder, name, parts):
    """Write a file for each part: JSON if the name ends in jsonl, otherwise a table."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, pairs in parts.items():
        if name.endswith("jsonl"):
            rows = [dict(zip(COLUMNS, pair, strict=True)) for pair in pairs]
            lines = [json.dumps({"annotator_labels": [], **row, "pairID": "x"}) for row in rows]
        else:
            rows = [(*COLUMNS, "sentence1_parse"), *((*pair, "( A )") for pair in pairs)]
            lines = ["\t".join(row) for row in rows]
        (folder / name.format(part)).write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("ending", "subfolder"), [("jsonl", ""), ("txt", "snli_1.0"), ("tsv", "snli_1.0")]
)
def test_neutral_and_contradiction_become_not_entailment(tmp_path, ending, subfolder):
    write(tmp_path / "raw" / subfolder, f"snli_1.0_{{}}.{ending}", SNLI)
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = Snli(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
        names = builder.info.features["label"].names
        rows = load_split(builder, "train")
        assert [(r["premise"], r["hypothesis"], names[r["label"]]) for r in rows] == [
            ('A "dog" runs.', "It is brown.", "not_entailment"),
            ("A dog runs.", "An animal moves.", "entailment"),
            ("A dog runs.", "Nothing moves.", "not_entailment"),
        ]
        assert [len(load_split(builder, split)) for split in ("validation", "test")] == [1, 1]
        assert builder.left_out == {"pairs without a consensus on their label": 2}
        assert builder.describe_rows() == (
            "train: 3 rows, of 549,367 in the published set (a part)",
            "validation: 1 rows, of 9,842 in the published set (a part)",
            "test: 1 rows, of 9,824 in the published set (a part)",
            "left out: 2 pairs without a consensus on their label",
        )


def test_the_published_archive_with_two_layouts_is_read(tmp_path, monkeypatch):
    raw = write(tmp_path / "raw", "snli_1.0_{}.jsonl", SNLI)
    write(raw, "snli_1.0_{}.txt", {split: pairs[-1:] for split, pairs in SNLI.items()})
    with zipfile.ZipFile(tmp_path / "snli.zip", "w") as archive:
        for path in raw.iterdir():
            archive.write(path, f"snli_1.0/{path.name}")
            archive.writestr(f"__MACOSX/snli_1.0/._{path.name}", "")
    monkeypatch.setattr(Snli, "URLS", {(tmp_path / "snli.zip").as_uri(): ""})
    monkeypatch.setattr(Snli, "PUBLISHED_ROWS", {"train": 3, "validation": 1, "test": 1})
    assert len(load_split(Snli(data_dir=tmp_path / "data"), "train")) == 3


@pytest.mark.parametrize(
    "name", ["multinli_1.0_{}.jsonl", "multinli_1.0_{}.txt", "multinli_1.0_{}.tsv", "{}.tsv"]
)
def test_every_pair_is_in_one_split_and_splits_share_no_premise(tmp_path, name):
    write(tmp_path / "raw" / "multinli_1.0", name, MULTI_NLI)
    builder = MultiNli(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
    assert builder.info.features["label"].names == list(LABELS)
    train, validation = (load_split(builder, split) for split in ("train", "validation"))
    assert (len(train), len(validation)) == (54, 6)
    assert not {pair["premise"] for pair in train} & {pair["premise"] for pair in validation}
    found = {(LABELS[p["label"]], p["premise"], f" {p['hypothesis']}") for p in train + validation}
    assert found == set(MULTI_NLI["train"])
    numbers = [int(pair["hypothesis"].split()[1][:-1]) for pair in train]
    assert numbers == sorted(numbers)
    assert [pair["label"] for pair in load_split(builder, "test")] == [1, 2]
    assert [pair["premise"] for pair in load_split(builder, "test_mismatched")] == ["E."]
    assert builder.describe_rows() == (
        "pairs: 54 of train, 6 of validation",
        "test: 2 rows, of 9,815 in the published set (a part)",
        "test_mismatched: 1 rows, of 9,832 in the published set (a part)",
        "left out: 1 pairs without a consensus on their label",
        "train and validation: 60 rows, of 392,702 in the published train set",
    )


def test_validation_is_the_same_if_dev_mismatched_is_missing(tmp_path):
    few = {part: MULTI_NLI[part] for part in ("train", "dev_matched")}
    builders = []
    for folder, parts in ((tmp_path / "few", few), (tmp_path / "all", MULTI_NLI)):
        write(folder / "raw", "multinli_1.0_{}.jsonl", parts)
        builders.append(MultiNli(manual_dir=folder / "raw", data_dir=folder / "data"))
    assert load_split(builders[0], "validation") == load_split(builders[1], "validation")
    assert "test_mismatched" not in builders[0].info.splits


def test_the_three_files_of_mednli_become_three_splits(tmp_path):
    write(tmp_path, "mli_{}_v1.jsonl", MED_NLI)
    builder = MedNli(manual_dir=tmp_path, data_dir=tmp_path / "data")
    assert load_split(builder, "train") == [
        {"premise": "train 0", "hypothesis": "No fever.", "label": 1},
        {"premise": "train 1", "hypothesis": "No fever.", "label": 0},
    ]
    assert [row["label"] for row in load_split(builder, "validation")] == [2]
    assert [row["premise"] for row in load_split(builder, "test")] == ["test 0"]


@pytest.mark.parametrize(
    ("builder", "name", "parts", "line"),
    [
        (Snli, "snli_1.0_dev.jsonl", SNLI, 2),
        (Snli, "snli_1.0_dev.txt", SNLI, 3),
        (MultiNli, "dev_matched.tsv", MULTI_NLI, 5),
    ],
)
def test_an_unknown_label_is_an_error_that_names_file_and_line(
    tmp_path, builder, name, parts, line
):
    part = "dev" if builder is Snli else "dev_matched"
    write(tmp_path, name.replace(part, "{}"), parts | {part: [*parts[part], ("maybe", "A", "B")]})
    message = re.escape(f"{tmp_path}/{name}:{line}: gold_label must be one of ['entailment', ")
    with pytest.raises(DataError, match=f"{message}.*; got 'maybe'"):
        builder(manual_dir=tmp_path, data_dir=tmp_path / "data").prepare()


def test_missing_files_are_an_error_that_names_them(tmp_path):
    with pytest.raises(DataError, match=r"snli_1.0_train.jsonl, .*, or snli_1.0_train.txt, "):
        Snli(manual_dir=tmp_path, data_dir=tmp_path)
    with pytest.raises(DataError, match=r"must contain mli_train_v1.jsonl, mli_dev_v1.jsonl"):
        MedNli(manual_dir=tmp_path, data_dir=tmp_path)
    with pytest.raises(DataError, match=r"manual-dir\) must be the folder with .* got None"):
        MedNli(data_dir=tmp_path)


def test_pairs_in_two_splits_are_found_only_if_both_sentences_are_equal(tmp_path):
    pairs = [("neutral", "train 0", "A fever."), ("entailment", " train  1", "No fever.")]
    raw = write(tmp_path / "raw", "mli_{}_v1.jsonl", {**MED_NLI, "test": pairs})
    builder = MedNli(manual_dir=raw, data_dir=tmp_path / "data")
    assert [(r.split, r.other, r.count, r.place, r.other_place) for r in builder.repeats] == [
        ("test", "train", 1, 2, 2)
    ]
