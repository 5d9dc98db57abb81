"""What is downloaded is there whole, or not at all; and it is downloaded once."""

import functools
import http.server
import io
import re
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.data.download import download
from distattn_jax.datasets import AgNews, TextFiles


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path.as_uri()


def tarred(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return path.as_uri()


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_archives_are_unpacked_plain_files_stay_and_a_second_call_asks_nobody(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "data" / "downloads" / "set"
    source.mkdir()
    (source / "plain.json").write_text("{}")
    addresses = [
        zipped(source / "a.zip", {"a/one.txt": "1", "two.txt": "2"}),
        tarred(source / "b.tar.gz", {"b/three.txt": "3"}),
        (source / "plain.json").as_uri(),
    ]
    for _ in range(2):
        download(addresses, folder)
        assert contents(folder) == {
            **{"a/one.txt": "1", "two.txt": "2"},
            **{"b/three.txt": "3", "plain.json": "{}"},
        }
        assert [path.name for path in folder.parent.iterdir()] == ["set"]
        for path in source.iterdir():
            path.unlink()


@pytest.mark.parametrize("name", ["../out.txt", "a/../../../out.txt", "/out.txt"])
@pytest.mark.parametrize(("pack", "ending"), [(zipped, "zip"), (tarred, "tar.gz")])
def test_no_path_of_an_archive_may_leave_the_folder(tmp_path, pack, ending, name):
    name = str(tmp_path / name[1:]) if name[0] == "/" else name
    address = pack(tmp_path / f"bad.{ending}", {"good.txt": "1", name: "2"})
    with pytest.raises(DataError, match=re.escape(f"{address} holds {name!r}, which would leave")):
        download([address], tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())
    assert not list(tmp_path.rglob("out.txt"))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
    with pytest.raises(DataError, match=r"bad.tar.gz could not be unpacked"):
        download([(tmp_path / "bad.tar.gz").as_uri()], tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize(("pack", "ending"), [(zipped, "zip"), (tarred, "tar.gz")])
def test_an_archive_cut_short_leaves_nothing(tmp_path, pack, ending):
    path = tmp_path / f"short.{ending}"
    address = pack(path, {"a.txt": "long " * 1000})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=re.escape(f"{address} could not be unpacked")):
        download([address], tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


def test_what_cannot_be_reached_is_named_with_a_way_out(tmp_path):
    there = zipped(tmp_path / "there.zip", {"a.txt": "1"})
    address = (tmp_path / "missing.zip").as_uri()
    with pytest.raises(DataError, match=re.escape(address) + r" could not .*--data.manual-dir"):
        download([there, address], tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


class Stutters(http.server.BaseHTTPRequestHandler):
    """Promises ten bytes and gives four."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"four")

    def log_message(self, format, *args):
        pass


def test_an_answer_that_breaks_off_is_no_file(tmp_path):
    with http.server.HTTPServer(("127.0.0.1", 0), Stutters) as server:
        threading.Thread(target=functools.partial(server.serve_forever, 0.01)).start()
        address = f"http://127.0.0.1:{server.server_port}/a.csv"
        try:
            with pytest.raises(DataError, match=re.escape(f"{address} broke off after 4 of 10")):
                download([address], tmp_path / "data" / "set")
        finally:
            server.shutdown()
    assert not list((tmp_path / "data").iterdir())


@pytest.fixture
def published(tmp_path, monkeypatch):
    """AG's News as if it had 18, 2 and 1 rows."""
    rows = "".join(f'"{1 + i % 4}","title","text {i}"\n' for i in range(20))
    for name, content in (("train.csv", rows), ("test.csv", '"1","","text"\n')):
        (tmp_path / name).write_text(content)
    names = ("train.csv", "test.csv")
    monkeypatch.setattr(AgNews, "URLS", tuple((tmp_path / name).as_uri() for name in names))
    monkeypatch.setattr(AgNews, "PUBLISHED_ROWS", {"train": 18, "validation": 2, "test": 1})
    return tmp_path


def test_a_builder_without_a_folder_downloads_its_sources(published):
    builder = AgNews(data_dir=published / "data")
    assert len(load_split(builder, "train")) == 18
    assert builder.manual_dir == published / "data" / "downloads" / "ag_news"
    assert builder.describe_rows() == (
        "train: 18 rows, all of the published set",
        "validation: 2 rows, all of the published set",
        "test: 1 rows, all of the published set",
    )


def test_a_download_must_be_whole_where_a_folder_may_be_a_part(published):
    with (published / "test.csv").open("a") as file:
        file.write('"2","","more"\n')
    builder = AgNews(data_dir=published / "data")
    with pytest.raises(DataError, match=r"downloads/ag_news: .* must give 1 rows of test; got 2"):
        builder.prepare()
    assert not Path(builder.data_dir).exists()
    by_hand = AgNews(manual_dir=builder.manual_dir, data_dir=published / "data")
    assert by_hand.describe_rows()[2] == "test: 2 rows, more than the 1 of the published set"
    with pytest.raises(DataError, match="must give 1 rows of test"):  # found prepared
        load_split(AgNews(data_dir=published / "data"), "train")


def test_without_sources_a_folder_must_be_given(tmp_path):
    with pytest.raises(DataError, match="manual_dir must be the folder of the raw files; got None"):
        TextFiles(data_dir=tmp_path)
