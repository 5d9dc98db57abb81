"""Progress lines on a terminal and in a log, with a clock that the test sets."""

import io
import sys
import threading

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from distattn_jax.train.progress import Progress, show_elapsed
from distattn_jax.train.run import Run
from distattn_jax.train.run_logger import RunLogger
from distattn_jax.train.state import TrainState


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that is 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def run(progress, clock, steps, seconds_each, **values):
    for step in steps:
        clock.now += seconds_each
        progress.update(step, values or {"loss": 1 / step})


def test_a_log_has_one_line_per_interval_and_the_last_step(clock, log):
    with Progress(100, stream=log, every_seconds=10, clock=clock) as progress:
        run(progress, clock, range(1, 16), seconds_each=2.0)
    lines = log.getvalue().splitlines()
    assert [int(line.split("/")[0]) for line in lines] == [1, 6, 11, 15]
    assert lines[-1] == " 15/100  loss 0.06667  0.5 steps/s  0:02:50 left"
    assert "\r" not in log.getvalue()


def test_closing_twice_shows_the_last_line_once(clock, log):
    progress = Progress(3, stream=log, clock=clock)
    run(progress, clock, [1, 2, 3], seconds_each=20.0)
    progress.close()
    progress.close()
    assert [line[:3] for line in log.getvalue().splitlines()] == ["1/3", "2/3", "3/3"]
    assert log.getvalue().endswith("0:00:00 left\n")


def test_a_terminal_is_redrawn_in_place_at_most_ten_times_a_second(clock, terminal):
    with Progress(1000, stream=terminal, clock=clock) as progress:
        run(progress, clock, range(1, 1001), seconds_each=1 / 1024)
    text = terminal.getvalue()
    drawn = text[:-1].split("\r")[1:]
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert 8 <= len(drawn) <= 11  # ten redraws in one second, and the last step
    assert "1000/1000  loss 0.001  1024 steps/s  0:00:00 left" in drawn[-1]


def test_the_bar_shows_the_completed_fraction(clock, terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with Progress(10, stream=terminal, clock=clock) as progress:
        run(progress, clock, [5], seconds_each=1.0)
    assert "[" + 15 * "#" + 15 * "-" + "]  " in terminal.getvalue()


VALUES = {"loss": 0.123456, "accuracy": 0.98765, "norm": 1.23456}


@pytest.mark.parametrize("columns", [20, 40, 55, 60, 100])
def test_a_line_fits_the_terminal_and_overwrites_the_previous_line(
    clock, terminal, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = Progress(1000, stream=terminal, clock=clock)
    run(progress, clock, [10], 1.0, **VALUES)
    run(progress, clock, [20], 1.0, loss=1.0)
    first, second = terminal.getvalue().split("\r")[1:]
    assert len(first.rstrip()) < columns
    assert len(first) <= len(second) < columns
    assert "20/1000" in second
    monkeypatch.setenv("COLUMNS", "18")  # The terminal becomes narrower.
    run(progress, clock, [30], 1.0)
    assert len(terminal.getvalue().split("\r")[-1]) < 18


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        (80, "loss 0.1235  accuracy 0.9877  norm 1.235  10 steps/s"),
        (70, "loss 0.1235  accuracy 0.9877  norm 1.235"),
        (60, "loss 0.1235  accuracy 0.9877"),
        (50, "loss 0.1235"),
    ],
)
def test_a_narrow_terminal_drops_the_speed_then_values_before_the_time_left(
    clock, terminal, monkeypatch, columns, values
):
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = Progress(1000, stream=terminal, clock=clock)
    run(progress, clock, [10, 20], 1.0, **VALUES)
    assert terminal.getvalue().endswith(f"\r  20/1000  {values}  0:01:38 left")


def test_the_speed_begins_after_the_first_step_which_may_compile(clock, log):
    progress = Progress(10_000, stream=log, every_seconds=10, clock=clock)
    for step, seconds in ((9_001, 0.02), (9_008, 10.0)):
        clock.now += seconds
        progress.update(step, {})
    first, second = log.getvalue().splitlines()
    assert first == " 9001/10000  ? steps/s  ?:??:?? left"
    assert second == " 9008/10000  0.7 steps/s  0:23:38 left"


def test_a_line_of_a_run_counts_only_steps_that_the_device_has_done(tmp_path, monkeypatch):
    @jax.jit
    def slow_step(x):
        return jax.lax.fori_loop(0, 50, lambda _, y: y @ x, x).sum().astype(jnp.int32)

    class Log(io.StringIO):
        def write(self, text):
            assert state.step.is_ready()
            return super().write(text)

    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    logger = RunLogger(Run(epath.Path(tmp_path)), steps=5, start=0, tensorboard=False)
    x, key = jnp.zeros((300, 300)), jax.random.key(0)
    slow_step(x).block_until_ready()  # Compilation is not asynchronous.
    with logger:
        state = TrainState(slow_step(x), {}, (), key)
        logger.update_progress(1, state)
    assert log.getvalue().startswith("1/5")


@pytest.mark.parametrize(
    ("criterion", "shown"),
    [("f1", "best validation f1 (%) 8.39"), ("loss", "best validation loss 0.0839")],
)
def test_the_last_line_of_a_run_has_the_best_result_in_the_unit_of_tables(
    tmp_path, monkeypatch, criterion, shown
):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    state = TrainState(jnp.int32(1), {}, (), jax.random.key(0))
    with RunLogger(Run(epath.Path(tmp_path)), steps=1, start=0, tensorboard=False) as logger:
        logger.update_progress(1, state)
        logger.pause_timing(state)
        logger.show_best(criterion, 0.0839)
        logger.resume_timing()
    assert log.getvalue().splitlines()[-1].startswith(f"1/1  {shown}  ")


def test_the_speed_is_the_mean_of_the_last_30_seconds(clock, log):
    progress = Progress(100_000, stream=log, clock=clock)
    run(progress, clock, [1], seconds_each=300.0)  # the first step compiles
    run(progress, clock, range(101, 1_001, 100), seconds_each=10.0)
    assert "10 steps/s  2:45:10 left" in log.getvalue().splitlines()[-1]


def test_a_pause_counts_for_the_time_left_but_not_for_the_speed(clock, log):
    progress = Progress(100, stream=log, every_seconds=1, clock=clock)
    run(progress, clock, [1, 6], seconds_each=10.0)
    clock.now += 15.0  # a validation
    progress.exclude(15.0)
    run(progress, clock, [11], seconds_each=10.0)
    assert log.getvalue().splitlines()[-1].endswith("0.5 steps/s  0:05:12 left")


def test_values_are_converted_only_when_a_line_is_due(clock):
    class Value:
        reads = 0

        def __float__(self):
            Value.reads += 1
            return 1.0

    with Progress(10, stream=io.StringIO(), clock=clock) as progress:
        run(progress, clock, range(10), 0.5, loss=Value())
    assert Value.reads == 2  # the first line and the last


def test_progress_without_updates_writes_nothing(clock):
    for stream in (io.StringIO(), Terminal()):
        Progress(10, stream=stream, clock=clock).close()
        assert stream.getvalue() == ""
    with pytest.raises(ValueError, match="total must be at least 1; got 0"):
        Progress(0)


def test_a_log_says_once_that_an_activity_is_under_way(log):
    with show_elapsed("compiling", stream=log, every_seconds=0.001):
        assert log.getvalue() == "compiling ...\n"
    assert log.getvalue() == "compiling ...\n"


def test_a_terminal_shows_the_elapsed_time_of_an_activity_and_erases_it(clock, monkeypatch):
    class RedrawnTerminal(Terminal):
        redrawn = threading.Event()

        def write(self, text):
            if "0:01:05" in text:
                self.redrawn.set()
            return super().write(text)

    monkeypatch.setenv("COLUMNS", "30")
    terminal = RedrawnTerminal()
    with show_elapsed("compiling", stream=terminal, every_seconds=0.001, clock=clock):
        clock.now += 65
        assert terminal.redrawn.wait(timeout=60)
    assert terminal.getvalue().startswith("\rcompiling ... 0:00:00")
    assert "\rcompiling ... 0:01:05" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r" + 29 * " " + "\r")
    assert "\n" not in terminal.getvalue()


def test_the_text_of_an_activity_changes_and_is_cut_before_the_time(clock, monkeypatch):
    class RedrawnTerminal(Terminal):
        redrawn = threading.Event()

        def write(self, text):
            if "traini" in text:
                self.redrawn.set()
            return super().write(text)

    monkeypatch.setenv("COLUMNS", "30")
    terminal = RedrawnTerminal()
    with show_elapsed("compiling", stream=terminal, every_seconds=0.001, clock=clock) as show:
        show("compiling training on 8 tokens")
        assert terminal.redrawn.wait(timeout=60)
    assert "\rcompiling traini… ... 0:00:00\r" in terminal.getvalue()
