"""Translation with your own parallel text files, and Multi30k."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.files import DataError, read_lines


class ParallelText(TextBuilder):
    """Sentence pairs from files with one sentence per line, two files for each split.

    The file names are `train.en`, `train.de` and so on, plain or .gz. The endings name the two
    languages. Line i of one file is the translation of line i of the other. An example has one text
    for each language.
    """

    REQUIRED_FILES = "train, validation and test, each in two languages (train.en, train.de, ...)"
    # Names of the files of each split, without the language. The first name that exists is used.
    STEMS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "train": ("train",),
        "validation": ("validation", "valid", "val", "dev"),
        "test": ("test",),
    }

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the two languages, in alphabetical order."""
        return tuple(sorted({key.split(".")[1] for key in self.raw_files}))

    def find_files(self) -> dict[str, Path]:
        languages = self._find_languages()
        return {
            f"{split}.{language}": self._find_file(stems, language)
            for split, stems in self.STEMS.items()
            for language in languages
        }

    def features(self) -> dict[str, Any]:
        return {language: tfds.features.Text() for language in self.languages}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return {split: self._read_pairs(split) for split in self.STEMS}

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
        """Return the path of the only file with one of these stems in a language."""
        names = [f"{stem}.{language}{zipped}" for stem in stems for zipped in ("", ".gz")]
        found = [name for name in names if (self.manual_dir / name).is_file()]
        if len(found) != 1:
            raise DataError(
                f"{self.manual_dir}: must contain one of {', '.join(names)}; "
                f"found {', '.join(found) or 'none'}."
            )
        return self.manual_dir / found[0]

    def _read_pairs(self, split: str) -> Iterator[Example]:
        """Yield the pairs of a split. Pairs with an empty side are left out and counted."""
        paths = [self.raw_files[f"{split}.{language}"] for language in self.languages]
        for lines in itertools.zip_longest(*map(read_lines, paths)):
            if None in lines:
                short, long = (paths, paths[::-1])[lines[0] is not None]
                number = max(line[0] for line in lines if line is not None)
                raise DataError(
                    f"{long}:{number}: has no translation, because {short} has only {number - 1} "
                    "lines. Line i of one file must be the translation of line i of the other."
                )
            texts = [text.strip() for _, text in lines]
            if all(texts):
                yield dict(zip(self.languages, texts, strict=True))
            else:
                self.leave_out(f"pairs of {split} with an empty side")


class Multi30k(ParallelText):
    """Multi30k, task 1: image captions in English and German (Elliott et al. 2016).

    `test` is the test set of 2016. The later test sets are splits of their own.
    """

    HOMEPAGE = "https://github.com/multi30k/dataset"
    REQUIRED_FILES = "train, val and test_2016_flickr, ..., each as .en and .de"
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
