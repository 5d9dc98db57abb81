"""WMT 2014: English-German and English-French, as TensorFlow Datasets (TFDS) defines them.

The builder `wmt14_translate` of TFDS lists the corpora of each split, their addresses and their
files. The TFDS builder silently leaves out pairs in which one sentence is empty, and needs a
package that TFDS does not install. We therefore use only its lists. The classes below download the
files, read them line by line, and count the pairs in which one sentence is empty.
"""

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import tensorflow_datasets as tfds
from tensorflow_datasets.core.download import checksums
from tensorflow_datasets.translate import wmt, wmt14

from distattn_jax.data.files import DataError, read_lines
from distattn_jax.datasets.parallel_text import ParallelText

SEGMENT = re.compile(r'<seg id="\d+">(.*)</seg>')  # a sentence in a test set


def find_corpora(language: str) -> dict[str, list[wmt.SubDataset]]:
    """Return a dict from each split of `wmt14_translate/{language}-en` to its corpora."""
    builder = wmt14.Wmt14Translate(config=f"{language}-en", data_dir="not used")
    return {
        str(split): [wmt.DATASET_MAP[name] for name in names]
        for split, names in builder.subsets.items()
    }


def find_urls(language: str) -> dict[str, str]:
    """Return a dict from the https address of each archive to its digest.

    If the digest is unknown, it is the empty string.
    """
    known = checksums.load_url_infos(tfds.core.tfds_path("url_checksums/wmt14_translate.txt"))
    urls = [
        url
        for corpora in find_corpora(language).values()
        for corpus in corpora
        for url in corpus.get_url(language)
    ]
    return {
        url.replace("http://", "https://"): f"sha256:{known[url].checksum}" if url in known else ""
        for url in urls
    }


class Wmt14De(ParallelText):
    """WMT 2014 English-German: 4.5 million training pairs.

    The split `validation` is newstest2013, and `test` is newstest2014. The folder `manual_dir`, if
    given, contains the unpacked archives.
    """

    LANGUAGE: ClassVar[str] = "de"
    URLS: ClassVar[Mapping[str, str]] = find_urls("de")
    HOMEPAGE = "https://www.statmt.org/wmt14/translation-task.html"
    REQUIRED_FILES = ""
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = {"validation": 3_000, "test": 3_003}

    def find_files(self) -> dict[str, Path]:
        files = {}
        for split, corpora in find_corpora(self.LANGUAGE).items():
            for corpus in corpora:
                names = corpus.get_path(self.LANGUAGE)
                for language, name in zip((self.LANGUAGE, "en"), names, strict=True):
                    path = self.manual_dir / name
                    if not path.is_file():
                        raise DataError(f"{path}: no such file; unpack the archives of WMT 2014.")
                    files[f"{split}.{corpus.name}.{language}"] = path
        return files

    def read_sentences(self, path: Path) -> Iterator[tuple[int, str]]:
        if path.suffix != ".sgm":
            yield from super().read_sentences(path)
            return
        for number, line in read_lines(path):
            if segment := SEGMENT.match(line):
                yield number, html.unescape(segment[1])


class Wmt14Fr(Wmt14De):
    """WMT 2014 English-French: about 40 million training pairs.

    The split `validation` is newstest2013, and `test` is newstest2014. The folder `manual_dir`, if
    given, contains the unpacked archives.
    """

    LANGUAGE = "fr"
    URLS: ClassVar[Mapping[str, str]] = find_urls("fr")
