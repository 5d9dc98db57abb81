"""`python -m experiments speed` stores every line as soon as it is timed."""

import pytest

from experiments.commands import speed
from experiments.papers import stored_results


def test_timed_methods_are_stored_before_a_later_one_fails(monkeypatch, tmp_path):
    def time_method(_, method, seeds):
        if method == "first":
            raise RuntimeError("stopped")
        return speed.Timing(method, 10, seeds, bare=2.0, loop=None, peak_bytes=None)

    monkeypatch.setattr(speed, "time_method", time_method)
    monkeypatch.setattr(speed, "enable_compilation_cache", lambda: None)
    with pytest.raises(RuntimeError, match="stopped"):
        speed.main(["--methods", "none", "ag", "first", "--seeds", "1", "--output", str(tmp_path)])
    content = stored_results.read_results("guiding_speed", tmp_path)
    assert [(line["method"], line["bare"]) for line in content["lines"]] == [("none", 2), ("ag", 2)]
