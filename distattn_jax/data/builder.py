"""What all our TFDS builders share: raw files in, array_record files out, no TensorFlow."""

import abc
import contextlib
import hashlib
import io
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from distattn_jax.data.download import BY_HAND, download
from distattn_jax.data.rows import DataError

Example = Mapping[str, Any]
CHUNK = 1000  # examples read at a time


class TextBuilder(tfds.core.GeneratorBasedBuilder):
    """A TFDS builder of files; a subclass says which, where they are, and what is in them.

    The prepared files lie under a hash of the raw ones, `data_dir/{hash}/{name}/{version}`: when
    these change, they are prepared anew, and stale examples are never read. Examples keep the order
    of the raw files.

    Args:
      manual_dir: the folder of the raw files, whole or a part of the published ones. `None`: they
        are downloaded from `URLS` into `data_dir/downloads/{name}`, and must be whole.
      data_dir: the folder for the prepared ones.
    """

    URLS: ClassVar[tuple[str, ...]] = ()  # the public addresses of the raw files
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = {}  # rows of every split, when these are whole

    VERSION = tfds.core.Version("1.0.0")
    # Where TFDS would look for checksums of downloads. There are none, and to look it needs a
    # package that it does not install (importlib_resources).
    code_path = None
    MANUAL_DOWNLOAD_INSTRUCTIONS = "manual_dir must be the folder of the raw files."

    def __init__(self, *, manual_dir: str | Path | None = None, data_dir: str | Path):
        self.root = Path(data_dir)
        self.downloaded = manual_dir is None and bool(self.URLS)
        if self.downloaded:
            manual_dir = self._download()
        if manual_dir is None or not Path(manual_dir).is_dir():
            raise DataError(f"manual_dir must be the folder of the raw files; got {manual_dir}.")
        self.manual_dir = Path(manual_dir)
        self.raw_files = self.find_files()
        self.digest = _digest(self.raw_files)
        super().__init__(data_dir=self.root / self.digest, file_format="array_record")
        kept = None if self.downloaded else manual_dir
        self._original_state = {"manual_dir": kept, "data_dir": data_dir}  # what pickle keeps

    @abc.abstractmethod
    def find_files(self) -> dict[str, Path]:
        """The raw files, by any names."""

    @abc.abstractmethod
    def features(self) -> dict[str, Any]:
        """The TFDS features of an example."""

    @abc.abstractmethod
    def read_splits(self) -> dict[str, Iterable[Example]]:
        """The examples of every split, best made one by one from `self.raw_files`."""

    def published_rows(self) -> Mapping[str, int]:
        """Rows of every split when the raw files are whole; none where nobody has said."""
        return self.PUBLISHED_ROWS

    def prepare(self) -> None:
        """Writes the prepared files, unless they are there."""
        if not self.data_path.exists():
            self._check_writable()
            tfds.disable_progress_bar()
            with contextlib.redirect_stdout(io.StringIO()):  # it speaks of downloads
                self.download_and_prepare()
        if self.downloaded:
            self._check_whole()

    @property
    def left_out(self) -> dict[str, int]:
        """Rows of the raw files that are in no split on purpose: how many, by reason."""
        return self.info.metadata["left_out"]

    def leave_out(self, reason: str) -> None:
        """Counts a row that `splits` leaves out on purpose."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def describe_rows(self) -> tuple[str, ...]:
        """How many there are of the published ones, and how many were left out; one line each."""
        self.prepare()
        published = self.published_rows()
        lines = [_line(split, rows, published.get(split)) for split, rows in self._counts()]
        lines += [f"left out: {rows:,} {reason}" for reason, rows in self.left_out.items()]
        return tuple(lines)

    def _counts(self) -> list[tuple[str, int]]:
        return [(name, split.num_examples) for name, split in self.info.splits.items()]

    def _check_whole(self) -> None:
        """What was downloaded must be the published set, or nothing is kept of what it gave."""
        published = self.published_rows()
        for split, rows in self._counts():
            if rows != published.get(split, rows):
                self.data_path.rmtree()
                raise DataError(
                    f"{self.manual_dir}: was downloaded, and must give {published[split]:,} "
                    f"rows of {split}; got {rows:,}. Remove it to download it again, or {BY_HAND}."
                )

    def _download(self) -> Path:
        folder = self.root / "downloads" / self.name
        if not folder.is_dir():
            self._check_writable()
            download(self.URLS, folder)
        return folder

    def _check_writable(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.root).close()
        except OSError as error:
            raise DataError(
                f"data_dir must be a folder that can be written; got {self.root}: {error.strerror}."
            ) from None

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(self.features()),
            metadata=tfds.core.MetadataDict(left_out={}),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterable[tuple[int, Example]]]:
        self.left_out.clear()
        return {split: self._numbered(split, rows) for split, rows in self.read_splits().items()}

    def _numbered(self, split: str, rows: Iterable[Example]) -> Iterator[tuple[int, Example]]:
        number = -1
        for number, row in enumerate(rows):
            yield number, row
        if number < 0:
            raise DataError(f"{self.manual_dir}: has no rows for the split {split!r}.")

    def _generate_examples(self) -> Any:
        """TFDS asks for one; here `_split_generators` gives the examples themselves."""
        return iter(())


def load_split(builder: TextBuilder, split: str) -> list[dict[str, Any]]:
    """All examples of a split, prepared where they are not yet: text as `str`, numbers as NumPy's.

    Args:
      builder: of the data.
      split: its name, or a slice of it as TFDS writes it (`train[:100]`).
    """
    builder.prepare()
    name = split.split("[")[0]
    if name not in builder.info.splits:
        raise ValueError(f"split must be one of {list(builder.info.splits)}; got {split!r}.")
    source = builder.as_data_source(split=split)
    examples = []
    for start in range(0, len(source), CHUNK):
        examples += source.__getitems__(range(start, min(start + CHUNK, len(source))))
    return [{name: _decoded(value) for name, value in row.items()} for row in examples]


def _line(split: str, rows: int, published: int | None) -> str:
    if published is None:
        return f"{split}: {rows:,} rows"
    if rows == published:
        return f"{split}: {rows:,} rows, all of the published set"
    if rows < published:
        return f"{split}: {rows:,} rows, of {published:,} in the published set (a part)"
    return f"{split}: {rows:,} rows, more than the {published:,} of the published set"


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _digest(files: Mapping[str, Path]) -> str:
    """Of what the files hold, and what they are called."""
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{name}\n{path.name}\n{content}\n".encode())
    return digest.hexdigest()[:16]
