"""`python -m experiments training_step`: time and memory of a step on a long text."""

import json
import math

import pytest

from experiments.bench import training_step as steps
from experiments.commands import training_step
from tests.train import tiny


def test_a_step_is_timed_and_its_tokens_per_second_and_memory_are_printed(capsys, monkeypatch):
    monkeypatch.setattr(training_step, "enable_compilation_cache", lambda: None)
    monkeypatch.setattr(steps, "NumberedTokens", lambda size: tiny.TOKENIZER)  # of 12 tokens
    sizes = "--tokens 24 --vocabulary 12 --model.layers 1 --model.heads 1 --model.head-features 4"
    sizes += " --model.features 4 --model.hidden-features 4 --model.remat false --steps 2 --json"
    training_step.main(sizes.split())
    printed = capsys.readouterr()
    (line,) = json.loads(printed.out)["lines"]
    assert line["method"] == "distance_aware"
    assert line["tokens_per_second"] == pytest.approx(24 / line["seconds"])
    assert line["loss"] == pytest.approx(math.log(12), rel=0.5)
    assert min(line[f"{name}_bytes"] for name in ("argument", "output", "temporary")) > 0
    heading, columns, row = printed.err.splitlines()
    assert heading == "1 x 24 tokens, vocabulary 12, bfloat16, on 1 x cpu (data 1, model 1)"
    assert columns.split()[:3] == ["method", "compile", "s"]
    assert row.split()[0] == "distance_aware"
