"""Parallel text files become pairs. Files that do not pair up are refused with file and line."""

import gzip

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.data.repeats import Repeats
from distattn_jax.datasets.parallel_text import ParallelText

PAIRS = {
    "train": [("a dog", "ein Hund"), ("a cat", "eine Katze"), ("", "leer"), ("two", "zwei")],
    "val": [("a dog", "ein Hund")],
    "test": [("a cat", "eine Katze")],
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, pairs in PAIRS.items():
        for language, texts in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            content = "".join(f"{text}\n" for text in texts)
            if split == "test":
                (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(content.encode()))
            else:
                (folder / f"{split}.{language}").write_text(content)
    return folder


def test_pairs_are_read_and_empty_sides_are_counted(folder, tmp_path):
    builder = ParallelText(manual_dir=folder, data_dir=tmp_path)
    assert load_split(builder, "train") == [
        {"de": "ein Hund", "en": "a dog"},
        {"de": "eine Katze", "en": "a cat"},
        {"de": "zwei", "en": "two"},
    ]
    assert load_split(builder, "test") == [{"de": "eine Katze", "en": "a cat"}]
    assert builder.left_out == {"pairs of train with an empty side": 1}
    assert builder.repeats == [
        Repeats("validation", "train", 1, 1, 1, 1),
        Repeats("test", "train", 1, 1, 1, 2),
    ]


@pytest.mark.parametrize(("longer", "shorter"), [("en", "de"), ("de", "en")])
def test_a_line_without_translation_is_named(folder, tmp_path, longer, shorter):
    with (folder / f"train.{longer}").open("a") as file:
        file.write("more\n")
    builder = ParallelText(manual_dir=folder, data_dir=tmp_path)
    with pytest.raises(DataError, match=rf"train.{longer}:5: has no .*train.{shorter} has only 4"):
        builder.prepare()


def test_a_folder_with_one_language_is_refused(folder, tmp_path):
    (folder / "train.de").unlink()
    with pytest.raises(DataError, match=r"in two languages.*found the languages \['en'\]"):
        ParallelText(manual_dir=folder, data_dir=tmp_path)


def test_a_missing_split_is_named(folder, tmp_path):
    (folder / "val.en").unlink()
    with pytest.raises(DataError, match=r"must contain one of validation.en, .* found none"):
        ParallelText(manual_dir=folder, data_dir=tmp_path)
