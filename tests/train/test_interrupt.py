"""SIGTERM and Ctrl-C ask the training loop to stop. A second Ctrl-C ends the process at once."""

import os
import signal
import threading
import time

import pytest

from distattn_jax.train import interrupt


@pytest.fixture
def exits(monkeypatch):
    """List of the statuses with which the process would have ended."""
    statuses = []
    monkeypatch.setattr("os._exit", statuses.append)
    return statuses


def send(number, received):
    """Send a signal to this process, and wait until a function returns True."""
    os.kill(os.getpid(), number)
    deadline = time.monotonic() + 60
    while not received() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert received()


@pytest.fixture(autouse=True)
def _handle_sigint():
    """Handle SIGINT as in a terminal. A process in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_the_loop_to_stop_and_leaves_the_process_alive(number, exits, capfd):
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with interrupt.watch_for_stop() as stop_requested:
        assert stop_requested(1) is None
        send(number, lambda: stop_requested(1) == number)
    assert exits == []
    message = "Stopping after this step to save a checkpoint. Ctrl-C again leaves at once."
    assert (message in capfd.readouterr().err) == (number == signal.SIGINT)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_ctrl_c_ends_the_process_at_once(exits, capfd):
    with interrupt.watch_for_stop() as stop_requested:
        send(signal.SIGINT, lambda: stop_requested(1) == signal.SIGINT)
        assert exits == []
        send(signal.SIGINT, lambda: exits)
    assert exits == [130]
    assert "The same command resumes from the newest checkpoint." in capfd.readouterr().err


def test_a_process_in_the_background_still_ignores_ctrl_c(exits):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt.watch_for_stop() as stop_requested:
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert stop_requested(1) is None


def test_signals_are_not_watched_outside_the_main_thread(exits):
    before = signal.getsignal(signal.SIGTERM)

    def watch():
        with interrupt.watch_for_stop() as stop_requested:
            seen.append((stop_requested(1), signal.getsignal(signal.SIGTERM)))

    seen = []
    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert seen == [(None, before)]
