"""Data sets of sentence pairs: your own parallel text files, and Multi30k."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.files import DataError, read_lines
from distattn_jax.data.rows import SPLIT_STEMS, find_one

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
FOLDER = f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw"
DIGESTS = {
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2017_flickr.de": "a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee",
    "test_2017_flickr.en": "76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074",
    "test_2017_mscoco.de": "799e4854c25d601cb6cb6be29eabe5667734c61ace2f495e03e429031a0bc338",
    "test_2017_mscoco.en": "aab300bfb4427697987e02cd0aacd44bfe8aa50456231b6474c08038bbed2b58",
    "test_2018_flickr.de": "ddd0130c7d97482dc5197a02141dae8dd79f20f03586c480d675c09a32daf608",
    "test_2018_flickr.en": "ef4f4844037d4c5dea75c9a8ed5fd78905967a26f67c255e230cc9780032654d",
}


class ParallelText(TextBuilder):
    """Sentence pairs from files with one sentence per line, two files for each split.

    The file names are `train.en`, `train.de` and so on, with or without .gz. The endings name the
    two languages. Line i of one file is the translation of line i of the other file. An example has
    one text for each language.
    """

    REQUIRED_FILES = "train, validation and test, each in two languages (train.en, train.de, ...)"
    UNIT = "pairs"
    # Possible file names of each split, without the language. Exactly one of them must exist.
    STEMS: ClassVar[Mapping[str, tuple[str, ...]]] = SPLIT_STEMS

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the two languages, in alphabetical order."""
        return tuple(sorted({key.rpartition(".")[2] for key in self.raw_files}))

    def find_files(self) -> dict[str, Path]:
        languages = self._find_languages()
        return {
            f"{split}.{language}": self._find_file(stems, language)
            for split, stems in self.STEMS.items()
            for language in languages
        }

    def features(self) -> dict[str, Any]:
        return {language: tfds.features.Text() for language in self.languages}

    def list_texts(self, example: Example) -> list[str]:
        return [example[language] for language in self.languages]

    def read_splits(self) -> dict[str, Iterable[Example]]:
        corpora = dict.fromkeys(key.rpartition(".")[0] for key in self.raw_files)
        splits: dict[str, list[str]] = {}
        for corpus in corpora:
            splits.setdefault(corpus.partition(".")[0], []).append(corpus)
        return {split: self._read_pairs(split, names) for split, names in splits.items()}

    def read_sentences(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield (line number, sentence) for every sentence of a file, including empty sentences."""
        return read_lines(path)

    def _find_languages(self) -> list[str]:
        """Return the endings of the two training files."""
        names = (path.name.removesuffix(".gz") for path in self.manual_dir.iterdir())
        parts = (name.rpartition(".") for name in names)
        languages = sorted({ending for stem, _, ending in parts if stem in self.STEMS["train"]})
        if len(languages) != 2:
            raise DataError(
                f"{self.manual_dir}: must contain the training set in two languages, for example "
                f"train.en and train.de; found the languages {languages}."
            )
        return languages

    def _find_file(self, stems: tuple[str, ...], language: str) -> Path:
        """Find the file of a split and a language, e.g. dev.en.

        `stems` are the possible file names of the split without the language, e.g. dev and valid.
        """
        names = [f"{stem}.{language}{zipped}" for stem in stems for zipped in ("", ".gz")]
        return find_one(self.manual_dir, names, f"one of {', '.join(names)}")

    def _read_pairs(self, split: str, corpora: Iterable[str]) -> Iterator[Example]:
        """Yield the sentence pairs of a split.

        Pairs in which one sentence is empty are left out, and their number is recorded.

        Args:
          split: Name of the split.
          corpora: Names of the file pairs of the split: the keys in `raw_files` without the
            language, e.g. "train" for the keys "train.en" and "train.de".
        """
        for corpus in corpora:
            for texts in self._pair_sentences(corpus):
                if all(texts):
                    yield dict(zip(self.languages, texts, strict=True))
                else:
                    self.leave_out(f"pairs of {split} with an empty side")

    def _pair_sentences(self, corpus: str) -> Iterator[list[str]]:
        """Yield the sentence pairs of two files, e.g. of train.en and train.de for "train".

        Raise `DataError` if the files have different numbers of sentences.
        """
        paths = [self.raw_files[f"{corpus}.{language}"] for language in self.languages]
        both = itertools.zip_longest(*map(self.read_sentences, paths))
        for count, sentences in enumerate(both):
            if None in sentences:
                short, long = (paths, paths[::-1])[sentences[0] is not None]
                (line,) = (sentence[0] for sentence in sentences if sentence is not None)
                raise DataError(
                    f"{long}:{line}: has no translation, because {short} has only {count} "
                    "sentences. Sentence i of one file must be the translation of sentence i of "
                    "the other."
                )
            yield [text.strip() for _, text in sentences]


class Multi30k(ParallelText):
    """Multi30k, task 1: image captions in English and German (Elliott et al. 2016).

    The split `test` is the test set of 2016. Each later test set is another split.
    """

    # We computed the digests from the files of this commit.
    URLS: ClassVar[Mapping[str, str]] = {
        f"{FOLDER}/{name}.gz": f"sha256:{digest}" for name, digest in DIGESTS.items()
    }
    HOMEPAGE = "https://github.com/multi30k/dataset"
    REQUIRED_FILES = ""
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = {
        "train": 29_000,
        "validation": 1_014,
        "test": 1_000,
        "test_2017": 1_000,
        "test_2017_mscoco": 461,
        "test_2018": 1_071,
    }
    STEMS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "train": ("train",),
        "validation": ("val",),
        "test": ("test_2016_flickr",),
        "test_2017": ("test_2017_flickr",),
        "test_2017_mscoco": ("test_2017_mscoco",),
        "test_2018": ("test_2018_flickr",),
    }
