"""Progress of a long loop: one line redrawn on a terminal, now and then a line in a log."""

import collections
import io
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import SupportsFloat, TextIO

Stream = TextIO | io.TextIOBase
REDRAWN_EVERY = 0.1  # seconds, on a terminal
RECENT = 30.0  # seconds: the speed is the mean over these
WIDEST_BAR, NARROWEST_BAR = 30, 5


class Progress:
    """Shows step, values, steps per second and the time left.

    Args:
      total: steps of the whole run.
      stream: where to; None: standard error.
      start: steps done before, by the run that this one resumes. They do not count for the speed.
      every_seconds: time between lines, where the stream is no terminal.
      clock: seconds, from any origin.
    """

    def __init__(
        self,
        total: int,
        *,
        stream: Stream | None = None,
        start: int = 0,
        every_seconds: float | int = 10,
        clock: Callable[[], float] = time.monotonic,
    ):
        if not 0 <= start <= total or total == 0:
            raise ValueError(
                f"total and start must be 0 <= start <= total, total > 0; got {total} and {start}."
            )
        self._total, self._clock = total, clock
        self._stream: Stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._every = REDRAWN_EVERY if self._terminal else every_seconds
        self._seen = collections.deque([(clock(), start)])  # (time, step) of the recent lines
        self._shown_at, self._shown_width = -math.inf, 0
        self._pending: tuple[int, Mapping[str, SupportsFloat]] | None = None

    def update(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Says how many steps are done, those before `start` included, and what was measured.

        Values are read only when a line is due: one still being computed is seldom waited for.
        """
        self._pending = step, values
        if self._clock() - self._shown_at >= self._every:
            self._show()

    def close(self) -> None:
        """Shows the last update, if it was not shown, and ends the line."""
        if self._pending is not None:
            self._show()
        if self._terminal and self._shown_width:
            self._stream.write("\n")
            self._stream.flush()
        self._shown_width = 0

    def _show(self) -> None:
        assert self._pending is not None
        (step, values), self._pending = self._pending, None
        now = self._clock()
        self._seen.append((now, step))
        while len(self._seen) > 2 and self._seen[1][0] <= now - RECENT:
            self._seen.popleft()
        self._shown_at = now
        parts = [
            f"{step:>{len(str(self._total))}}/{self._total}",
            *(f"{name} {float(value):.4g}" for name, value in values.items()),
            *self._speed_and_time_left(step),
        ]
        if self._terminal:
            width = _columns(self._stream) - 1
            line = _fitted(parts, min(step / self._total, 1.0), width)
            self._stream.write("\r" + line.ljust(min(self._shown_width, width)))
            self._shown_width = len(line)
        else:
            self._stream.write("  ".join(parts) + "\n")
        self._stream.flush()

    def _speed_and_time_left(self, step: int) -> tuple[str, str]:
        (before, first), (now, last) = self._seen[0], self._seen[-1]
        if last <= first or now <= before:
            return "? steps/s", "?:??:?? left"
        speed = (last - first) / (now - before)
        minutes, seconds = divmod(math.ceil(max(self._total - step, 0) / speed), 60)
        shown = f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"
        return f"{shown} steps/s", f"{minutes // 60}:{minutes % 60:02}:{seconds:02} left"

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _fitted(parts: list[str], share: float, width: int) -> str:
    """The bar and the parts in that width: the bar gives way first, then the last values."""
    text = "  ".join(parts)
    room = min(width - len(text) - 4, WIDEST_BAR)  # the bar's brackets, and two spaces after it
    if room >= NARROWEST_BAR:
        return f"[{'#' * int(share * room):-<{room}}]  {text}"
    while len(text) > width and len(parts) > 3:
        parts = [*parts[:-3], *parts[-2:]]
        text = "  ".join(parts)
    return text[:width]


def _columns(stream: Stream) -> int:
    """The terminal's width, which may change while we run."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size().columns
