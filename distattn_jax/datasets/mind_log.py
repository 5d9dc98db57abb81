"""Reader of MIND's impression logs (behaviors.tsv), with at most one line in memory at a time."""

import datetime
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from distattn_jax.data.files import DataError, decode_line

FIELDS = 5  # id, user, time, history, candidates
TIME = re.compile(r"(\d\d?)/(\d\d?)/(\d{4}) (?:0?[1-9]|1[0-2]):[0-5]\d:[0-5]\d [AP]M")
CLICKS = {"-0": 0, "-1": 1}  # suffix of a candidate
NO_ROW = "without a row in news.tsv"

DayFilter = Callable[[datetime.date], bool]


class LoggedImpression(NamedTuple):
    """One line of the log: news items that were shown to a user at the same time.

    A news item is represented by its index in the list of all news.

    Attributes:
      line: Line number in the file.
      history: News items that the user clicked before, oldest first.
      candidates: News items that were shown.
      clicks: 1 for each candidate that was clicked, otherwise 0.
    """

    line: int
    history: list[int]
    candidates: list[int]
    clicks: list[int]

    @property
    def usable(self) -> bool:
        """True if at least one candidate, but not every candidate, was clicked."""
        return 0 < sum(self.clicks) < len(self.clicks)


class LogShard(NamedTuple):
    """Consecutive lines of a log.

    Attributes:
      start: Byte offset of the first line.
      usable: Dict from each day in these lines to a flag: True if this day has a usable impression.
        A usable impression has at least one clicked and at least one unclicked candidate.
    """

    start: int
    usable: dict[datetime.date, bool]


class ImpressionLog:
    """Log of impressions, divided into shards that can be read separately.

    The constructor reads the whole file once, so that an error in any line is found at the start.

    Args:
      path: File behaviors.tsv.
      numbers: Dict from the id of a news item to its index. News items that are not in this dict
        are left out.
      size: Number of lines of a shard.

    Attributes:
      rows: Number of lines.
      last_day: Last day of the log.
      left_out: Dict from each reason to the number of clicks, candidates or impressions that are
        left out for this reason.
    """

    def __init__(self, path: Path, numbers: Mapping[str, int], *, size: int):
        self.path, self._numbers, self._size = path, numbers, size
        self.rows, self.left_out = 0, Counter[str]()
        self._shards: list[LogShard] = []
        end = 0
        with path.open("rb") as file:
            for raw in file:
                if self.rows % size == 0:
                    self._shards.append(LogShard(end, {}))
                end += len(raw)
                self.rows += 1
                self._count_line(self.rows, raw, self._shards[-1].usable)
        if not self.rows:
            raise DataError(f"{path}: has no rows.")
        self.last_day = max(day for shard in self._shards for day in shard.usable)

    def find_shards(self, days: DayFilter) -> list[int]:
        """Return the indices of the shards that contain usable impressions of the selected days.

        A usable impression has at least one clicked and at least one unclicked candidate.

        Args:
          days: Function that returns True for a selected day.
        """
        return [
            number
            for number, shard in enumerate(self._shards)
            if any(usable and days(day) for day, usable in shard.usable.items())
        ]

    def read_shard(self, shard: int, days: DayFilter) -> Iterator[LoggedImpression]:
        """Yield the usable impressions of the selected days from one shard.

        A usable impression has at least one clicked and at least one unclicked candidate.

        Args:
          shard: Index of the shard.
          days: Function that returns True for a selected day.
        """
        with self.path.open("rb") as file:
            file.seek(self._shards[shard].start)
            lines = itertools.islice(file, self._size)
            for line, raw in enumerate(lines, start=shard * self._size + 1):
                fields = self._split_fields(line, raw)
                if days(self._parse_day(line, fields)):
                    impression = self._parse_impression(line, fields)
                    if impression.usable:
                        yield impression

    def _count_line(self, line: int, raw: bytes, usable: dict[datetime.date, bool]) -> None:
        """Check one line of the log, and update `self.left_out` and the argument `usable`.

        `usable` is a dict from each day of the current shard to a flag. The flag is True if at
        least one line of this day has a clicked candidate and an unclicked candidate.
        """
        fields = self._split_fields(line, raw)
        day, impression = self._parse_day(line, fields), self._parse_impression(line, fields)
        usable[day] = usable.get(day, False) or impression.usable
        clicked, candidates = (len(field.split()) for field in fields[3:])
        self.left_out[f"clicks of histories on news {NO_ROW}"] += clicked - len(impression.history)
        self.left_out[f"candidates {NO_ROW}"] += candidates - len(impression.candidates)
        if not any(impression.clicks):
            self.left_out["impressions without a click"] += 1
        elif all(impression.clicks):
            self.left_out["impressions of clicks alone"] += 1

    def _split_fields(self, line: int, raw: bytes) -> list[str]:
        """Decode a line and split it into its tab-separated fields."""
        text = decode_line(raw, f"{self.path}:{line}", first=line == 1)
        fields = text.rstrip("\r\n").split("\t")
        if len(fields) != FIELDS:
            raise DataError(f"{self.path}:{line}: must have {FIELDS} fields; got {len(fields)}.")
        return fields

    def _parse_day(self, line: int, fields: list[str]) -> datetime.date:
        """Return the date of the impression in one line of the log."""
        time = TIME.fullmatch(fields[2])
        try:
            month, day, year = map(int, time.groups() if time else ())
            return datetime.date(year, month, day)
        except ValueError:  # The format is wrong, or the day does not exist.
            raise DataError(
                f"{self.path}:{line}: the time must be like 11/13/2019 5:53:12 AM; "
                f"got {fields[2]!r}."
            ) from None

    def _parse_impression(self, line: int, fields: list[str]) -> LoggedImpression:
        """Parse one line of the log, leaving out news items that are missing from news.tsv."""
        numbers = self._numbers
        history = [numbers[news] for news in fields[3].split() if news in numbers]
        candidates, clicks = [], []
        for candidate in fields[4].split():
            news, clicked = candidate[:-2], CLICKS.get(candidate[-2:])
            if not news or clicked is None:
                raise DataError(
                    f"{self.path}:{line}: a candidate must be ID-0 or ID-1; got {candidate!r}."
                )
            if news in numbers:
                candidates.append(numbers[news])
                clicks.append(clicked)
        return LoggedImpression(line, history, candidates, clicks)
