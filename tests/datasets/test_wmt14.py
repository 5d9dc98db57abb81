"""WMT 2014: the corpora of TFDS, from small files with their published names."""

import pytest

from distattn_jax.data import DataError, load_split
from distattn_jax.datasets import Wmt14De, Wmt14Fr
from distattn_jax.datasets.wmt14 import find_corpora

TEXTS = {
    "training/europarl-v7.de-en": (["Danke\n", "\n", "ja \n"], ["thanks\n", "empty\n", "yes\n"]),
    "commoncrawl.de-en": (["ein Hund\r\n"], ["a dog\r\n"]),
    "training/news-commentary-v9.de-en": (["a\u2028b\n"], ["c d\n"]),
    "dev/newstest2013": (["drei\n"], ["three\n"]),
}
SEGMENTS = '<refset><doc>\n<seg id="1">{first}</seg>\n<p>\n<seg id="2">{second}</seg>\n</doc>\n'


def write_corpora(folder):
    """Write a few sentences of every corpus of WMT 2014 English-German."""
    for name, sides in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        for language, lines in zip(("de", "en"), sides, strict=True):
            (folder / f"{name}.{language}").write_bytes("".join(lines).encode())
    for name, first in (("src.de", "Müller &amp; Sohn"), ("ref.en", "Müller &amp; son")):
        text = SEGMENTS.format(first=first, second="zwei")
        (folder / f"dev/newstest2014-deen-{name}.sgm").write_text(text)
    return folder


@pytest.fixture
def folder(tmp_path):
    return write_corpora(tmp_path / "raw")


def test_the_splits_are_the_corpora_of_tfds_in_order(folder, tmp_path):
    builder = Wmt14De(manual_dir=folder, data_dir=tmp_path)
    assert builder.languages == ("de", "en")
    assert load_split(builder, "train") == [
        {"de": "Danke", "en": "thanks"},
        {"de": "ja", "en": "yes"},
        {"de": "ein Hund", "en": "a dog"},
        {"de": "a\u2028b", "en": "c d"},
    ]
    assert load_split(builder, "validation") == [{"de": "drei", "en": "three"}]
    assert load_split(builder, "test") == [
        {"de": "Müller & Sohn", "en": "Müller & son"},
        {"de": "zwei", "en": "zwei"},
    ]
    assert builder.left_out == {"pairs of train with an empty side": 1}
    assert "test: 2 rows, of 3,003 in the published set (a part)" in builder.describe_rows()


def test_a_sentence_without_translation_is_named(folder, tmp_path):
    path = folder / "dev/newstest2014-deen-ref.en.sgm"
    path.write_text(path.read_text().replace('<seg id="2">', "<seg>"))
    builder = Wmt14De(manual_dir=folder, data_dir=tmp_path)
    with pytest.raises(DataError, match=r"src.de.sgm:4: has no .*ref.en.sgm has only 1 sentences"):
        builder.prepare()


def test_a_missing_corpus_is_named(folder, tmp_path):
    (folder / "commoncrawl.de-en.en").unlink()
    with pytest.raises(DataError, match=r"commoncrawl.de-en.en: no such file"):
        Wmt14De(manual_dir=folder, data_dir=tmp_path)


def test_french_has_five_training_corpora_and_all_archives_of_german_have_digests():
    assert [len(corpora) for corpora in find_corpora("fr").values()] == [5, 1, 1]
    assert len(Wmt14Fr.URLS) == 6
    assert len(Wmt14De.URLS) == 4
    assert all(digest.startswith("sha256:") for digest in Wmt14De.URLS.values())
