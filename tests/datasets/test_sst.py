"""Tests of binary SST in its published layouts."""

import re

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import Sst

TREES = {
    "train": (
        "(4 (2 The) (3 (4 best) (2 film)))\n"
        "(2 (2 so) (2 so))\n"
        "(1 (1 (2 -LRB-) (1 (1 bad) (2 -RRB-))) (2 1\\/2))\n"
    ),
    "dev": "(3 fine)\r\n",
    "test": "(0 (0 awful) (2 .))\n(2 (2 a) (2 b))",
}
FINE = {
    "train": "4 the best film\n2 so so\n1 -lrb- bad -rrb- 1\\/2\n",
    "dev": "3 fine\n",
    "test": "0 awful .\n2 a b\n",
}
BINARY = {"train": "1 the best film\n0 ( bad ) 1/2\n", "dev": "1 fine\n", "test": "0 awful .\n"}
GLUE = {
    "train": "sentence\tlabel\nthe best film \t1\n( bad ) 1/2 \t0\n",
    "dev": "sentence\tlabel\nfine\t1\n",
    "test": "sentence\tlabel\nawful .\t0\n",
}
LAYOUTS = {"{}.txt": TREES, "{}.tsv": GLUE, "stsa.binary.{}": BINARY, "stsa.fine.{}": FINE}
EXPECTED = {
    "train": [("the best film", "positive"), ("( bad ) 1/2", "negative")],
    "validation": [("fine", "positive")],
    "test": [("awful .", "negative")],
}


def write(folder, name, files):
    folder.mkdir(parents=True, exist_ok=True)
    for split, content in files.items():
        (folder / name.format(split)).write_text(content, newline="")
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_layouts_contain_the_same_sentences(tmp_path, name):
    subfolder = "trees" if LAYOUTS[name] in (TREES, GLUE) else ""
    write(tmp_path / "raw" / subfolder, name, LAYOUTS[name])
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = Sst(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
        names = builder.info.features["label"].names
        for split, expected in EXPECTED.items():
            rows = load_split(builder, split)
            assert [(row["text"].lower(), names[row["label"]]) for row in rows] == expected
        neutral = {"neutral sentences": 2} if LAYOUTS[name] in (TREES, FINE) else {}
        assert builder.left_out == neutral
        assert ("left out: 2 neutral sentences" in builder.describe_rows()) == bool(neutral)


def test_the_treebank_keeps_capital_letters(tmp_path):
    builder = Sst(manual_dir=write(tmp_path / "raw", "{}.txt", TREES), data_dir=tmp_path)
    assert load_split(builder, "train")[0]["text"] == "The best film"
    assert builder.describe_rows()[0] == "train: 2 rows, of 6,920 in the published set (a part)"


def test_glue_trains_on_phrases_and_needs_test_labels(tmp_path):
    raw = write(tmp_path / "raw", "{}.tsv", GLUE)
    about = Sst(manual_dir=raw, data_dir=tmp_path).describe_rows()
    assert about[0] == "train: 2 rows, of 67,349 in the published set (a part)"
    assert about[-1] == "train contains GLUE's phrases, not the 6,920 sentences"
    (raw / "test.tsv").write_text("index\tsentence\n0\tawful .\n")
    with pytest.raises(
        DataError, match=r"test.tsv:1: no column 'label', .* not publish the labels"
    ):
        Sst(manual_dir=raw, data_dir=tmp_path).prepare()


@pytest.mark.parametrize(
    "tree",
    [
        "(4 (2 The) (3 best)",
        "(4 (2 The) (3 best)))",
        "(4 (2 The) (5 best))",
        "(4 (2 The) best)",
        "(4 (2 The best))",
        "(4 ())",
        "((2 The) (3 best))",
        "(2 The) (3 best)",
        "(4 )",
        "",
    ],
)
def test_a_malformed_tree_is_an_error_that_names_file_and_line(tmp_path, tree):
    raw = write(tmp_path / "raw", "{}.txt", TREES | {"dev": f"(3 fine)\n{tree}\n(3 fine)\n"})
    with pytest.raises(DataError, match=re.escape(f"{raw / 'dev.txt'}:2: must be a tree like")):
        Sst(manual_dir=raw, data_dir=tmp_path).prepare()


@pytest.mark.parametrize(
    ("name", "line", "reason"),
    [
        ("stsa.binary.{}", "2 so so", r"the label must be one of \['0', '1'\]; got '2'"),
        ("stsa.fine.{}", "so so", r"the label must be one of \['0', .*; got 'so'"),
        ("stsa.fine.{}", "1 ", "the sentence is empty"),
        ("{}.tsv", " \t1", "the sentence is empty"),
        ("{}.tsv", "so so", "must have 2 fields; got 1"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, name, line, reason):
    files = LAYOUTS[name]
    raw = write(tmp_path / "raw", name, files | {"dev": files["dev"] + line + "\n"})
    number = files["dev"].count("\n") + 1
    path = raw / name.format("dev")
    with pytest.raises(DataError, match=re.escape(f"{path}:{number}: ") + reason):
        Sst(manual_dir=raw, data_dir=tmp_path).prepare()


def test_missing_and_ambiguous_files_are_errors(tmp_path):
    raw = write(tmp_path / "raw", "{}.txt", TREES)
    (raw / "dev.txt").unlink()
    wanted = "this folder or a direct subfolder must contain train.txt, dev.txt, test.txt, or "
    with pytest.raises(DataError, match=re.escape(f"{raw}: {wanted}")):
        Sst(manual_dir=raw, data_dir=tmp_path)
    for name in ("a", "b"):
        write(raw / name, "stsa.fine.{}", FINE)
    with pytest.raises(DataError, match=r"the data set once; found it in \['a', 'b'\]"):
        Sst(manual_dir=raw, data_dir=tmp_path)
    write(raw, "stsa.binary.{}", BINARY)
    assert Sst(manual_dir=raw, data_dir=tmp_path).raw_files["train"] == raw / "stsa.binary.train"
