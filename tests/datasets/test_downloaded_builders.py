"""Tests of builders that download their raw files."""

from pathlib import Path

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import AgNews


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Replace the published AG's News by a set of 18, 2 and 1 rows."""
    rows = "".join(f'"{1 + i % 4}","title","text {i}"\n' for i in range(20))
    for name, content in (("train.csv", rows), ("test.csv", '"1","","text"\n')):
        (tmp_path / name).write_text(content)
    names = ("train.csv", "test.csv")
    monkeypatch.setattr(AgNews, "URLS", tuple((tmp_path / name).as_uri() for name in names))
    monkeypatch.setattr(AgNews, "PUBLISHED_ROWS", {"train": 18, "validation": 2, "test": 1})
    return tmp_path


def test_a_builder_without_manual_dir_downloads_its_files(published):
    builder = AgNews(data_dir=published / "data")
    assert len(load_split(builder, "train")) == 18
    assert builder.manual_dir == published / "data" / "downloads" / "ag_news"
    assert builder.describe_rows() == (
        "train: 18 rows, all of the published set",
        "validation: 2 rows, all of the published set",
        "test: 1 rows, all of the published set",
    )


def test_downloaded_files_must_be_complete_but_manual_files_need_not(published):
    with (published / "test.csv").open("a") as file:
        file.write('"2","","more"\n')
    builder = AgNews(data_dir=published / "data")
    with pytest.raises(
        DataError, match=r"downloads/ag_news: .* must contain 1 rows of test; got 2"
    ):
        builder.prepare()
    assert not Path(builder.data_dir).exists()
    manual = AgNews(manual_dir=builder.manual_dir, data_dir=published / "data")
    assert manual.describe_rows()[2] == "test: 2 rows, more than the 1 of the published set"
    with pytest.raises(DataError, match="must contain 1 rows of test"):  # prepared by now
        load_split(AgNews(data_dir=published / "data"), "train")
