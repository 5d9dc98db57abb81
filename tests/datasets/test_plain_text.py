"""Plain text files become texts, split by file names or by position."""

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import PlainText


def make_builder(tmp_path, **files):
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content)
    return PlainText(manual_dir=folder, data_dir=tmp_path / "prepared")


def load_texts(builder, split):
    return [row["text"] for row in load_split(builder, split)]


def test_blank_lines_separate_texts_and_file_names_choose_the_split(tmp_path):
    builder = make_builder(
        tmp_path,
        developer="one\ntwo\n\n \n\nthree",
        atlas="zero\n",
        valid_1="four\n",
        test="five\n\nsix",
    )
    assert load_texts(builder, "train") == ["zero", "one\ntwo", "three"]
    assert load_texts(builder, "validation") == ["four"]
    assert load_texts(builder, "test") == ["five", "six"]


def test_preparation_leaves_no_temporary_folder_behind(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    builder = make_builder(tmp_path, a="zero", valid="one", test="two")
    assert load_texts(builder, "train") == ["zero"]
    assert not list(temporary.iterdir())


def test_without_files_for_them_validation_and_test_get_every_20th_text(tmp_path):
    builder = make_builder(tmp_path, a="\n\n".join(map(str, range(45))))
    assert load_texts(builder, "validation") == ["9", "29"]
    assert load_texts(builder, "test") == ["19", "39"]
    assert len(load_texts(builder, "train")) == 41


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"must contain text files"),
        ({"a": "x", "test": "y"}, r"or only for train; found test, train"),
        ({"val": "x", "test": "y"}, r"found test, validation"),
    ],
)
def test_missing_files_are_named(tmp_path, files, message):
    with pytest.raises(DataError, match=message):
        make_builder(tmp_path, **files)
