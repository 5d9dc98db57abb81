"""Tests of word vector files, plain and compressed."""

import gzip
import zipfile

import numpy as np
import pytest

from distattn_jax.data import DataError, load_embeddings, load_word_vectors

WORDS = ["[PAD]", "[UNK]", "the", "at b", ".", "käse"]
LINES = "the 1 2 3\n. . . 7 7 7\nkäse -1e-1 0.5 0\nother x\nat b 4 5 6\n. 7 8 9\nthe 0 0 0\n"
EXPECTED = {2: [1, 2, 3], 3: [4, 5, 6], 4: [7, 8, 9], 5: [-0.1, 0.5, 0]}


def write_vectors(folder, kind, text=LINES):
    path, content = folder / f"vectors.{kind}", text.encode()
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("one.txt", content)
    else:
        path.write_bytes(gzip.compress(content) if kind == "gz" else content)
    return path


@pytest.mark.parametrize("kind", ["txt", "gz", "zip"])
@pytest.mark.parametrize("header", ["", "7 3\n"])
def test_each_word_has_the_vector_of_the_file(tmp_path, kind, header):
    vectors, found = load_embeddings(write_vectors(tmp_path, kind, header + LINES), WORDS, seed=0)
    assert vectors.shape == (6, 3)
    assert found == 4
    for row, expected in EXPECTED.items():
        np.testing.assert_allclose(vectors[row], expected, rtol=1e-6)
    assert not vectors[0].any()
    assert vectors[1].all()


def test_missing_words_are_drawn_with_the_standard_deviation_of_the_others(tmp_path):
    words = [*WORDS, *(f"missing {i}" for i in range(5000))]
    path = write_vectors(tmp_path, "txt")
    first, again, other = (load_embeddings(path, words, seed=seed)[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first[6:] != other[6:]).any()
    np.testing.assert_allclose(first[6:].std(), first[2:6].std(), rtol=0.03)


def test_only_words_in_the_file_have_rows(tmp_path):
    found = load_word_vectors(write_vectors(tmp_path, "gz"), ["käse", "missing", "the"])
    assert found.rows == {"käse": 1, "the": 2}
    np.testing.assert_allclose(found.vectors, [[0, 0, 0], EXPECTED[5], EXPECTED[2]], rtol=1e-6)
    with pytest.raises(DataError, match=r"vectors.gz: contains none of the 1 words"):
        load_word_vectors(tmp_path / "vectors.gz", ["missing"])


def test_an_archive_with_several_members_needs_the_name_of_one(tmp_path):
    path = write_vectors(tmp_path, "zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("two.txt", "the 5\n")
    assert load_embeddings(f"{path}:two.txt", WORDS, seed=0)[0][2] == 5
    with pytest.raises(DataError, match=r"one of \['one.txt', 'two.txt'\]; got ''"):
        load_embeddings(path, WORDS, seed=0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (". 1 2", "must have 3 numbers; got 2"),
        (". 1 2 3 4", "must have 3 numbers; got 4"),
        (". 1 2 x", "not a number"),
        (". 1 2 nan", r"from -1e\+06 to 1e\+06; got 1 ... nan"),
        (". 1 1e38 2", r"from -1e\+06 to 1e\+06"),
        (f". 1 2 {'9' * 5000}", r"from -1e\+06 to 1e\+06"),
    ],
)
def test_an_error_in_a_wanted_line_names_the_line(tmp_path, line, reason):
    path = write_vectors(tmp_path, "txt", f"first 1 2 3\n{line}\n")
    with pytest.raises(DataError, match=f"vectors.txt:2: .*{reason}"):
        load_embeddings(path, WORDS, seed=0)


def test_a_missing_or_unusable_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError, match=r"no.txt: no such file"):
        load_embeddings(tmp_path / "no.txt", WORDS, seed=0)
    with pytest.raises(DataError, match=r"contains none of the 2 words"):
        load_embeddings(write_vectors(tmp_path, "txt"), ["[PAD]", "none"], seed=0)
    (tmp_path / "broken.gz").write_bytes(b"the 1 2 3")
    with pytest.raises(DataError, match=r"broken.gz: broken archive"):
        load_embeddings(tmp_path / "broken.gz", WORDS, seed=0)


@pytest.mark.parametrize("place", [8, 10, 16, 42])  # flags, method, checksum, offset
def test_a_damaged_zip_file_is_an_error_that_names_it(tmp_path, place):
    path = write_vectors(tmp_path, "zip", LINES * 20)
    content = bytearray(path.read_bytes())
    damaged = content.rindex(b"PK\x01\x02") + place  # in the directory of the archive
    content[damaged : damaged + 2] = b"\xff\xff"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"vectors.zip: (broken archive|must be given as)"):
        load_embeddings(path, WORDS, seed=0)


def test_a_header_of_an_absurd_width_is_an_error(tmp_path):
    path = write_vectors(tmp_path, "txt", f"7 {'9' * 5000}\n{LINES}")
    with pytest.raises(DataError, match=r"vectors.txt:2: must have 999999999 numbers; got 3"):
        load_embeddings(path, WORDS, seed=0)


def test_the_cache_is_used_only_for_the_same_file_words_and_seed(tmp_path):
    path, cache = write_vectors(tmp_path, "txt"), tmp_path / "run" / "vectors.npz"
    cache.parent.mkdir()
    cache.write_bytes(b"not a cache")

    def load(words=WORDS, seed=0):
        return load_embeddings(path, words, seed=seed, cache=cache)

    expected, found = load()
    written = cache.stat().st_mtime_ns
    vectors, again = load()
    np.testing.assert_array_equal(vectors, expected)
    assert (again, cache.stat().st_mtime_ns) == (found, written)
    assert (load(seed=1)[0][1] != expected[1]).all()
    np.testing.assert_allclose(load([*WORDS[:3], "."])[0][3], [7, 8, 9])
    write_vectors(tmp_path, "txt", LINES.replace("the 1", "the 11"))
    assert load()[0][2, 0] == 11
