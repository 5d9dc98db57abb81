"""Number of steps in one call of a program, with a clock that the test sets."""

import pytest

from distattn_jax.train import dispatch
from distattn_jax.train.dispatch import DispatchLimit


def call(limit, monkeypatch, seconds):
    """Call a program that takes these seconds."""
    now = [0.0]
    monkeypatch.setattr(dispatch.time, "perf_counter", lambda: now[0])

    def program():
        now[0] += seconds
        return 1

    assert limit.call(program) == 1


@pytest.mark.parametrize(("seconds", "steps"), [(0.0007, 357), (0.03, 8), (0.2, 1), (90.0, 1)])
def test_a_call_takes_a_quarter_of_a_second_or_one_step(monkeypatch, seconds, steps):
    limit = DispatchLimit()
    for compiling in (60.0, 2 * seconds, seconds, 3 * seconds):
        assert limit.steps == 1
        call(limit, monkeypatch, compiling)
    call(limit, monkeypatch, seconds)
    assert limit.steps == steps
    call(limit, monkeypatch, 100.0)
    assert limit.steps == steps


def test_a_given_number_of_steps_is_kept(monkeypatch):
    limit = DispatchLimit(7)
    for _ in range(10):
        call(limit, monkeypatch, 0.001)
        assert limit.steps == 7
