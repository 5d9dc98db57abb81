"""AG's News: assign one of four topics to a news item, from its title and description."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from distattn_jax.data.builder import Example, TextBuilder, hold_out_tenth
from distattn_jax.data.files import DataError
from distattn_jax.data.rows import read_rows

COMMIT = "555590db4219b1243abb1918effd6a7425a2d75f"
FOLDER = f"https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/{COMMIT}/data/ag_news_csv"
TOPICS = {"1": "World", "2": "Sports", "3": "Business", "4": "Sci/Tech"}


class AgNews(TextBuilder):
    """AG's News (Zhang et al. 2015), from train.csv and test.csv.

    The files have no header. Their columns are class, title and description. The text of an example
    is title and description, joined by a space. The validation split is a tenth of the rows of
    train.csv, drawn with a fixed seed.
    """

    # Digests: datasets/ag_news/dataset_infos.json in huggingface/datasets 2.5.1.
    URLS: ClassVar[dict[str, str]] = {
        f"{FOLDER}/train.csv": (
            "sha256:76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e"
        ),
        f"{FOLDER}/test.csv": (
            "sha256:521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"
        ),
    }
    HOMEPAGE = "https://github.com/mhjabreel/CharCnn_Keras"
    PUBLISHED_ROWS: ClassVar = {"train": 108_000, "validation": 12_000, "test": 7_600}
    CLASSES = tuple(TOPICS.values())

    def find_files(self) -> dict[str, Path]:
        files = {split: self.manual_dir / f"{split}.csv" for split in ("train", "test")}
        for path in files.values():
            if not path.is_file():
                raise DataError(f"{path}: no such file; expected train.csv and test.csv.")
        return files

    def read_splits(self) -> dict[str, Iterable[Example]]:
        return hold_out_tenth(self._read_examples, seed="ag_news validation")

    def _read_examples(self, file: str) -> Iterator[Example]:
        """Yield the examples of train.csv or test.csv. `file` is "train" or "test"."""
        path, columns = self.raw_files[file], ("class", "title", "description")
        for line, row in read_rows(path, columns=columns, header=False):
            text = f"{row['title']} {row['description']}".strip()
            if row["class"] not in TOPICS:
                raise DataError(
                    f"{path}:{line}: the class must be one of {list(TOPICS)}; got {row['class']!r}."
                )
            if not text:
                raise DataError(f"{path}:{line}: title and description are both empty.")
            yield {"text": text, "label": TOPICS[row["class"]]}
