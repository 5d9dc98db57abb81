"""`python -m experiments speed`: its options, what it announces, and what it stores."""

import jax
import pytest

from experiments.bench import speed_trainers
from experiments.commands import speed
from experiments.papers import stored_results
from tests.train import tiny
from tests.train.runs import keep_compiled


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


def test_a_line_has_the_bare_step_the_loop_and_its_parts(monkeypatch, compiled):
    monkeypatch.setattr(speed_trainers, "NumberedTokens", lambda size: tiny.TOKENIZER)
    config = speed_trainers.SpeedConfig(
        warm=2, steps=3, repeats=1, parts=True, length=4, model=tiny.MODEL, vocabulary=12
    )
    with keep_compiled(compiled):
        timing = speed.time_method(config, "vanilla", 1)
    assert min(timing.bare, timing.loop, *timing.parts.values()) > 0
    assert timing.steps_per_call == 1  # The first calls take one step each.
    assert [name.split(":")[0] for name in timing.parts] == ["host", "device", "thread", "thread"]


def test_texts_may_have_different_lengths():
    config = speed_trainers.SpeedConfig(length=9, shortest=7)
    lengths = speed_trainers.make_tables(config, "text")["train"].lengths(("text",))
    assert set(lengths) == {7, 8, 9}


@pytest.mark.parametrize(
    "arguments",
    ["--steps 0", "--warm 0", "--repeats 0", "--length 0", "--seeds 1 0", "--vocabulary 2"],
)
def test_numbers_that_cannot_be_timed_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        speed.main(arguments.split())
    message = f"{arguments.split()[0]} must be at least "
    assert message in capsys.readouterr().err


def test_fewer_steps_are_timed_on_a_cpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    on_cpu = speed.default_config()
    assert (on_cpu.warm + on_cpu.steps) * on_cpu.repeats < 20
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert speed.default_config() == speed.SpeedConfig()


def test_a_timing_of_more_than_a_minute_is_announced(capsys):
    config = speed.SpeedConfig(warm=50, steps=400, repeats=3, methods=("vanilla", "adapted"))
    speed.announce_duration(config, seconds=0.02)  # 450 steps, 3 times, alone and in the loop
    assert capsys.readouterr().out == ""
    speed.announce_duration(config, seconds=2.0)
    printed = capsys.readouterr().out
    assert "A step takes 2 s, and the next of 4 lines about 90 minutes." in printed
    assert "--steps" in printed
