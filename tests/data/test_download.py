"""Tests of downloads: a folder is complete or does not exist."""

import functools
import hashlib
import http.server
import io
import re
import shutil
import tarfile
import threading
import zipfile

import pytest

from distattn_jax.data import DataError
from distattn_jax.data.download import download


def write_zip(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path.as_uri()


def write_tar(path, files):
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
    return path.as_uri()


def read_contents(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_archives_are_unpacked_and_a_second_call_downloads_nothing(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "data" / "downloads" / "set"
    source.mkdir()
    (source / "plain.json").write_text("{}")
    urls = [
        write_zip(source / "a.zip", {"a/one.txt": "1", "two.txt": "2"}),
        write_tar(source / "b.tar.gz", {"b/three.txt": "3"}),
        write_tar(source / "c.tar", {"four.txt": "4"}),
        (source / "plain.json").as_uri(),
    ]
    for _ in range(2):
        download(dict.fromkeys(urls, ""), folder)
        assert read_contents(folder) == {
            **{"a/one.txt": "1", "two.txt": "2"},
            **{"b/three.txt": "3", "four.txt": "4", "plain.json": "{}"},
        }
        assert sorted(path.name for path in folder.parent.iterdir()) == ["set", "set.digests.json"]
        for path in source.iterdir():
            path.unlink()


def test_a_download_must_have_the_published_digest(tmp_path):
    (tmp_path / "a.csv").write_text("1")
    url, folder = (tmp_path / "a.csv").as_uri(), tmp_path / "data" / "set"
    digest = hashlib.md5(b"1").hexdigest()
    with pytest.raises(DataError, match=f"{url} is not .*: its md5 digest must be 0; got {digest}"):
        download({url: "md5:0"}, folder, homepage="https://example.org")
    assert not list((tmp_path / "data").iterdir())
    download({url: f"md5:{digest}"}, folder)
    assert read_contents(folder) == {"a.csv": "1"}


def test_without_a_published_digest_that_of_the_first_download_counts(tmp_path):
    (tmp_path / "a.csv").write_text("1")
    url, folder = (tmp_path / "a.csv").as_uri(), tmp_path / "data" / "set"
    download({url: ""}, folder)
    shutil.rmtree(folder)
    (tmp_path / "a.csv").write_text("2")
    message = f"{url} is not the file that was downloaded before: expected sha256:"
    with pytest.raises(DataError, match=rf"{message}.*delete .*set.digests.json"):
        download({url: ""}, folder)
    assert not folder.exists()
    record = tmp_path / "data" / "set.digests.json"
    record.write_text("[]")
    with pytest.raises(DataError, match=r"set.digests.json: must contain an object of objects"):
        download({url: ""}, folder)
    record.unlink()
    download({url: ""}, folder)
    assert read_contents(folder) == {"a.csv": "2"}


@pytest.mark.parametrize("name", ["../out.txt", "a/../../../out.txt", "/out.txt"])
@pytest.mark.parametrize(("pack", "ending"), [(write_zip, "zip"), (write_tar, "tar.gz")])
def test_an_archive_with_a_path_outside_the_folder_is_refused(tmp_path, pack, ending, name):
    name = str(tmp_path / name[1:]) if name[0] == "/" else name
    url = pack(tmp_path / f"bad.{ending}", {"good.txt": "1", name: "2"})
    with pytest.raises(DataError, match=re.escape(f"{url} contains {name!r}, which is outside")):
        download({url: ""}, tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())
    assert not list(tmp_path.rglob("out.txt"))


def test_an_archive_with_a_link_out_of_the_folder_is_refused(tmp_path):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        archive.addfile(link)
    with pytest.raises(DataError, match=r"bad.tar.gz could not be unpacked"):
        download({(tmp_path / "bad.tar.gz").as_uri(): ""}, tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


@pytest.mark.parametrize(("pack", "ending"), [(write_zip, "zip"), (write_tar, "tar.gz")])
def test_a_truncated_archive_leaves_no_files(tmp_path, pack, ending):
    path = tmp_path / f"short.{ending}"
    url = pack(path, {"a.txt": "long " * 1000})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=re.escape(f"{url} could not be unpacked")):
        download({url: ""}, tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


def test_an_unreachable_url_is_named_with_an_alternative(tmp_path):
    reachable = write_zip(tmp_path / "reachable.zip", {"a.txt": "1"})
    url = (tmp_path / "missing.zip").as_uri()
    with pytest.raises(DataError, match=re.escape(url) + r" could not .*--data.manual-dir"):
        download({reachable: "", url: ""}, tmp_path / "data" / "set")
    assert not list((tmp_path / "data").iterdir())


class TruncatingHandler(http.server.BaseHTTPRequestHandler):
    """Server that announces ten bytes and sends four."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"four")

    def log_message(self, format, *args):
        pass


def test_a_truncated_response_is_an_error(tmp_path):
    with http.server.HTTPServer(("127.0.0.1", 0), TruncatingHandler) as server:
        threading.Thread(target=functools.partial(server.serve_forever, 0.01)).start()
        url = f"http://127.0.0.1:{server.server_port}/a.csv"
        try:
            with pytest.raises(DataError, match=re.escape(f"{url} ended after 4 of 10")):
                download({url: ""}, tmp_path / "data" / "set")
        finally:
            server.shutdown()
    assert not list((tmp_path / "data").iterdir())
