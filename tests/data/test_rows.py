"""Every row is read, or the file and line of the fault are named."""

import gzip
import re

import pytest

from distattn_jax.data import DataError, find_file, read_rows

ROWS = [{"label": "1", "text": 'one, "two"\nthree'}, {"label": "b", "text": "ünï\\"}]
CSV = 'label,text\r\n1,"one, ""two""\nthree"\r\nb,ünï\\\r\n'
JSONL = (
    '{"label": 1, "text": "one, \\"two\\"\\nthree"}\n{"text": "ünï\\\\", "label": "b", "x": []}\n'
)
TSV = 'label\ttext\n1\t"one, two\nb\tünï\\'


@pytest.fixture
def written(tmp_path):
    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_the_formats_agree_and_rows_know_their_lines(written, zipped):
    columns = ("label", "text")
    assert list(read_rows(written(f"a.csv{zipped}", CSV))) == [(2, ROWS[0]), (4, ROWS[1])]
    objects = read_rows(written(f"a.jsonl{zipped}", JSONL), columns=columns)
    assert list(objects) == [(1, ROWS[0]), (2, ROWS[1])]
    no_header = CSV.split("\r\n", 1)[1]
    rows = read_rows(written(f"b.csv{zipped}", no_header), columns=columns, header=False)
    assert list(rows) == [(1, ROWS[0]), (3, ROWS[1])]


def test_a_tsv_has_no_quotes_and_a_byte_order_mark_is_no_text(written):
    rows = read_rows(written("a.tsv", b"\xef\xbb\xbf" + TSV.encode()), columns=("text",))
    assert list(rows) == [(2, {"text": '"one, two'}), (3, {"text": "ünï\\"})]


@pytest.mark.parametrize(
    ("name", "content", "line", "reason"),
    [
        ("a.csv", 'text,label\n"x\ny",1\nz\n', 4, "must have 2 fields; got 1"),
        ("a.csv", "text,label\nx,1\n\ny,1\n", 3, "must have 2 fields; got 0"),
        ("a.csv", 'text,label\nx,1\n"y,1\nz,1\n', 3, "a quote that is never closed"),
        ("a.csv", 'text,label\nx,1\n"y"y,1\n', 3, "broken CSV"),
        ("a.csv", "text,class\nx,1\n", 1, "no column 'label' in the header"),
        ("a.csv", "text,label,text\nx,1,y\n", 1, "a name comes twice"),
        ("a.csv", b"text,label\nx,1\n\xff,1\n", 3, "not UTF-8"),
        ("a.tsv", "text\tlabel\nx\t1\t2\n", 2, "must have 2 fields; got 3"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": \n', 2, "broken JSON"),
        ("a.jsonl", '{"text": "x", "label": 1}\n\n', 2, "broken JSON"),
        ("a.jsonl", '{"text": "x"}\n', 1, "no column 'label'"),
        (
            "a.jsonl",
            '{"text": "x", "label": null}\n',
            1,
            "'label' must be text or a number; got nu",
        ),
        ("a.jsonl", "[1]\n", 1, "must be a JSON object"),
    ],
)
def test_a_fault_is_named_with_file_and_line(written, name, content, line, reason):
    path = written(name, content)
    with pytest.raises(DataError, match=re.escape(f"{path}:{line}: {reason}")):
        list(read_rows(path, columns=("text", "label")))


def test_a_file_cut_short_is_a_fault(written):
    path = written("a.csv.gz", CSV)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"a.csv.gz:\d+: broken gzip"):
        list(read_rows(path))


@pytest.mark.parametrize("content", ["", "text,label\n"])
def test_a_file_without_rows_is_named(written, content):
    path = written("a.csv", content)
    with pytest.raises(DataError, match=re.escape(f"{path}: has no rows")):
        list(read_rows(path))


def test_what_is_looked_for_is_named(tmp_path, written):
    with pytest.raises(DataError, match=r"a.tsv: no such file; looked for a .tsv file"):
        read_rows(tmp_path / "a.tsv")
    with pytest.raises(DataError, match=r"must end in .csv, .tsv, .jsonl"):
        read_rows(tmp_path / "a.xls")
    with pytest.raises(ValueError, match="columns must be given for a file without a header"):
        read_rows(written("a.csv", CSV), header=False)
    with pytest.raises(DataError, match=r"looked for train.csv, .*; found none of them"):
        find_file(tmp_path, "train")
    paths = [written(name, CSV) for name in ("train.csv", "train.jsonl.gz")]
    with pytest.raises(DataError, match=r"found train.csv, train.jsonl.gz"):
        find_file(tmp_path, "train")
    paths[0].unlink()
    assert find_file(tmp_path, "train") == paths[1]
