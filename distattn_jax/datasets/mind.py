"""MIND: news, and which of them people clicked (Wu et al. 2020)."""

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from jaxtyping import Int32

from distattn_jax.data.builder import Example, TextBuilder
from distattn_jax.data.download import download
from distattn_jax.data.records import Records
from distattn_jax.data.rows import DataError, read_rows
from distattn_jax.datasets.mind_log import Days, Log, Shown

PARTS = ("train", "dev")
FOLDERS = ("{}", "MINDsmall_{}", "MINDlarge_{}")
COLUMNS = ("id", "category", "subcategory", "title", "abstract", "url", "in_title", "in_abstract")
HISTORY = 50  # clicks kept of a history, the newest
CANDIDATES = 5  # of an example of train: a click and four others
# Rows of the raw files.
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
    """Numbers of news, clicked before and shown now, and 1 for each of these that was clicked."""

    history: Int32[np.ndarray, " K"]
    candidates: Int32[np.ndarray, " C"]
    clicks: Int32[np.ndarray, " C"]


def _sources(size: str) -> tuple[str, ...]:
    host = "https://recodatasets.z20.web.core.windows.net/newsrec"
    return tuple(f"{host}/MIND{size}_{part}.zip" for part in PARTS)


class Mind(TextBuilder):
    """MIND as published: folders `train` and `dev`, with news.tsv and behaviors.tsv in each.

    They may also be called MINDsmall_train and MINDsmall_dev, or MINDlarge_train and MINDlarge_dev.
    The last day of the log of train is the validation set, as in the DA-Transformer paper. The test
    set as published has no labels: the test set here is dev, which has them.

    - `news`: row i is the title of news number i; row 0, empty, stands for none. Those of train
      come first, then those of dev that are new.
    - `train`: an example for every click: this one and four candidates of the same impression that
      were not clicked, in a drawn order, as for NRMS (Wu et al. 2019). `SEED` draws them, some
      more than once where there are fewer than four.
    - `validation` and `test`: an example for every impression, with all its candidates.

    A history is the last 50 clicks of a user, the oldest first; it may be empty. News without a row
    in news.tsv are left out everywhere, and then impressions without a click or without anything
    else: `describe_rows` says how many.

    Neither to prepare nor to read takes the memory of a log. TFDS holds a split until it is
    written, so every `SHARD` lines of a log are splits of their own, train_0000 and so on, which
    `source` puts together.
    """

    URLS: ClassVar[tuple[str, ...]] = _sources("small")
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = MIND_SMALL
    SHARD: ClassVar[int] = 50_000
    SEED: ClassVar[int] = 0

    def find_files(self) -> dict[str, Path]:
        folders = {part: _folder(self.manual_dir, part) for part in PARTS}
        return {
            f"{part}/{kind}": folder / f"{kind}.tsv"
            for part, folder in folders.items()
            for kind in ("news", "behaviors")
        }

    def features(self) -> dict[str, Any]:
        # As bytes, sequences are read in half the time.
        numbers = tfds.features.Tensor(shape=(None,), dtype=np.int32, encoding="bytes")
        return {"title": tfds.features.Text(), **dict.fromkeys(Impression._fields, numbers)}

    def read_splits(self) -> dict[str, Iterable[Example]]:
        rows = self.info.metadata["rows"] = {}
        numbers: dict[str, int] = {}
        titles = [""]
        for part in PARTS:
            path = self.raw_files[f"{part}/news"]
            rows[f"{part}/news"] = _add_news(path, numbers, titles)
            self.info.metadata.setdefault("training_titles", len(titles))  # train comes first
        train, dev = (
            Log(self.raw_files[f"{part}/behaviors"], numbers, size=self.SHARD) for part in PARTS
        )
        rows.update({"train/behaviors": train.rows, "dev/behaviors": dev.rows})
        self.left_out.update(+(train.left_out + dev.left_out))
        parts: dict[str, tuple[Log, Days]] = {
            "train": (train, lambda day: day != train.last),
            "validation": (train, lambda day: day == train.last),
            "test": (dev, lambda day: True),
        }
        splits: dict[str, Iterable[Example]] = {"news": (_example(title=title) for title in titles)}
        for split, (log, days) in parts.items():
            examples = self._clicks if split == "train" else _impressions
            shards = log.shards(days)
            if not shards:
                raise DataError(
                    f"{log.path}: must have an impression for {split} that was clicked in part; "
                    f"left out: {dict(log.left_out)}."
                )
            for shard in shards:
                splits[f"{split}_{shard:04}"] = examples(log.read(shard, days))
        return splits

    @property
    def training_titles(self) -> list[str]:
        """Of the news of the training log, which come first."""
        self.prepare()
        return self.titles[: self.info.metadata["training_titles"]]

    @functools.cached_property
    def titles(self) -> list[str]:
        """Of all news, by their numbers."""
        news = self._records("news", lambda features: features["title"].decode())
        return news.__getitems__(range(len(news)))

    def source(self, split: str) -> Records:
        """The impressions of train, validation or test: `Impression`s, read when asked for."""
        if split not in ("train", "validation", "test"):
            raise ValueError(f"split must be train, validation or test; got {split!r}.")
        return self._records(split, _impression)

    def describe_rows(self) -> tuple[str, ...]:
        self.prepare()
        rows = dict(self._counts())
        whole = {"all of MIND-small": MIND_SMALL, "all of MIND-large": MIND_LARGE}
        which = next(
            (name for name, sizes in whole.items() if sizes == rows), "neither MIND-small nor large"
        )
        counted = ", ".join(f"{count:,} rows of {name}" for name, count in rows.items())
        left_out = (f"left out: {count:,} {reason}" for reason, count in self.left_out.items())
        return (f"{which}: {counted}", *left_out)

    def _download(self) -> Path:
        """Each archive into a folder of its name: their files are called the same."""
        folder = self.root / "downloads" / self.name
        for address in self.URLS:
            place = folder / PurePosixPath(address).stem
            if not place.is_dir():
                self._check_writable()
                download([address], place)
        return folder

    def _counts(self) -> list[tuple[str, int]]:
        return [(name, self.info.metadata["rows"][name]) for name in self.raw_files]

    def _records(self, split: str, decode: Callable[[Mapping[str, bytes]], Any]) -> Records:
        """The examples of a split, or of all its shards."""
        self.prepare()
        shards = sorted(name for name in self.info.splits if name.split("_")[0] == split)
        files = [file for name in shards for file in self.info.splits[name].file_instructions]
        return Records([(file.filename, file.take) for file in files], decode)

    def _clicks(self, impressions: Iterator[Shown]) -> Iterator[Example]:
        """An example for every click, with others that were not clicked."""
        for shown in impressions:
            # Of the generator, `random` alone is the same in all versions.
            drawn = random.Random(f"{self.SEED} {shown.line}").random
            labelled = list(zip(shown.candidates, shown.clicks, strict=True))
            others = [pair for pair in labelled if not pair[1]]
            while len(others) < CANDIDATES - 1:
                others.append(others[int(drawn() * len(others))])
            for click in (pair for pair in labelled if pair[1]):
                chosen = sorted(others, key=lambda _: drawn())[: CANDIDATES - 1]
                candidates, clicks = zip(
                    *sorted([click, *chosen], key=lambda _: drawn()), strict=True
                )
                yield _example(shown.history, candidates, clicks)


class MindLarge(Mind):
    """The same, with MIND-large as what is downloaded where no folder is given."""

    URLS: ClassVar[tuple[str, ...]] = _sources("large")
    PUBLISHED_ROWS: ClassVar[Mapping[str, int]] = MIND_LARGE


def _impressions(impressions: Iterator[Shown]) -> Iterator[Example]:
    """An example for each, with all its candidates."""
    for shown in impressions:
        yield _example(shown.history, shown.candidates, shown.clicks)


def _example(
    history: Sequence[int] = (),
    candidates: Sequence[int] = (),
    clicks: Sequence[int] = (),
    title: str = "",
) -> Example:
    """TFDS has the same features for all splits: those that one has no use for are empty."""
    sequences = (history[-HISTORY:], candidates, clicks)
    arrays = (np.array(sequence, np.int32) for sequence in sequences)
    return {"title": title, **dict(zip(Impression._fields, arrays, strict=True))}


def _impression(features: Mapping[str, bytes]) -> Impression:
    return Impression(*(np.frombuffer(features[name], np.int32) for name in Impression._fields))


def _add_news(path: Path, numbers: dict[str, int], titles: list[str]) -> int:
    """Gives every new news a number and a title; how many rows the file has."""
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


def _folder(folder: Path, part: str) -> Path:
    """Where the files of a part lie: an archive may hold them in a folder of its own name."""
    names = [name.format(part) for name in FOLDERS]
    places = [folder / place for name in names for place in (name, f"{name}/{name}")]
    found = [
        place
        for place in places
        if all((place / name).is_file() for name in ("news.tsv", "behaviors.tsv"))
    ]
    if len(found) != 1:
        raise DataError(
            f"{folder}: must hold one of the folders {', '.join(names)}, with news.tsv and "
            f"behaviors.tsv; found {[str(place.relative_to(folder)) for place in found]}."
        )
    return found[0]
