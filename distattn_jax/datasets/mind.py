"""MIND (Wu et al. 2020): recommend news to users, based on the news that they clicked before."""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Int32

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.files import DataError
from distattn_jax.data.records import RecordSource
from distattn_jax.data.rows import read_rows
from distattn_jax.datasets.mind_log import DayFilter, ImpressionLog, LoggedImpression

PARTS = ("train", "dev")
FOLDERS = ("{}", "MINDsmall_{}", "MINDlarge_{}")
COLUMNS = ("id", "category", "subcategory", "title", "abstract", "url", "in_title", "in_abstract")
HISTORY = 50  # newest clicks of a history that are kept
CANDIDATES = 5  # candidates of a training example: one clicked, four not clicked
NO_NEWS = np.zeros(0, np.int32)
# Rows of the raw files as published.
MIND_SMALL = {
    "train/news": 51_282,
    "train/behaviors": 156_965,
    "dev/news": 42_416,
    "dev/behaviors": 73_152,
}
MIND_LARGE = {
    "train/news": 101_527,
    "train/behaviors": 2_232_748,
    "dev/news": 72_023,
    "dev/behaviors": 376_471,
}


class Impression(NamedTuple):
    """Example of MIND: news items that were shown to a user at the same time.

    A news item is represented by its index in the list of all news.

    Attributes:
      history: News items that the user clicked before, oldest first, shape (K,).
      candidates: News items that were shown, shape (C,).
      clicks: 1 for each candidate that was clicked, otherwise 0, shape (C,).
    """

    history: Int32[np.ndarray, " K"]
    candidates: Int32[np.ndarray, " C"]
    clicks: Int32[np.ndarray, " C"]


# Several users of the mirror published these digests, and they agree.
DIGESTS = {
    "MINDsmall_train.zip": (
        "sha256:6ef97a271580b98ccfc4301ada55cc639423cb0576a78b8dcfcf74a4dbcc3194"
    ),
    "MINDsmall_dev.zip": "sha256:d6ce515dcaa6b6d47ddf0a326eebc8a31b84735ae410285c9882ca2a06eec669",
}


def _make_urls(size: str) -> dict[str, str]:
    """Return a dict from the address of each archive of MIND-small or MIND-large to its digest.

    The original addresses are gone, so that the archives come from a mirror. The digest is "" for
    MIND-large, because nobody has published it.
    """
    mirror = "https://huggingface.co/datasets/Recommenders/MIND/resolve/main"
    names = [f"MIND{size}_{part}.zip" for part in PARTS]
    return {f"{mirror}/{name}": DIGESTS.get(name, "") for name in names}


class Mind(TextBuilder):
    """MIND, from the folders `train` and `dev`, each with news.tsv and behaviors.tsv.

    The folders may also have the names of the archives, such as MINDsmall_train or MINDlarge_dev.
    As in the DA-Transformer paper, the last day of the training log is the validation split. The
    published test set has no labels, so the test split is `dev`.

    - Split `news`: row i is the title of news item i. Row 0 is empty and serves as padding. The
      news items of train come first, followed by the news items that occur only in dev.
    - Split `train`: one example for each click. The candidates are the clicked news item and four
      items of the same impression that were not clicked, in random order, as for NRMS (Wu et al.
      2019). `SEED` determines the choice. If an impression has fewer than four items that were not
      clicked, some of these items are repeated.
    - Splits `validation` and `test`: one example for each impression, with all its candidates.

    A history is at most the last 50 clicks of a user, oldest first, and may be empty. News items
    without a row in news.tsv are left out everywhere. Then impressions in which all or no
    candidates were clicked are left out. `describe_rows` reports what was left out.

    Preparing and reading a large log need much less memory than the size of the log. TFDS keeps a
    split in memory until the split is written. Therefore every `SHARD` lines of a log form a
    separate TFDS split, such as train_0000. The method `source` joins these splits.
    """

    URLS: ClassVar[dict[str, str]] = _make_urls("small")
    UNPACK_SEPARATELY = True
    HOMEPAGE = "https://msnews.github.io"
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = MIND_SMALL
    EMPTY: ClassVar[Example] = {"title": "", **dict.fromkeys(Impression._fields, NO_NEWS)}
    UNIT = "impressions"
    SHARD: ClassVar[int] = 50_000
    SEED: ClassVar[int] = 0

    def find_files(self) -> dict[str, Path]:
        folders = {part: _find_folder(self.manual_dir, part) for part in PARTS}
        return {
            f"{part}/{kind}": folder / f"{kind}.tsv"
            for part, folder in folders.items()
            for kind in ("news", "behaviors")
        }

    def features(self) -> dict[str, Any]:
        # Sequences that are stored as bytes are read in half the time.
        numbers = tfds.features.Tensor(shape=(None,), dtype=np.int32, encoding="bytes")
        return {"title": tfds.features.Text(), **dict.fromkeys(Impression._fields, numbers)}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        rows = self.info.metadata["rows"] = {}
        numbers: dict[str, int] = {}
        titles = [""]
        for part in PARTS:
            path = self.raw_files[f"{part}/news"]
            rows[f"{part}/news"] = _add_news(path, numbers, titles)
            # This keeps the first value, the number of titles after reading train.
            self.info.metadata.setdefault("training_titles", len(titles))
        train, dev = (
            ImpressionLog(self.raw_files[f"{part}/behaviors"], numbers, size=self.SHARD)
            for part in PARTS
        )
        rows.update({"train/behaviors": train.rows, "dev/behaviors": dev.rows})
        self.left_out.update(+(train.left_out + dev.left_out))
        parts: dict[str, tuple[ImpressionLog, DayFilter]] = {
            "train": (train, lambda day: day != train.last_day),
            "validation": (train, lambda day: day == train.last_day),
            "test": (dev, lambda day: True),
        }
        splits: dict[str, Iterable[Example]] = {"news": ({"title": title} for title in titles)}
        for split, (log, days) in parts.items():
            make_examples = self._sample_negatives if split == "train" else _keep_candidates
            shards = log.find_shards(days)
            if not shards:
                raise DataError(
                    f"{log.path}: must contain an impression for {split} in which some but not all "
                    f"candidates were clicked; left out: {dict(log.left_out)}."
                )
            for shard in shards:
                impressions = self._add_hashes(split, log.read_shard(shard, days))
                splits[f"{split}_{shard:04}"] = make_examples(impressions)
        return splits

    @property
    def training_titles(self) -> list[str]:
        """Titles of the news items in train/news.tsv. The first title is empty, for padding."""
        self.prepare()
        return self.titles[: self.info.metadata["training_titles"]]

    @functools.cached_property
    def titles(self) -> list[str]:
        """Titles of all news items. The first title is empty, for padding."""
        news = self._open_records("news", lambda features: features["title"].decode())
        return news.__getitems__(range(len(news)))

    def source(self, split: str) -> RecordSource:
        """Return the examples of a split as a sequence of `Impression` objects, read on demand.

        Args:
          split: `train`, `validation` or `test`.
        """
        if split not in ("train", "validation", "test"):
            raise ValueError(f"split (--split) must be train, validation or test; got {split!r}.")
        return self._open_records(split, _decode_impression)

    def describe_rows(self) -> tuple[str, ...]:
        """Return lines of text that describe the data set.

        The first line has the number of rows of each raw file. Each further line has the number of
        clicks, candidates or impressions that were left out for one reason.
        """
        self.prepare()
        rows = dict(self._count_rows())
        complete = {"all of MIND-small": MIND_SMALL, "all of MIND-large": MIND_LARGE}
        name = next(
            (name for name, sizes in complete.items() if sizes == rows),
            "neither MIND-small nor large",
        )
        counts = ", ".join(f"{count:,} rows of {file}" for file, count in rows.items())
        left_out = (f"left out: {count:,} {reason}" for reason, count in self.left_out.items())
        return (f"{name}: {counts}", *left_out)

    def _count_rows(self) -> list[tuple[str, int]]:
        """Return the name and the number of rows of every raw file."""
        return [(name, self.info.metadata["rows"][name]) for name in self.raw_files]

    def _open_records(
        self, split: str, decode: Callable[[Mapping[str, bytes]], Any]
    ) -> RecordSource:
        """Open the prepared examples of a split. `decode` converts an example, see `RecordSource`.

        If the split is stored as several TFDS splits, such as train_0000 and train_0001, they are
        joined.
        """
        self.prepare()
        shards = sorted(name for name in self.info.splits if name.split("_")[0] == split)
        files = [file for name in shards for file in self.info.splits[name].file_instructions]
        return RecordSource([(file.filename, file.take) for file in files], decode)

    def _add_hashes(
        self, split: str, impressions: Iterator[LoggedImpression]
    ) -> Iterator[LoggedImpression]:
        """Yield all impressions, and add their hashes, to find impressions in two splits.

        The examples of train cannot be compared, because their candidates are drawn at random.
        """
        for impression in impressions:
            self.hashes.add(split, (str(impression.history), str(impression.candidates)))
            yield impression

    def _sample_negatives(self, impressions: Iterator[LoggedImpression]) -> Iterator[Example]:
        """Yield one example for each click: the clicked item and four items without a click."""
        for impression in impressions:
            # Python guarantees that `random`, unlike `shuffle`, is the same in all versions.
            draw = random.Random(f"{self.SEED} {impression.line}").random
            candidates = list(zip(impression.candidates, impression.clicks, strict=True))
            negatives = [pair for pair in candidates if not pair[1]]
            while len(negatives) < CANDIDATES - 1:
                negatives.append(negatives[int(draw() * len(negatives))])
            for positive in (pair for pair in candidates if pair[1]):
                chosen = sorted(negatives, key=lambda _: draw())[: CANDIDATES - 1]
                news, clicks = zip(*sorted([positive, *chosen], key=lambda _: draw()), strict=True)
                yield _make_example(impression.history, news, clicks)


class MindLarge(Mind):
    """MIND-large. It differs from `Mind` only in the files that are downloaded."""

    URLS: ClassVar[dict[str, str]] = _make_urls("large")
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = MIND_LARGE


def _keep_candidates(impressions: Iterator[LoggedImpression]) -> Iterator[Example]:
    """Yield one example for each impression, with all its candidates."""
    for impression in impressions:
        yield _make_example(impression.history, impression.candidates, impression.clicks)


def _make_example(
    history: Sequence[int], candidates: Sequence[int], clicks: Sequence[int]
) -> Example:
    """Return an example as a dict of arrays, with the last 50 clicks of the history."""
    sequences = (history[-HISTORY:], candidates, clicks)
    return Impression(*(np.array(sequence, np.int32) for sequence in sequences))._asdict()


def _decode_impression(features: Mapping[str, bytes]) -> Impression:
    """Convert the stored bytes of an example to an `Impression`."""
    return Impression(*(np.frombuffer(features[name], np.int32) for name in Impression._fields))


def _add_news(path: Path, numbers: dict[str, int], titles: list[str]) -> int:
    """Read news.tsv, and append the titles of new news items to `titles`.

    `numbers` is a dict from the id of a news item to its index in `titles`. `numbers` and `titles`
    are updated in place.

    Returns:
      Number of rows of the file.
    """
    rows = 0
    for line, row in read_rows(path, columns=COLUMNS, header=False):
        rows += 1
        number = numbers.setdefault(row["id"], len(titles))
        if number == len(titles):
            titles.append(row["title"])
        elif titles[number] != row["title"]:
            raise DataError(
                f"{path}:{line}: {row['id']} must have one title, {titles[number]!r}; "
                f"got {row['title']!r}."
            )
    return rows


def _find_folder(folder: Path, part: str) -> Path:
    """Return the folder that contains news.tsv and behaviors.tsv of train or dev.

    The folder may lie inside another folder with the same name.
    """
    names = [name.format(part) for name in FOLDERS]
    places = [folder / place for name in names for place in (name, f"{name}/{name}")]
    found = [
        place
        for place in places
        if all((place / name).is_file() for name in ("news.tsv", "behaviors.tsv"))
    ]
    if len(found) != 1:
        raise DataError(
            f"{folder}: must contain one of the folders {', '.join(names)}, with news.tsv and "
            f"behaviors.tsv; found {[str(place.relative_to(folder)) for place in found]}."
        )
    return found[0]
