"""Show the progress of a long loop: a line redrawn in place on a terminal, or lines in a log."""

import collections
import contextlib
import io
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import SupportsFloat, TextIO

Stream = TextIO | io.TextIOBase
REDRAW_SECONDS = 0.1  # shortest time between two redraws of a terminal
SPEED_SECONDS = 30.0  # the speed is the mean over this time
WIDEST_BAR, NARROWEST_BAR = 30, 5  # columns


class Progress(contextlib.AbstractContextManager):
    """Display the step, the metrics, the steps per second and the time left.

    Speed and time left are measured from the first line on, because the first step may include
    compilation. The speed is a mean over recent steps and excludes pauses such as validations. The
    time left is estimated from the mean time of all steps so far, pauses included.

    Args:
      total: Number of steps of the whole run.
      unit: Plural noun for a step.
      stream: Stream to write to; None for standard error.
      every_seconds: Seconds between two lines, if the stream is not a terminal.
      clock: Function that returns a time in seconds, with any origin.
    """

    def __init__(
        self,
        total: int,
        *,
        unit: str = "steps",
        stream: Stream | None = None,
        every_seconds: float | int = 10,
        clock: Callable[[], float] = time.monotonic,
    ):
        if total < 1:
            raise ValueError(f"total must be at least 1; got {total}.")
        self._total, self._unit, self._clock = total, unit, clock
        self._stream: Stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._interval = REDRAW_SECONDS if self._terminal else every_seconds
        self._first: tuple[float, int] | None = None  # (time, step) of the first line
        self._history: collections.deque[tuple[float, int]] = collections.deque()  # recent lines
        self._shown_at, self._shown_width = -math.inf, 0
        self._pending: tuple[int, Mapping[str, SupportsFloat]] | None = None

    def update(self, step: int, values: Mapping[str, SupportsFloat]) -> None:
        """Set the current step and its metrics. Write a line if the last line is old enough.

        Values are converted to float only when a line is written. The loop therefore rarely waits
        for an array that a device is still computing.

        Args:
          step: Number of steps completed, including the steps before the run was resumed.
          values: Dict from the name of a metric to its value.
        """
        self._pending = step, values
        if self._clock() - self._shown_at >= self._interval:
            self._show()

    def exclude(self, seconds: float) -> None:
        """Exclude a pause of `seconds` seconds, such as a validation, from the speed."""
        self._history = collections.deque((time + seconds, step) for time, step in self._history)

    def close(self) -> None:
        """Show the last update if it is still pending, and end the line."""
        if self._pending is not None:
            self._show()
        if self._terminal and self._shown_width:
            print(file=self._stream, flush=True)
        self._shown_width = 0

    def _show(self) -> None:
        """Write the pending update to the stream."""
        assert self._pending is not None
        (step, values), self._pending = self._pending, None
        now = self._clock()
        self._first = self._first or (now, step)
        self._history.append((now, step))
        while len(self._history) > 2 and self._history[1][0] <= now - SPEED_SECONDS:
            self._history.popleft()
        self._shown_at = now
        parts = [
            f"{step:>{len(str(self._total))}}/{self._total}",
            *(f"{name} {float(value):.4g}" for name, value in values.items()),
            *self._speed_and_time_left(now, step),
        ]
        if self._terminal:
            width = _terminal_columns(self._stream) - 1
            line = _fit_line(parts, min(step / self._total, 1.0), width)
            self._stream.write("\r" + line.ljust(min(self._shown_width, width)))
            self._shown_width = len(line)
        else:
            self._stream.write("  ".join(parts) + "\n")
        self._stream.flush()

    def _speed_and_time_left(self, now: float, step: int) -> tuple[str, str]:
        """Return the recent speed and the time left as texts, with "?" if no speed is known yet."""
        assert self._first is not None
        (first_time, first_step), (recent_time, recent_step) = self._first, self._history[0]
        if step <= recent_step or now <= recent_time:
            return f"? {self._unit}/s", "?:??:?? left"
        speed = (step - recent_step) / (now - recent_time)
        seconds = max(self._total - step, 0) * (now - first_time) / (step - first_step)
        shown = f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"
        return f"{shown} {self._unit}/s", f"{_format_time(seconds)} left"

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextlib.contextmanager
def show_elapsed(
    text: str,
    *,
    stream: Stream | None = None,
    every_seconds: float | int = 1,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[str], None]]:
    """Show a text, such as "compiling", while the body of a `with` statement runs.

    A terminal shows the text and the elapsed time, redrawn in place and erased at the end. A stream
    that is not a terminal receives one line with the text at the start. The `with` statement binds
    a function that replaces the text on a terminal.

    Args:
      text: Name of the activity.
      stream: Stream to write to; None for standard error.
      every_seconds: Seconds between two redraws of a terminal.
      clock: Function that returns a time in seconds, with any origin.
    """
    out: Stream = sys.stderr if stream is None else stream
    if not out.isatty():
        print(f"{text} ...", file=out, flush=True)
        yield lambda text: None
        return
    shown = [text]  # the current text, which a call may replace
    start, finished = clock(), threading.Event()

    def draw(text: str, end: str = "") -> None:
        width = _terminal_columns(out) - 1
        text = text if len(text + end) <= width else text[: max(width - len(end) - 1, 0)] + "…"
        print("\r" + (text + end)[:width].ljust(width), end="", file=out, flush=True)

    def redraw() -> None:
        while not finished.wait(every_seconds):
            draw(shown[0], f" ... {_format_time(round(clock() - start))}")

    draw(text, f" ... {_format_time(0)}")
    thread = threading.Thread(target=redraw, daemon=True)
    thread.start()
    try:
        yield lambda text: shown.__setitem__(0, text)
    finally:
        finished.set()
        thread.join()
        draw("")
        print("\r", end="", file=out, flush=True)


def _format_time(seconds: float | int) -> str:
    """Format a time as hours, minutes and seconds, rounded up to a whole second."""
    whole = math.ceil(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _fit_line(parts: list[str], fraction: float, width: int) -> str:
    """Join a progress bar and text parts into a line of at most `width` columns.

    The parts are the step, the metrics, the speed and the time left. If the line is too long, the
    bar is shortened, then removed. If the line is still too long, the speed is removed, then the
    metrics, the last one first.
    """
    text = "  ".join(parts)
    room = min(width - len(text) - 4, WIDEST_BAR)  # 4: two brackets and two spaces
    if room >= NARROWEST_BAR:
        return f"[{'#' * int(fraction * room):-<{room}}]  {text}"
    while len(text) > width and len(parts) > 2:
        parts = [*parts[:-2], parts[-1]]
        text = "  ".join(parts)
    return text[:width]


def _terminal_columns(stream: Stream) -> int:
    """Return the current width of the terminal, which may change during the run."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size().columns
