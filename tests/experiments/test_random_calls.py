"""`bench --check --random-calls`: drawing, checking and reporting random calls."""

import dataclasses
import math
import os
import pickle

import jax
import pytest

from experiments.bench import random_calls
from experiments.bench.cases import Case, draw_operands
from experiments.bench.programs import compile_case
from experiments.bench.random_calls import RandomCall, check_call, check_random_calls, draw_call
from experiments.bench.shapes import Shape
from experiments.bench.variants import dot_product
from experiments.bench.workers import compile_quickly
from experiments.commands import bench

SMALL = RandomCall(
    0, "dot_product", Case(dot_product, "xla"), Shape(1, 1, 16, 8, calls=0), "float32"
)


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
    return compile_case(SMALL.case, operands, SMALL.shape.calls), operands


def test_no_timed_program_of_a_random_call_is_compiled(programs_and_inputs):
    assert draw_call(0, 0, "pallas", ("bfloat16",)).shape.calls == 0
    programs, _ = programs_and_inputs
    assert (programs.forward, programs.both) == (None, None)


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
    good = "correct, same bits: values 1e-3", "refused: too wide"
    wrong = "wrong: values 1.0", "out of memory", "needs an NVIDIA GPU"
    results = iter((*good, *wrong))
    monkeypatch.setattr(random_calls, "try_call", lambda call: next(results))
    lines = []
    bad = check_random_calls([SMALL] * 5, 0, math.inf, math.inf, lines.append)
    assert bad == [f"0 xla float32 B1 N1 L16 H8 dot_product: {message}" for message in wrong]
    assert lines[2:5] == bad
    counts = "1 correct, same bits, 1 refused, 1 wrong, 1 out of memory, 1 needs an NVIDIA GPU"
    assert lines[-1] == f"5 calls: {counts}; 0 left out"


@pytest.mark.parametrize("processes", [0, 2])
def test_calls_after_the_deadline_are_named(processes):
    other = SMALL._replace(case=SMALL.case._replace(implementation="pallas"))
    calls = [*(SMALL._replace(number=number) for number in (1, 3, 4, 5, 8, 9)), other]
    lines = []
    assert check_random_calls(calls, processes, -math.inf, math.inf, lines.append) == []
    assert lines == ["7 calls: none checked; 7 left out: xla 1, 3-5, 8-9; fused 0"]


def test_calls_that_hang_or_crash_are_bad(monkeypatch):
    calls = [SMALL._replace(number=number) for number in range(4)]
    results = (
        (calls[2], ChildProcessError("its process ended with exit code 3")),
        (calls[0], "correct, same bits: values 1e-3"),
        (calls[1], TimeoutError("no result after 60 s")),
    )
    monkeypatch.setattr(random_calls, "run_tasks", lambda *settings: results)
    lines = []
    bad = check_random_calls(calls, 2, math.inf, 60, lines.append)
    assert bad == [
        "2 xla float32 B1 N1 L16 H8 dot_product: failed: its process ended with exit code 3",
        "1 xla float32 B1 N1 L16 H8 dot_product: unfinished: no result after 60 s",
    ]
    assert lines[-1] == ("4 calls: 1 failed, 1 correct, same bits, 1 unfinished; 1 left out: xla 3")


def test_another_process_checks_a_call(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])
    compile_quickly(os.environ)  # Every version of XLA must accept its flags, also on a CPU.
    lines = []
    assert check_random_calls([SMALL], 1, math.inf, math.inf, lines.append) == []
    assert lines[0].startswith(f"{SMALL}: correct, same bits: values ")


@pytest.fixture
def on_gpu(monkeypatch):
    """Pretend that this machine has a GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("XLA_FLAGS", os.environ["XLA_FLAGS"])


@pytest.mark.parametrize(("backend", "processes"), [("gpu", 3), ("tpu", 0)])
def test_bad_calls_end_the_command_with_an_error(backend, processes, monkeypatch, on_gpu):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    found = []

    def check(calls, processes, deadline, call_limit):
        found.append((processes, deadline, call_limit))
        return [str(calls[0])]

    monkeypatch.setattr(bench, "check_random_calls", check)
    flags = os.environ["XLA_FLAGS"]
    options = ["--check", "--random-calls", "2", "--processes", "3", "--call-limit", "60"]
    with pytest.raises(SystemExit, match="not deterministic:\n0 pallas"):
        bench.main(options)
    assert found == [(processes, math.inf, 60)]
    # Only processes that share a GPU compile quickly.
    assert (os.environ["XLA_FLAGS"] != flags) == (backend == "gpu")


def test_an_interrupted_check_can_be_continued(on_gpu):
    options = bench.Bench(check=True, random_calls=6, forms=("portable", "fused"))
    rest = bench.draw_calls(dataclasses.replace(options, random_calls=2, first_call=4))
    numbers = [(call.number, call.case.implementation) for call in rest]
    assert numbers == [(4, "pallas_portable"), (5, "pallas_portable"), (4, "pallas"), (5, "pallas")]
    assert rest == [call for call in bench.draw_calls(options) if call.number >= 4]


def test_a_tpu_has_no_portable_form(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    with pytest.raises(ValueError, match="--forms portable needs an NVIDIA GPU"):
        bench.draw_calls(bench.Bench(check=True, random_calls=1, forms=("portable",)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"random_calls": 1}, "random_calls must be used with check"),
        ({"first_call": 1}, "first_call must be used with random_calls"),
        ({"forms": ("fused",)}, "forms must be used with random_calls"),
        ({"call_limit": 60.0}, "call_limit must be used with random_calls"),
        ({"first_call": -1}, "first_call must be at least 0; got -1"),
        ({"call_limit": -1.0}, "call_limit must be at least 0; got -1.0"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        bench.Bench(**options)
