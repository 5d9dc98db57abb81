"""`bench --check --random-calls`: drawing, checking and reporting random calls."""

import math
import pickle

import jax
import pytest

from experiments.bench import random_calls
from experiments.bench.cases import Case, draw_operands
from experiments.bench.programs import compile_case
from experiments.bench.random_calls import RandomCall, check_call, check_random_calls, draw_call
from experiments.bench.shapes import Shape
from experiments.bench.variants import dot_product
from experiments.commands import bench

SMALL = RandomCall(0, "dot_product", Case(dot_product, "xla"), Shape(1, 1, 16, 8), "float32")


def test_equal_seeds_give_equal_calls():
    calls, again, others = (
        [draw_call(seed, number, "pallas", ("bfloat16", "float16")) for number in range(100)]
        for seed in (0, 0, 1)
    )
    assert calls == again
    assert calls != others


def test_calls_cover_all_variants_and_options():
    calls = [draw_call(0, number, "pallas", ("bfloat16", "float16")) for number in range(200)]
    assert {call.variant for call in calls} == {*random_calls.VARIANTS}
    for field in ("received", "mask", "segments", "window", "group", "dropout_rate"):
        assert len({getattr(call.case, field) for call in calls}) > 1
    assert {call.shape.length % 2 for call in calls} == {0, 1}
    assert {call.shape.width % 2 for call in calls} == {0, 1}
    for call in calls[:30]:  # The inputs can be drawn, e.g. because adapted heads have even widths.
        jax.eval_shape(lambda call=call: draw_operands(call.shape, call.case, call.dtype))


def test_calls_can_be_sent_to_other_processes():
    calls = [draw_call(0, number, "pallas", ("bfloat16",)) for number in range(100)]
    assert [*map(str, pickle.loads(pickle.dumps(calls)))] == [*map(str, calls)]


@pytest.fixture(scope="module")
def programs_and_inputs():
    operands = draw_operands(SMALL.shape, SMALL.case, SMALL.dtype)
    return compile_case(SMALL.case, operands, calls=1), operands


def test_a_correct_call_has_small_errors_and_equal_bits(programs_and_inputs):
    assert check_call(*programs_and_inputs).startswith("correct, same bits: values ")


@pytest.mark.parametrize("scale", [1.5, math.nan])
def test_wrong_gradients_are_found(programs_and_inputs, scale):
    programs, operands = programs_and_inputs

    def single(operands):
        output, (query, *others) = programs.single(operands)
        return output, (scale * query, *others)

    assert check_call(programs._replace(single=single), operands).startswith("wrong: ")


def test_a_repetition_with_other_bits_is_found(programs_and_inputs):
    programs, operands = programs_and_inputs
    factors = iter((1, 1, 1 + 1e-6))

    def single(operands):
        factor = next(factors)
        return jax.tree.map(lambda x: factor * x, programs.single(operands))

    assert check_call(programs._replace(single=single), operands).startswith("other bits: ")


def test_bad_calls_are_returned_and_counted(monkeypatch):
    results = iter(("correct, same bits: values 1e-3", "wrong: values 1.0", "refused: too wide"))
    monkeypatch.setattr(random_calls, "try_call", lambda call: next(results))
    lines = []
    bad = check_random_calls([SMALL] * 3, 1, math.inf, lines.append)
    assert bad == ["0 xla float32 B1 N1 L16 H8 dot_product: wrong: values 1.0"]
    assert lines[1:2] == bad
    assert lines[-1] == "3 calls: 1 correct, same bits, 1 wrong, 1 refused; 0 left out"


def test_no_call_starts_after_the_deadline():
    lines = []
    assert check_random_calls([SMALL], 1, -math.inf, lines.append) == []
    assert lines == ["1 calls: none checked; 1 left out"]


def test_bad_calls_end_the_command_with_an_error(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(bench, "check_random_calls", lambda calls, *settings: [str(calls[0])])
    with pytest.raises(SystemExit, match="not deterministic:\n0 pallas"):
        bench.main(["--check", "--random-calls", "2"])


def test_random_calls_need_check():
    with pytest.raises(ValueError, match="random_calls must be used with check"):
        bench.Bench(random_calls=1)
