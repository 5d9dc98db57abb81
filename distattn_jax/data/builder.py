"""What all our TFDS builders share: raw files in, array_record files out, no TensorFlow."""

import abc
import contextlib
import hashlib
import io
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from distattn_jax.data.rows import DataError

Example = Mapping[str, Any]
CHUNK = 1000  # examples read at a time


class TextBuilder(tfds.core.GeneratorBasedBuilder):
    """A TFDS builder of files that a person has; a subclass says which, and what is in them.

    The prepared files lie under a hash of the raw ones, `data_dir/{hash}/{name}/{version}`: when
    these change, they are prepared anew, and stale examples are never read. Examples keep the order
    of the raw files.

    Args:
      manual_dir: the folder of the raw files.
      data_dir: the folder for the prepared ones.
    """

    VERSION = tfds.core.Version("1.0.0")
    # Where TFDS would look for checksums of downloads. There are none, and to look it needs a
    # package that it does not install (importlib_resources).
    code_path = None
    MANUAL_DOWNLOAD_INSTRUCTIONS = "manual_dir must be the folder of the raw files."

    def __init__(self, *, manual_dir: str | Path, data_dir: str | Path):
        self.manual_dir, self.root = Path(manual_dir), Path(data_dir)
        if not self.manual_dir.is_dir():
            raise DataError(f"manual_dir must be the folder of the raw files; got {manual_dir}.")
        self.raw = self.files()
        super().__init__(data_dir=self.root / _digest(self.raw), file_format="array_record")
        self._original_state = {"manual_dir": manual_dir, "data_dir": data_dir}  # what pickle keeps

    @abc.abstractmethod
    def files(self) -> dict[str, Path]:
        """The raw files, by any names."""

    @abc.abstractmethod
    def features(self) -> dict[str, Any]:
        """The TFDS features of an example."""

    @abc.abstractmethod
    def splits(self) -> dict[str, Iterable[Example]]:
        """The examples of every split, best made one by one from `self.raw`."""

    def prepare(self) -> None:
        """Writes the prepared files, unless they are there."""
        if not self.data_path.exists():
            self._check_writable()
            tfds.disable_progress_bar()
            with contextlib.redirect_stdout(io.StringIO()):  # it speaks of downloads
                self.download_and_prepare()

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
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterable[tuple[int, Example]]]:
        return {name: enumerate(examples) for name, examples in self.splits().items()}

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
