"""A log of impressions as MIND publishes it, read line by line, from any shard on, never held."""

import datetime
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from distattn_jax.data.rows import DataError

FIELDS = 5  # id, user, time, history, candidates
TIME = re.compile(r"(\d\d?)/(\d\d?)/(\d{4}) (?:0?[1-9]|1[0-2]):[0-5]\d:[0-5]\d [AP]M")
LABELS = {"-0": 0, "-1": 1}  # how a candidate ends
NO_ROW = "without a row in news.tsv"

Days = Callable[[datetime.date], bool]


class Shown(NamedTuple):
    """A line: the news clicked before, those shown, and 1 for each of these that was clicked."""

    line: int
    history: list[int]
    candidates: list[int]
    clicks: list[int]

    @property
    def usable(self) -> bool:
        """Something was clicked, and something was not."""
        return 0 < sum(self.clicks) < len(self.clicks)


class Shard(NamedTuple):
    """So many lines of a log: the byte where they begin, and which of their days can be used."""

    start: int
    usable: dict[datetime.date, bool]


class Log:
    """behaviors.tsv in shards; read once when it is made, so that every fault is found.

    Args:
      path: the file.
      numbers: of the news, by their ids. Others are left out.
      size: lines of a shard.

    Attributes:
      rows: how many lines there are.
      last: the last day.
      left_out: how much, by reason.
    """

    def __init__(self, path: Path, numbers: Mapping[str, int], *, size: int):
        self.path, self._numbers, self._size = path, numbers, size
        self.rows, self.left_out = 0, Counter[str]()
        self._shards: list[Shard] = []
        end = 0
        with path.open("rb") as file:
            for raw in file:
                if self.rows % size == 0:
                    self._shards.append(Shard(end, {}))
                end += len(raw)
                self.rows += 1
                self._count(self.rows, raw, self._shards[-1].usable)
        if not self.rows:
            raise DataError(f"{path}: has no rows.")
        self.last = max(day for shard in self._shards for day in shard.usable)

    def shards(self, days: Days) -> list[int]:
        """The numbers of the shards with impressions of these days that can be used."""
        return [
            number
            for number, shard in enumerate(self._shards)
            if any(usable and days(day) for day, usable in shard.usable.items())
        ]

    def read(self, shard: int, days: Days) -> Iterator[Shown]:
        """The impressions of a shard and of these days that can be used."""
        with self.path.open("rb") as file:
            file.seek(self._shards[shard].start)
            lines = itertools.islice(file, self._size)
            for line, raw in enumerate(lines, start=shard * self._size + 1):
                fields = self._fields(line, raw)
                if days(self._day(line, fields)):
                    shown = self._shown(line, fields)
                    if shown.usable:
                        yield shown

    def _count(self, line: int, raw: bytes, usable: dict[datetime.date, bool]) -> None:
        """Notes the day of a line, whether it can be used, and what is left out of it."""
        fields = self._fields(line, raw)
        day, shown = self._day(line, fields), self._shown(line, fields)
        usable[day] = usable.get(day, False) or shown.usable
        clicked, candidates = (len(field.split()) for field in fields[3:])
        self.left_out[f"clicks of histories on news {NO_ROW}"] += clicked - len(shown.history)
        self.left_out[f"candidates {NO_ROW}"] += candidates - len(shown.candidates)
        if not any(shown.clicks):
            self.left_out["impressions without a click"] += 1
        elif all(shown.clicks):
            self.left_out["impressions of clicks alone"] += 1

    def _fields(self, line: int, raw: bytes) -> list[str]:
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path}:{line}: not UTF-8, {error}.") from None
        fields = text.rstrip("\r\n").split("\t")
        if len(fields) != FIELDS:
            raise DataError(f"{self.path}:{line}: must have {FIELDS} fields; got {len(fields)}.")
        return fields

    def _day(self, line: int, fields: list[str]) -> datetime.date:
        time = TIME.fullmatch(fields[2])
        try:
            month, day, year = map(int, time.groups() if time else ())
            return datetime.date(year, month, day)
        except ValueError:  # another form, or no such day
            raise DataError(
                f"{self.path}:{line}: the time must be like 11/13/2019 5:53:12 AM; "
                f"got {fields[2]!r}."
            ) from None

    def _shown(self, line: int, fields: list[str]) -> Shown:
        numbers = self._numbers
        history = [numbers[news] for news in fields[3].split() if news in numbers]
        candidates, clicks = [], []
        for candidate in fields[4].split():
            news, clicked = candidate[:-2], LABELS.get(candidate[-2:])
            if not news or clicked is None:
                raise DataError(
                    f"{self.path}:{line}: a candidate must be ID-0 or ID-1; got {candidate!r}."
                )
            if news in numbers:
                candidates.append(numbers[news])
                clicks.append(clicked)
        return Shown(line, history, candidates, clicks)
