"""Tests of the readers: every row is read, and errors name file and line."""

import gzip
import re

import pytest

from distattn_jax.data import DataError, find_file, read_rows
from distattn_jax.data.files import read_lines

ROWS = [{"label": "1", "text": 'one, "two"\nthree'}, {"label": "b", "text": "ünï\\"}]
CSV = 'label,text\r\n1,"one, ""two""\nthree"\r\nb,ünï\\\r\n'
JSONL = (
    '{"label": 1, "text": "one, \\"two\\"\\nthree"}\n{"text": "ünï\\\\", "label": "b", "x": []}\n'
)
ROW = '{"text": "x", "label": 1}\n'
PAIR = ROW.replace('"x"', r'"\ud83d\ude00"')  # an escaped surrogate pair
TSV = 'label\ttext\n1\t"one, two\nb\tünï\\'


@pytest.fixture
def write_file(tmp_path):
    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write


@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_all_formats_return_the_same_rows_with_their_lines(write_file, zipped):
    columns = ("label", "text")
    assert list(read_rows(write_file(f"a.csv{zipped}", CSV))) == [(2, ROWS[0]), (4, ROWS[1])]
    objects = read_rows(write_file(f"a.jsonl{zipped}", JSONL), columns=columns)
    assert list(objects) == [(1, ROWS[0]), (2, ROWS[1])]
    no_header = CSV.split("\r\n", 1)[1]
    rows = read_rows(write_file(f"b.csv{zipped}", no_header), columns=columns, header=False)
    assert list(rows) == [(1, ROWS[0]), (3, ROWS[1])]


def test_a_tsv_file_has_no_quoting_and_a_byte_order_mark_is_removed(write_file):
    rows = read_rows(write_file("a.tsv", b"\xef\xbb\xbf" + TSV.encode()), columns=("text",))
    assert list(rows) == [(2, {"text": '"one, two'}), (3, {"text": "ünï\\"})]


@pytest.mark.parametrize(
    ("name", "content", "line", "reason"),
    [
        ("a.csv", 'text,label\n"x\ny",1\nz\n', 4, "must have 2 fields; got 1"),
        ("a.csv", "text,label\nx,1\n\ny,1\n", 3, "must have 2 fields; got 0"),
        ("a.csv", 'text,label\nx,1\n"y,1\nz,1\n', 3, "a quote that is never closed"),
        ("a.csv", 'text,label\nx,1\n"y"y,1\n', 3, "broken CSV"),
        ("a.csv", "text,class\nx,1\n", 1, "no column 'label' in the header"),
        (
            "a.csv",
            "text,label,text\nx,1,y\n",
            1,
            "the header ['text', 'label', 'text'] contains a ",
        ),
        ("a.csv", b"text,label\nx,1\n\xff,1\n", 3, "not UTF-8"),
        ("a.tsv", "text\tlabel\nx\t1\t2\n", 2, "must have 2 fields; got 3"),
        ("a.jsonl", ROW + '{"text" 2\n', 2, "broken JSON, Expecting ':' delimiter (column 9)"),
        ("a.jsonl", ROW + "\n", 2, "broken JSON"),
        ("a.jsonl", '{"text": "x"}\n', 1, "no column 'label'"),
        ("a.jsonl", ROW.replace("1", "null"), 1, "'label' must be text or a number; got nu"),
        ("a.jsonl", "[1]\n", 1, "must be a JSON object"),
        ("a.jsonl", ROW.replace("1", "[{}]"), 1, "'label' must be text or a number; got a list"),
        ("a.jsonl", PAIR + PAIR.replace(r"\ude00", ""), 2, "broken JSON, half of a surrogate pair"),
        ("a.jsonl", '{"text": "x", "\\udc00": 1}\n', 1, "broken JSON, half of a surrogate pair"),
        ("a.jsonl", '{"text": ' + "[" * 10**5 + "\n", 1, "broken JSON, nested too deeply"),
    ],
)
def test_an_error_names_file_and_line(write_file, name, content, line, reason):
    path = write_file(name, content)
    with pytest.raises(DataError, match=re.escape(f"{path}:{line}: {reason}")):
        list(read_rows(path, columns=("text", "label")))


def test_a_field_may_be_as_long_as_a_document(write_file):
    long = "word, " * 50_000
    for name, content in (
        ("a.csv", f'text,label\n"{long}",1\n'),
        ("a.tsv", f"text\tlabel\n{long}\t1\n"),
        ("a.jsonl", f'{{"text": "{long}", "label": {"1" * 5000}}}\n'),
    ):
        ((_, row),) = read_rows(write_file(name, content))
        assert row["text"] == long


def test_a_folder_in_place_of_a_file_is_an_error(tmp_path):
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(DataError, match=r"a.csv:1: broken file, .*Is a directory"):
        list(read_lines(tmp_path / "a.csv"))


def test_a_truncated_file_is_an_error(write_file):
    path = write_file("a.csv.gz", CSV)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DataError, match=r"a.csv.gz:\d+: broken gzip"):
        list(read_rows(path))


@pytest.mark.parametrize("content", ["", "text,label\n"])
def test_a_file_without_rows_is_an_error(write_file, content):
    path = write_file("a.csv", content)
    with pytest.raises(DataError, match=re.escape(f"{path}: has no rows")):
        list(read_rows(path))


def test_a_missing_or_ambiguous_file_is_an_error_that_names_it(tmp_path, write_file):
    with pytest.raises(DataError, match=r"a.tsv: no such file; expected a .tsv file"):
        read_rows(tmp_path / "a.tsv")
    with pytest.raises(DataError, match=r"must end in .csv, .tsv, .jsonl"):
        read_rows(tmp_path / "a.xls")
    with pytest.raises(ValueError, match="columns must be given for a file without a header"):
        read_rows(write_file("a.csv", CSV), header=False)
    with pytest.raises(DataError, match=r"must contain one of train.csv, .*; found none"):
        find_file(tmp_path, "train")
    paths = [write_file(name, CSV) for name in ("train.csv", "train.jsonl.gz")]
    with pytest.raises(DataError, match=r"found train.csv, train.jsonl.gz"):
        find_file(tmp_path, "train")
    paths[0].unlink()
    assert find_file(tmp_path, "train") == paths[1]
