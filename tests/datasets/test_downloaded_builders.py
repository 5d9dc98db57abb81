"""Tests of builders that download their raw files."""

import re
from pathlib import Path

import pytest

from distattn_jax import datasets
from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import DATASETS, AgNews


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Replace the published AG's News by a set of 18, 2 and 1 rows."""
    rows = "".join(f'"{1 + i % 4}","title","text {i}"\n' for i in range(20))
    for name, content in (("train.csv", rows), ("test.csv", '"1","","text"\n')):
        (tmp_path / name).write_text(content)
    names = ("train.csv", "test.csv")
    monkeypatch.setattr(AgNews, "URLS", {(tmp_path / name).as_uri(): "" for name in names})
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
    with pytest.raises(DataError, match=r"downloads/ag_news: .* contain 1 rows of test; got 2"):
        builder.prepare()
    assert not Path(builder.data_dir).exists()
    manual = AgNews(manual_dir=builder.manual_dir, data_dir=published / "data")
    assert manual.describe_rows()[2] == "test: 2 rows, more than the 1 of the published set"
    with pytest.raises(DataError, match="must contain 1 rows of test"):  # prepared by now
        load_split(AgNews(data_dir=published / "data"), "train")


def test_a_downloaded_file_that_has_changed_is_an_error(published):
    folder = AgNews(data_dir=published / "data").manual_dir
    (folder / "test.csv").write_text('"2","","text"\n')
    with pytest.raises(DataError, match=r"ag_news/test.csv: has changed since it was downloaded"):
        AgNews(data_dir=published / "data")
    AgNews(manual_dir=folder, data_dir=published / "data")


def test_a_failed_download_names_the_page_that_offers_the_files(published):
    (published / "test.csv").unlink()
    with pytest.raises(DataError, match=r"files from https://github.com/mhjabreel/CharCnn_Keras"):
        AgNews(data_dir=published / "data")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "mind_large"])
def test_downloads_are_encrypted_and_have_a_digest_or_a_homepage(name):
    builder = getattr(datasets, DATASETS[name])
    for url, digest in builder.URLS.items():
        assert url.startswith("https://")
        assert re.fullmatch(r"(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})?", digest)
        assert builder.HOMEPAGE.startswith("https://")


@pytest.mark.parametrize(
    "name", ["dataset_info.json", "features.json", "label.labels.txt", "record", "digests.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damaged_prepared_examples_are_an_error_that_names_the_file(published, name, damage):
    AgNews(data_dir=published / "data").prepare()
    builder = AgNews(data_dir=published / "data")
    (path,) = Path(builder.data_dir).glob(name if "." in name else "*test*record*")
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(bytes([content[0] ^ 255]) + content[1:])
    elif damage == "truncate":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    if name == "digests.json" and damage == "delete":
        load_split(AgNews(data_dir=published / "data"), "test")  # as prepared by earlier versions
        return
    reason = "is missing" if damage == "delete" else "is damaged"
    with pytest.raises(DataError, match=rf"{re.escape(str(path))}: {reason}.*Delete the folder"):
        AgNews(data_dir=published / "data")
