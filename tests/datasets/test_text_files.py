"""Tests of `TextFiles`, and of everything that all builders share."""

import json
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import TextFiles

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = {
    "train": [("gut", "b"), ("böse", "a"), ("so, so", "b")],
    "validation": [("na ja", "a")],
    "test": [("wohl", "b"), ("weh", "a")],
}


def write(folder, split, examples):
    lines = (json.dumps({"text": text, "label": label}) for text, label in examples)
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def raw(tmp_path):
    for split, examples in EXAMPLES.items():
        write(tmp_path / "raw", split, examples)
    return tmp_path / "raw"


def test_examples_are_loaded_in_order_with_the_names_of_their_labels(raw, tmp_path):
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = TextFiles(manual_dir=raw, data_dir=tmp_path / "prepared")
        for split, expected in EXAMPLES.items():
            rows = load_split(builder, split)
            names = builder.info.features["label"].names
            assert [(row["text"], names[row["label"]]) for row in rows] == expected
        assert names == ["a", "b"]
    again = pickle.loads(pickle.dumps(builder))
    assert load_split(again, "train[1:2]")[0]["text"] == "böse"
    with pytest.raises(ValueError, match=r"--split\) must be one of .*train.*; got 'dev'"):
        load_split(builder, "dev")


def test_texts_in_two_splits_are_counted_once_and_stored_with_the_examples(raw, tmp_path):
    write(raw, "test", [("weh", "a"), (" so,  so\n", "a")])  # Spaces and labels do not matter.
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = TextFiles(manual_dir=raw, data_dir=tmp_path / "prepared")
        assert builder.describe_repeats() == [
            "warning: test shares 1 of its 2 texts (50.0 %) with train, e.g. number 2, which is "
            "number 3 of train. Scores on shared texts may be too high."
        ]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        *((f"train[{part}]", "a part of one") for part in ("abc", "2", ":200%", ":1e3", "9:")),
        ("train[", "a part of one"),
        *((f"train[{part}]", "must contain examples") for part in (":0", "2:1", "3:1", "90%:10%")),
    ],
)
def test_a_wrong_part_of_a_split_is_refused(raw, tmp_path, split, message):
    builder = TextFiles(manual_dir=raw, data_dir=tmp_path / "prepared")
    with pytest.raises(ValueError, match=rf"split \(--split\) .*{message}.*{re.escape(split)}"):
        load_split(builder, split)


def test_a_limit_on_the_size_of_files_is_named(raw, tmp_path):
    builder = TextFiles(manual_dir=raw, data_dir=tmp_path / "prepared")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(DataError, match=r"text_files: a file is larger .* \(see ulimit -f\)"):
            builder.prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    builder.prepare()


def test_a_bucket_is_no_folder_of_prepared_examples(raw):
    message = r"\(--data.directory\) must be a local folder; got gs://bucket/data"
    with pytest.raises(DataError, match=message):
        TextFiles(manual_dir=raw, data_dir="gs://bucket/data")


class OvertakenTextFiles(TextFiles):
    """Builder whose `rival` prepares the same examples while this builder reads them."""

    rival = None

    def read_splits(self):
        splits = super().read_splits()
        self.leave_out("without a label")
        if self.rival is not None:
            self.rival.prepare()
        return splits


def test_builders_that_prepare_the_same_examples_at_the_same_time_all_use_them(raw, tmp_path):
    first, second, third = (
        OvertakenTextFiles(manual_dir=raw, data_dir=tmp_path / "prepared") for _ in range(3)
    )
    second.rival = first
    second.prepare()  # The first builder finishes before the second.
    expected = {split: [text for text, _ in examples] for split, examples in EXAMPLES.items()}
    for builder in (first, second, third):  # The third was made before the examples existed.
        loaded = {split: [row["text"] for row in load_split(builder, split)] for split in EXAMPLES}
        assert loaded == expected
        assert builder.left_out == {"without a label": 1}
    assert [path.name for path in Path(first.data_dir).parent.iterdir()] == ["1.1.0"]


def test_prepared_files_are_reused_until_the_raw_files_change(raw, tmp_path):
    def prepare():
        builder = TextFiles(manual_dir=raw, data_dir=tmp_path / "prepared")
        builder.prepare()
        (written,) = Path(builder.data_dir).glob("*train.array_record*")
        return builder, written.stat().st_mtime_ns

    first, written = prepare()
    second, still = prepare()
    assert (second.data_dir, still) == (first.data_dir, written)
    write(raw, "test", [("wohl", "a"), ("weh", "a")])  # The size stays the same.
    changed, _ = prepare()
    assert changed.data_dir != first.data_dir
    assert [row["label"] for row in load_split(changed, "test")] == [0, 0]
    assert [row["label"] for row in load_split(first, "test")] == [1, 0]


@pytest.mark.parametrize(
    ("split", "examples", "reason"),
    [
        ("test", [("x", "a"), ("y", "c")], r":2: the label must be one of train.jsonl, \['a', 'b'"),
        ("validation", [("x", "a"), (" ", "a")], ":2: the text is empty"),
        ("train", [("x", "a"), ("y", "")], ":2: the label must be one line; got ''"),
        ("train", [("x", "a"), ("y", "b\u2028c")], ":2: the label must be one line; got 'b"),
        ("test", [], ": has no rows"),
    ],
)
def test_an_error_names_file_and_line_and_nothing_is_prepared(
    raw, tmp_path, split, examples, reason
):
    write(raw, split, examples)
    builder = TextFiles(manual_dir=raw, data_dir=tmp_path / "prepared")
    with pytest.raises(DataError, match=re.escape(str(raw / f"{split}.jsonl")) + reason):
        builder.prepare()
    assert not Path(builder.data_dir).exists()


def test_unusable_folders_are_errors_that_name_them(raw, tmp_path):
    (tmp_path / "file").touch()
    builder = TextFiles(manual_dir=raw, data_dir=tmp_path / "file")
    with pytest.raises(DataError, match=r"data.directory\) must be a writable folder; got .*file"):
        builder.prepare()
    message = r"--data.manual-dir\) must be the folder with the raw files; got"
    with pytest.raises(DataError, match=rf"{message} .*missing"):
        TextFiles(manual_dir=tmp_path / "missing", data_dir=tmp_path)
    with pytest.raises(DataError, match=f"{message} None"):
        TextFiles(data_dir=tmp_path)
    (raw / "test.jsonl").unlink()
    with pytest.raises(DataError, match=r"raw: must contain one of test.csv"):
        TextFiles(manual_dir=raw, data_dir=tmp_path)


def test_preparing_and_reading_do_not_import_tensorflow(raw, tmp_path):
    program = (
        "import sys; from distattn_jax.data import load_split;"
        "from distattn_jax.datasets import TextFiles;"
        f"builder = TextFiles(manual_dir={str(raw)!r}, data_dir={str(tmp_path / 'prepared')!r});"
        "print(len(load_split(builder, 'train')), 'tensorflow' in sys.modules)"
    )
    run = [sys.executable, "-W", "error", "-c", program]
    output = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert output.splitlines()[-1] == "3 False"
