"""Base class of the data sets: a TensorFlow Datasets (TFDS) builder that needs no TensorFlow."""

import abc
import contextlib
import dataclasses
import hashlib
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from distattn_jax.data.download import advise_manual_download, check_files, download, hash_file
from distattn_jax.data.files import DataError, read_json
from distattn_jax.data.repeats import SPLITS, Repeats, TextHashes, describe_repeats

Example = Mapping[str, Any]
PREPARED_DIGESTS = "digests.json"  # in the folder of the prepared examples
CHUNK_SIZE = 1000  # examples decoded at a time


class _LocalInfo(tfds.core.DatasetInfo):
    """Description of a data set that TFDS does not publish."""

    def initialize_from_bucket(self) -> None:
        """Do nothing.

        The original method of TFDS would search online, and leave a temporary folder behind.
        """


class TextBuilder(tfds.core.GeneratorBasedBuilder):
    """TFDS builder that prepares the examples of a text data set from its published files.

    A subclass implements two methods: `find_files` finds the files, and `read_splits` reads the
    examples of every split. Examples are stored in the order in which they are read. By default, an
    example has the features `text` and `label`, and the label is one of `CLASSES`. A subclass may
    override `features`.

    Prepared examples are stored as array_record files in `data_dir/{hash}/{name}/{version}`, where
    `hash` is computed from the contents of the raw files. If the raw files change, the examples are
    prepared again.

    Args:
      manual_dir: Folder with the raw files. The files may contain only a part of the published
        rows. If None, the published files are downloaded from `URLS` into
        `data_dir/downloads/{name}`, and their digests are checked.
      data_dir: Folder for prepared and downloaded files.

    Attributes:
      raw_files: Dict from key to path of each raw file, as returned by `find_files`.
      digest: Hash of the keys, names and contents of the raw files.
      hashes: Hashes of the texts, to find texts that occur in two splits. Exists while the examples
        are prepared.
    """

    # Public address of every raw file or archive, and its digest, e.g. sha256:9d49... or, if the
    # digest is unknown, an empty text.
    URLS: ClassVar[Mapping[str, str]] = {}
    UNPACK_SEPARATELY: ClassVar[bool] = False  # True if archives contain files of equal names
    HOMEPAGE: ClassVar[str] = ""  # page that describes the data set and offers its files
    REQUIRED_FILES: ClassVar[str] = ""  # raw files of a data set that cannot be downloaded
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = {}  # rows of every split as published
    EMPTY: ClassVar[Example] = {}  # values of the features that some splits lack; TFDS needs all
    CLASSES: ClassVar[Sequence[str] | None] = None  # labels; None if the raw files define them
    UNIT: ClassVar[str] = "texts"  # plural noun for the examples

    VERSION = tfds.core.Version("1.1.0")  # 1.1.0 added the texts that occur in two splits.
    # TFDS would search this path for download checksums, which do not exist here. The search
    # requires importlib_resources, a package that TFDS does not install.
    code_path = None
    MANUAL_DOWNLOAD_INSTRUCTIONS = "manual_dir must be the folder with the raw files."

    def __init__(self, *, manual_dir: str | Path | None = None, data_dir: str | Path):
        if "://" in str(data_dir):
            raise DataError(f"data_dir (--data.directory) must be a local folder; got {data_dir}.")
        self.root = Path(data_dir)
        self.downloaded = manual_dir is None and bool(self.URLS)
        if self.downloaded:
            manual_dir = self._download()
        if manual_dir is None or not Path(manual_dir).is_dir():
            raise DataError(
                "manual_dir (--data.manual-dir) must be the folder with the raw files; "
                f"got {manual_dir}."
            )
        self.manual_dir = Path(manual_dir)
        self.raw_files = self.find_files()
        digests = {path: hash_file(path) for path in self.raw_files.values()}
        if self.downloaded:
            check_files(self.manual_dir, digests)
        self.digest = _combine_digests(self.raw_files, digests)
        self._check_prepared_files()
        super().__init__(data_dir=self.root / self.digest, file_format="array_record")
        # TFDS pickles these arguments to rebuild the builder in another process.
        self._original_state = {
            "manual_dir": None if self.downloaded else manual_dir,
            "data_dir": data_dir,
        }

    @abc.abstractmethod
    def find_files(self) -> dict[str, Path]:
        """Return the paths of the raw files in `manual_dir`: a dict from a key to a path.

        A subclass chooses the keys. For example, a key is the name of the split.
        """

    @abc.abstractmethod
    def read_splits(self) -> dict[str, Iterable[Example]]:
        """Return a dict from each split to an iterable over its examples.

        The iterable may be a generator, which saves memory.
        """

    def features(self) -> dict[str, Any]:
        """Return the TFDS features of an example."""
        names = None if self.CLASSES is None else list(self.CLASSES)
        return {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=names)}

    def list_texts(self, example: Example) -> Sequence[str]:
        """Return the texts of an example that are compared to find equal examples in two splits.

        By default, this is the feature `text`.
        """
        return (example["text"],)

    def published_rows(self) -> Mapping[str, int]:
        """Return a dict from split to the number of rows that its authors publish.

        Splits without a published number are not in the dict.
        """
        return self.PUBLISHED_ROWS

    def prepare(self) -> None:
        """Prepare the examples and store them on disk, unless this was done before.

        If several processes prepare the same examples at the same time, all of them use the
        examples of the process that finishes first.
        """
        if not self.data_path.exists():
            self._check_writable()
            tfds.disable_progress_bar()
            try:
                # TFDS prints messages about downloads, although nothing is downloaded here.
                with contextlib.redirect_stdout(io.StringIO()):
                    self.download_and_prepare()
            except OSError:  # TFDS cannot rename its folder if the examples exist by then.
                if not self.data_path.exists():
                    raise
                self.info.read_from_directory(self.data_path)
            except RuntimeError as error:  # from the library that writes the examples
                if "File too large" in str(error):
                    raise DataError(
                        f"{self.data_path.parent}: a file is larger than the system allows (see "
                        "ulimit -f)."
                    ) from None
                if "No space left" not in str(error):
                    raise
                raise DataError(
                    f"{self.data_path.parent}: no space is left on the disk. Free some space, or "
                    "choose another data_dir (--data.directory)."
                ) from None
        if not self.info.splits:
            self.info.read_from_directory(self.data_path)
        self._record_prepared_files()
        if self.downloaded:
            self._check_complete()

    @property
    def left_out(self) -> dict[str, int]:
        """Dict from each reason to the number of rows that were left out for this reason."""
        return self.info.metadata["left_out"]

    def leave_out(self, reason: str) -> None:
        """Count one more row of the raw files that no split contains, for this reason."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    @property
    def repeats(self) -> list[Repeats]:
        """Examples that occur in two of the splits, for each pair of splits that share some."""
        self.prepare()
        return [Repeats(**fields) for fields in self.info.metadata["repeats"]]

    def describe_repeats(self) -> list[str]:
        """Return a warning of one line if examples occur in two of the splits, otherwise []."""
        return describe_repeats(self.repeats, self.UNIT)

    def describe_rows(self) -> tuple[str, ...]:
        """Return lines of text that describe the data set.

        Each split of a published size has a line with its number of rows, and all other splits
        share a line. Each reason for leaving out rows has a line with the number of rows that were
        left out.
        """
        self.prepare()
        published = self.published_rows()
        counts = self._count_rows()
        others = [f"{rows:,} of {split}" for split, rows in counts if split not in published]
        lines = [f"{self.UNIT}: {', '.join(others)}"] if others else []
        lines += [
            _describe_split(split, rows, published[split])
            for split, rows in counts
            if split in published
        ]
        lines += [f"left out: {rows:,} {reason}" for reason, rows in self.left_out.items()]
        return tuple(lines)

    def _count_rows(self) -> list[tuple[str, int]]:
        """Return (name, number of examples) for every split."""
        return [(name, split.num_examples) for name, split in self.info.splits.items()]

    def _check_complete(self) -> None:
        """Check that downloaded splits have the published number of rows.

        If a number differs, delete the prepared examples and raise `DataError`.
        """
        published = self.published_rows()
        for split, rows in self._count_rows():
            if rows != published.get(split, rows):
                self.data_path.rmtree()
                raise DataError(
                    f"{self.manual_dir}: the downloaded files must contain {published[split]:,} "
                    f"rows of {split}; got {rows:,}. Delete this folder to download them again, "
                    f"or {advise_manual_download(self.HOMEPAGE)}."
                )

    @property
    def _prepared_folder(self) -> Path:
        """Folder of the prepared examples."""
        return self.root / self.digest / self.name / str(self.VERSION)

    def _record_prepared_files(self) -> None:
        """Write the digests of the prepared files to digests.json in the same folder.

        Do nothing if digests.json exists.
        """
        folder = self._prepared_folder
        if (folder / PREPARED_DIGESTS).is_file():
            return
        names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        digests = {name: hash_file(folder / name) for name in names}
        # Examples in a folder that cannot be written, prepared by an earlier version, have none.
        with contextlib.suppress(PermissionError):
            with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".", delete=False) as file:
                json.dump(digests, file, indent=1)
            Path(file.name).rename(folder / PREPARED_DIGESTS)

    def _check_prepared_files(self) -> None:
        """Raise `DataError` if a prepared file is missing or has changed since it was written."""
        folder = self._prepared_folder
        record = folder / PREPARED_DIGESTS
        if not record.is_file():
            return
        advice = f"Delete the folder {folder}; the examples are then prepared again."
        try:
            digests = dict(read_json(record))
        except (TypeError, ValueError) as error:
            raise DataError(f"{record}: is damaged ({error}). {advice}") from None
        for name, digest in digests.items():
            if not (folder / name).is_file():
                raise DataError(f"{folder / name}: is missing. {advice}")
            if hash_file(folder / name) != digest:
                raise DataError(f"{folder / name}: is damaged. {advice}")

    def _download(self) -> Path:
        """Download the raw files unless this was done before. Return the folder of the files."""
        folder = self.root / "downloads" / self.name
        if not folder.is_dir():
            self._check_writable()
            download(self.URLS, folder, separate=self.UNPACK_SEPARATELY, homepage=self.HOMEPAGE)
        return folder

    def _check_writable(self) -> None:
        """Raise `DataError` if no file can be created in `data_dir`."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.root).close()
        except OSError as error:
            raise DataError(
                "data_dir (--data.directory) must be a writable folder; "
                f"got {self.root}: {error.strerror}."
            ) from None

    def _info(self) -> tfds.core.DatasetInfo:
        """Return the description of the data set that TFDS requires."""
        return _LocalInfo(
            builder=self,
            features=tfds.features.FeaturesDict(self.features()),
            metadata=tfds.core.MetadataDict(left_out={}, repeats=[]),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterable[tuple[int, Example]]]:
        """Return a dict from each split to its (index, example) pairs. TFDS calls this method."""
        self.left_out.clear()
        self.hashes = TextHashes()
        return {split: self._number(split, rows) for split, rows in self.read_splits().items()}

    def _number(self, split: str, rows: Iterable[Example]) -> Iterator[tuple[int, Example]]:
        """Yield (index, example) for each example. Raise `DataError` if there is no example."""
        number = -1
        for number, row in enumerate(rows):
            if split in SPLITS:
                self.hashes.add(split, self.list_texts(row))
            yield number, {**self.EMPTY, **row}
        if number < 0:
            raise DataError(f"{self.manual_dir}: has no rows for the split {split!r}.")
        self.info.metadata["repeats"] = [
            dataclasses.asdict(each) for each in self.hashes.find_repeats()
        ]

    def _generate_examples(self) -> Any:
        """Return an empty iterator.

        TFDS requires this method, but `_split_generators` already returns all examples.
        """
        return iter(())


def load_split(builder: TextBuilder, split: str) -> list[dict[str, Any]]:
    """Load all examples of a split into memory. Prepare the data set first if necessary.

    Texts are returned as `str`, numbers as NumPy scalars or arrays.

    Args:
      builder: Data set to load from.
      split: Name of the split, or a slice of it in TFDS notation such as `train[:100]`.
    """
    return list(iterate_split(builder, split))


def iterate_split(builder: TextBuilder, split: str) -> Iterator[dict[str, Any]]:
    """Yield the examples of a split. Only a small part of them is in memory at a time.

    Texts are returned as `str`, numbers as NumPy scalars or arrays.

    Args:
      builder: Data set to load from.
      split: Name of the split, or a slice of it in TFDS notation such as `train[:100]`.
    """
    builder.prepare()
    name = split.split("[")[0]
    if name not in builder.info.splits:
        known = list(builder.info.splits)
        raise ValueError(f"split (--split) must be one of {known}; got {split!r}.")
    try:
        parts = tfds.core.ReadInstruction.from_spec(split).to_absolute(builder.info.splits)
    except Exception:  # TFDS raises errors of many classes for a wrong slice.
        raise ValueError(
            f"split (--split) must be a split or a part of one such as {name}[:100] or "
            f"{name}[50%:]; got {split!r}."
        ) from None
    # TFDS would return all examples from the second one on for train[1:0].
    if any(part.to is not None and part.to <= (part.from_ or 0) for part in parts):
        raise ValueError(f"split (--split) must contain examples; {split!r} has none.")
    source = builder.as_data_source(split=split)
    for start in range(0, len(source), CHUNK_SIZE):
        for row in source.__getitems__(range(start, min(start + CHUNK_SIZE, len(source)))):
            yield {name: _decode(value) for name, value in row.items()}


def draw_disjoint(total: int, sizes: Sequence[int], *, seed: str) -> list[set[int]]:
    """Draw disjoint random sets of row indices.

    Args:
      total: Number of rows to draw from. Row indices start at 0.
      sizes: Number of rows in each set.
      seed: Any text. Different seeds draw different rows.
    """
    if min(sizes) < 0 or sum(sizes) > total:
        raise ValueError(f"sizes must be 0 or more and sum to at most {total}; got {list(sizes)}.")
    rows = iter(random.Random(seed).sample(range(total), sum(sizes)))
    return [{next(rows) for _ in range(size)} for size in sizes]


def hold_out_tenth(
    read: Callable[[str], Iterable[Example]], *, seed: str
) -> dict[str, Iterable[Example]]:
    """Return the splits train, validation and test of a data set that publishes no validation set.

    The split `validation` is a tenth of the published training rows, drawn at random. The split
    `train` contains the other training rows.

    Args:
      read: Function that returns the examples of the published set "train" or "test".
      seed: Any text. Different seeds draw different rows.
    """
    total = sum(1 for _ in read("train"))
    (drawn,) = draw_disjoint(total, [round(total / 10)], seed=seed)

    def select(is_drawn: bool) -> Iterator[Example]:
        """Yield the training rows that were drawn, or all others if `is_drawn` is False."""
        return (row for i, row in enumerate(read("train")) if (i in drawn) == is_drawn)

    return {"train": select(False), "validation": select(True), "test": read("test")}


def _describe_split(split: str, rows: int, published: int) -> str:
    """Return a line with the number of rows of a split and the published number."""
    if rows == published:
        return f"{split}: {rows:,} rows, all of the published set"
    if rows < published:
        return f"{split}: {rows:,} rows, of {published:,} in the published set (a part)"
    return f"{split}: {rows:,} rows, more than the {published:,} of the published set"


def _decode(value: Any) -> Any:
    """Return bytes as text and any other value unchanged."""
    return value.decode() if isinstance(value, bytes) else value


def _combine_digests(files: Mapping[str, Path], digests: Mapping[Path, str]) -> str:
    """Return one hash of all files, computed from their keys, names and contents.

    `digests` is a dict from the path of a file to the digest of its content.
    """
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\n{path.name}\n{digests[path]}\n".encode())
    return digest.hexdigest()[:16]
