"""`python -m experiments bench`: rates, checks, messages and files."""

import functools
import json
import multiprocessing
import sys
import time

import jax
import numpy as np
import pytest

from distattn_jax.attention import attention
from experiments.__main__ import main
from experiments.bench import by_hand, cases, measure, programs, pytorch, shapes, timing
from experiments.bench.measure import Settings
from experiments.bench.processes import Limits, measure_in_processes
from experiments.bench.table import Row, add_rates, format_comparison, format_ratios, format_row
from experiments.commands import bench

ARGUMENTS = ("bench", "--shapes", "bert", "--repeats", "1", "--cases")
SMALL = shapes.Shape(1, 4, 8, 4, calls=1)


@pytest.fixture(autouse=True)
def _pretend_to_be_a_cpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setitem(shapes.CPU_SHAPES, "bert", shapes.Shape(2, 4, 24, 8, calls=2))


def test_a_run_prints_and_writes_a_table_and_can_draw_it_again(tmp_path, capsys):
    main([*ARGUMENTS, "vanilla", "distance_aware_xla", "--output", str(tmp_path)])
    printed = capsys.readouterr().out.splitlines()
    written = json.loads((tmp_path / "bench.json").read_text())
    reference, vanilla, distance_aware = written["lines"]
    assert (reference["case"], reference["message"]) == ("vanilla_cudnn", "needs an NVIDIA GPU")
    assert (vanilla["case"], vanilla["message"]) == ("vanilla", "needs an NVIDIA GPU or a TPU")
    names = {"values", "d_query", "d_key", "d_value", "d_w", "d_v"}
    assert set(distance_aware["errors"]) == names
    assert all(error < 1e-5 for error in distance_aware["errors"].values())
    assert min(distance_aware["forward_ms"], distance_aware["both_ms"]) > 0
    assert distance_aware["both_ratio"] is None  # The reference case needs a GPU.
    assert "B2 N4 L24 H8, instead of bert; calls in one program: 2" in printed
    picture = tmp_path / "bench.png"
    before = picture.read_bytes()
    picture.unlink()
    main(["bench", "--draw", str(tmp_path / "bench.json")])
    again = capsys.readouterr().out.splitlines()
    table = next(i for i, line in enumerate(printed) if line.startswith("case"))
    assert again[: table + 1] == printed[: table + 1]
    repeated = [line[:35] for line in printed if ".json" not in line and "compiled" not in line]
    assert [line[:35] for line in again if line and line[0] != "|"] == list(filter(None, repeated))
    assert "| distance aware xla | xla | - |" in again
    assert distance_aware["implementation"] == "xla"
    assert picture.read_bytes() == before


def test_only_shapes_of_their_full_size_are_called_by_their_name():
    full, small = shapes.SHAPES["long"], shapes.CPU_SHAPES["long"]
    assert shapes.describe_shape("long", full) == ("long", "B4 N16 L8192 H64")
    assert shapes.describe_shape("long", small) == ("B1 N4 L192 H64", "instead of long")


def test_a_wrong_implementation_is_named_and_not_timed(monkeypatch, capsys):
    def wrong_attention(*arrays, implementation, **options):
        output = attention(*arrays, implementation=implementation, **options)
        factor = 1 if implementation == "reference" else 1.5
        return output._replace(values=factor * output.values)

    monkeypatch.setattr(programs, "attention", wrong_attention)
    with pytest.raises(SystemExit) as exit:
        main([*ARGUMENTS, "vanilla_xla"])
    assert exit.value.code == "wrong or failed, and not timed: vanilla_xla at bert"
    assert f"vanilla_xla{'':24}wrong: values off by 5.0e-01" in capsys.readouterr().out


def test_errors_that_are_not_numbers_are_too_large():
    errors = {"values": np.nan, "d_key": 0.11, "d_query": 0.09}
    assert set(timing.select_large_errors(errors)) == {"values", "d_key"}


def raise_instead(error):
    """Return a function that raises an error, whatever its arguments are."""

    def function(*_, **__):
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("heads must be narrow.\nMore."), "refused: heads must be narrow."),
        (RuntimeError("RESOURCE_EXHAUSTED: 1 TiB"), "out of memory"),
    ],
)
def test_refusals_and_missing_memory_are_messages_in_the_table(monkeypatch, capsys, error, message):
    monkeypatch.setattr(programs, "attention", raise_instead(error))
    main([*ARGUMENTS, "vanilla_xla"])
    assert capsys.readouterr().out.splitlines()[-1] == f"vanilla_xla{'':24}{message}"


def test_a_failed_case_is_a_message_and_fails_the_command_at_the_end(monkeypatch, capsys):
    failure = RuntimeError("no such layout\nfound")
    monkeypatch.setattr(programs, "compile_case", raise_instead(failure))
    with pytest.raises(SystemExit, match="wrong or failed, and not timed: vanilla_xla at bert"):
        main([*ARGUMENTS, "vanilla_xla", "vanilla"])
    assert capsys.readouterr().out.splitlines()[-2] == f"vanilla_xla{'':24}failed: no such layout"


def test_the_first_half_of_the_heads_is_local_and_the_second_global():
    case, shape = cases.CASES["distance_aware"], shapes.Shape(1, 4, 2, 8, calls=1)
    variant = cases.draw_operands(shape, case, "float32").variant
    np.testing.assert_allclose(variant.weight, [-0.1, -0.1, 0.1, 0.1])
    np.testing.assert_allclose(variant.shape, 1)


def test_rates_and_ratios_by_hand():
    shape = shapes.SHAPES["long"]
    assert shape.flops == 4 * 4 * 16 * 8192 * 8192 * 64 == 1_099_511_627_776
    reference = Row("long", "vanilla_cudnn", forward_ms=2.0, both_ms=10.0)
    row = add_rates(Row("long", "vanilla", forward_ms=4.0, both_ms=15.0), shape, reference)
    assert row.forward_tflops == pytest.approx(274.877906944)
    assert row.both_tflops == pytest.approx(3.5 * 1099.511627776 / 15)
    assert (row.forward_ratio, row.both_ratio) == (2, 1.5)
    cells = ["-", "-", "-", "-", "-", "-", "4.000", "274.9", "2.00", "15.000", "256.6", "1.50"]
    assert format_row(row).split() == ["vanilla", *cells]


def test_missing_pytorch_is_reported_once(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    main([*ARGUMENTS, "vanilla", "--peers", "true"])
    assert capsys.readouterr().out.count("PyTorch is not timed: it is not installed.") == 1


def test_draw_needs_an_existing_file(tmp_path):
    with pytest.raises(SystemExit, match=r"--draw must be an existing bench.json; got .*none"):
        main(["bench", "--draw", str(tmp_path / "none.json")])
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"bench.json: is not what bench writes, KeyError\('lines"):
        main(["bench", "--draw", str(tmp_path / "bench.json")])


def outcomes(case):
    """Return the number of entries of each output and gradient of a case, by name."""
    operands = jax.eval_shape(lambda: cases.draw_operands(SMALL, case, "bfloat16"))
    output, gradients = jax.eval_shape(programs.make_both(case), operands)
    return {name: array.size for name, array in timing.name_arrays(output, gradients).items()}


BIASES = {"d_variant.content_bias": 16, "d_variant.position_bias": 16}
# Parameters whose gradients are timed, besides those of query, key and value.
PARAMETERS = {
    "distance_aware_mapping": {"d_w": 4, "d_v": 4},
    "distance_aware_grouped": {"d_w": 4, "d_v": 4},
    "relative_position": {"d_variant.keys": 4 * 33 * 4, "d_variant.values": 4 * 33 * 4},
    "relative_position_keys": {"d_variant.keys": 4 * 33 * 4},
    "transformer_xl": {"d_variant.projection": 4 * 16 * 4, **BIASES},
    "adapted": BIASES,
    "alibi": {"d_variant.parameters": 4},
    "kerple_log": {"d_variant.parameters[0]": 4, "d_variant.parameters[1]": 4},
    "t5_bias": {"d_variant.parameters": 4 * 32},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradients_of_all_parameters_are_computed(name):
    found = outcomes(cases.CASES[name])
    keys = 8 * 4 * (1 if name == "distance_aware_grouped" else 4)
    inputs = {"values": 128, "d_query": 128, "d_key": keys, "d_value": keys}
    assert found == inputs | PARAMETERS[name]


def test_arguments_of_a_case():
    def draw(name):
        return cases.draw_operands(SMALL, cases.CASES[name], "float32").arguments

    assert draw("distance_aware_key_mask")["mask"].shape == (1, 1, 1, 8)
    assert draw("distance_aware_pair_mask")["mask"].shape == (1, 1, 8, 8)
    segments = draw("distance_aware_segments")
    for side in ("query", "key"):
        np.testing.assert_array_equal(segments[f"{side}_segments"], [range(8)])
    assert set(draw("distance_aware_dropout")) == {"dropout_key"}


@pytest.mark.parametrize("name", ["dropout", "grouped", "received", "pair_mask"])
def test_checked_heads_have_the_gradients_of_the_whole_call(name):
    case = cases.CASES[f"distance_aware_{name}"]._replace(implementation="xla")
    operands = cases.draw_operands(SMALL._replace(batch=3, heads=8), case, "float32")
    errors = timing.measure_errors(programs.compile_case(case, operands, 1), operands)
    assert all(error < 1e-5 for error in errors.values())


def test_the_error_of_a_parameter_is_relative_to_the_gradients_of_the_examples():
    parts = np.asarray([[3.0], [-4.0]])
    assert timing._relative_error(np.asarray([-0.5]), parts) == pytest.approx(0.1)


def test_the_program_shows_its_implementation():
    calls = ("custom_call @mosaic_gpu_v2(%0)", 'custom_call @"__cudnn$fmhaSoftmax"(%0)', "dot %0")
    assert [*map(programs.name_implementation, calls)] == ["pallas", "cudnn", "xla"]


def write_rows(folder, *rows, **changes):
    setup = bench.describe_setup(bench.Bench(shapes=("long",), output=str(folder)))
    setup["environment"] |= changes
    bench.write_results(bench.add_rows(setup, rows), folder)


def test_a_run_adds_its_rows_to_those_of_earlier_runs(tmp_path, monkeypatch):
    kept, replaced = Row("long", "alibi", both_ms=2.0), Row("long", "vanilla", message="old")
    write_rows(tmp_path, kept, replaced)
    new = [Row("bert", "t5_bias", both_ms=1.0), Row("long", "vanilla", message="new")]
    monkeypatch.setattr(bench, "measure_all", lambda *arguments: iter(new))
    shapes_and_output = ["--shapes", "long", "bert", "--output", str(tmp_path)]
    main(["bench", "--cases", "vanilla", *shapes_and_output, "--add", "true"])
    written = json.loads((tmp_path / "bench.json").read_text())
    found = [(line["shape"], line["case"], line["message"]) for line in written["lines"]]
    expected = [("bert", "t5_bias", ""), ("long", "vanilla", "new"), ("long", "alibi", "")]
    assert found == expected
    assert list(written["shapes"]) == ["bert", "long"]
    assert [run["config"]["add"] for run in written["runs"]] == [False, True]
    assert str(tmp_path) not in json.dumps(written)


def test_results_of_another_device_are_not_mixed(tmp_path):
    write_rows(tmp_path, Row("long", "vanilla"), device="NVIDIA H200")
    before = (tmp_path / "bench.json").read_bytes()
    with pytest.raises(SystemExit, match=r"--add cannot mix .*: device was NVIDIA H200, now"):
        main([*ARGUMENTS, "vanilla", "--output", str(tmp_path), "--add", "true"])
    assert (tmp_path / "bench.json").read_bytes() == before
    with pytest.raises(SystemExit):
        main([*ARGUMENTS, "vanilla", "--add", "true"])


@pytest.mark.parametrize("package", ["jax", "optax"])
def test_results_of_another_version_are_mixed_unless_times_depend_on_it(
    tmp_path, monkeypatch, package
):
    monkeypatch.setattr(bench, "measure_all", lambda *arguments: iter([Row("bert", "vanilla")]))
    write_rows(tmp_path, Row("long", "vanilla"))
    path = tmp_path / "bench.json"
    stored = json.loads(path.read_text())
    stored["environment"]["packages"][package] = "0.0.1"
    path.write_text(json.dumps(stored))
    arguments = [*ARGUMENTS, "vanilla", "--output", str(tmp_path), "--add", "true"]
    if package == "jax":
        with pytest.raises(SystemExit, match=r"cannot mix .*: jax was 0.0.1, now it is"):
            main(arguments)
    else:
        main(arguments)
        lines = json.loads(path.read_text())["lines"]
        assert {line["shape"] for line in lines} == {"long", "bert"}


def test_cases_beyond_the_limit_are_named_and_not_timed(tmp_path, capsys):
    main([*ARGUMENTS, "alibi", "vanilla_xla", "--limit", "1e-9", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "left out, because --limit 1e-09 seconds had passed:" in printed
    assert "  bert: alibi, vanilla_xla\n" in printed
    assert not (tmp_path / "bench.json").exists()


def test_the_markdown_table_has_ratios_or_messages():
    rows = [
        Row("long", "vanilla_cudnn", implementation="cudnn", both_ms=8.776, both_ratio=1.0),
        Row("long", "alibi", implementation="pallas", both_ms=10.5, both_ratio=1.2),
        Row("xlong", "alibi", message="out of memory", implementation="xla"),
    ]
    table = format_ratios(rows, {"long": "long B4", "xlong": "xlong B1"}).splitlines()
    assert table[0] == "|  | used | long B4 | xlong B1 |"
    assert table[2:] == [
        "| vanilla cudnn, ms | cudnn | 8.78 | - |",
        "| alibi | pallas, xla | 1.20 | out of memory |",
    ]


def test_an_error_of_pytorch_is_a_message_of_its_row(monkeypatch):
    failure = MemoryError("no room\nfor this")
    monkeypatch.setattr(pytorch, "_measure_peer", raise_instead(failure))
    peers = pytorch.select_peers(["vanilla", "t5_bias", "alibi"])
    assert peers == ["torch_flex_alibi", "torch_flex_t5_bias"]
    settings = Settings("float32", repeats=1, processes=1, deadline=np.inf)
    rows = list(pytorch.measure_pytorch(peers, "bert", SMALL, settings))
    assert [(row.case, row.message) for row in rows] == [(x, "refused: no room") for x in peers]


def test_cases_are_measured_in_their_own_processes(capsys):
    main([*ARGUMENTS, "vanilla_xla", "--processes", "2"])
    printed = capsys.readouterr().out
    assert "bert: compiled 2 of 2 cases in " in printed
    *_, reference, vanilla = printed.splitlines()
    assert reference.split(maxsplit=1) == ["vanilla_cudnn", "needs an NVIDIA GPU"]
    assert vanilla.split()[:2] == ["vanilla_xla", "xla"]


@pytest.mark.parametrize("start", [sys.exit, functools.partial(functools.partial, sys.exit)])
def test_a_process_that_crashes_is_an_error_of_its_case(start):
    """The first process crashes instead of compiling its case, and the second while timing it."""
    counts = []
    results = dict(measure_in_processes(["name"], start, 2, Limits(), counts.append))
    assert str(results["name"]) == "its process ended with exit code 1"
    assert counts == [1]


def test_no_case_is_compiled_after_its_deadline():
    counts = []
    limits = Limits(last_start=-np.inf)
    assert not [*measure_in_processes(["name"], sys.exit, 2, limits, counts.append)]
    assert counts == [0]


@pytest.mark.usefixtures("no_process_is_left")
def test_processes_that_still_compile_are_ended():
    """Two processes sleep instead of compiling their cases."""
    counts = []
    limits = Limits(compile_end=time.monotonic() + 3)
    times = [*measure_in_processes([1000, 0, 1001], time.sleep, 2, limits, counts.append)]
    assert [case for case, _ in times] == [0]
    limits = Limits(compilation=3)
    before = len(multiprocessing.active_children())
    results = measure_in_processes([1000, 0], time.sleep, 2, limits, counts.append)
    late, error = next(results)
    assert (late, str(error)) == (1000, "not compiled after 3 s")
    assert len(multiprocessing.active_children()) == before + 1  # the process of the other case
    assert [case for case, _ in results] == [0]
    assert counts == [1, 1]


@pytest.mark.usefixtures("no_process_is_left")
def test_a_process_that_hangs_while_it_times_its_case_is_ended():
    sleep_later = functools.partial(functools.partial, time.sleep)
    results = measure_in_processes([1000], sleep_later, 2, Limits(timing=0.5), lambda count: None)
    assert [(case, str(error)) for case, error in results] == [(1000, "no result after 0.5 s")]


@pytest.mark.usefixtures("no_process_is_left")
def test_no_process_is_left_if_the_results_are_not_read():
    sleep_later = functools.partial(functools.partial, time.sleep)
    results = measure_in_processes([0, 1000], sleep_later, 2, Limits(), lambda count: None)
    assert next(results)[0] == 0
    results.close()


@pytest.mark.parametrize("error", [TimeoutError("no result after 300 s"), ChildProcessError("9")])
def test_a_case_whose_process_was_ended_has_failed(error, monkeypatch):
    results = [("vanilla_xla", error)]
    monkeypatch.setattr(measure, "measure_in_processes", lambda *arguments: results)
    settings = Settings("float32", repeats=1, processes=2, deadline=np.inf)
    (row,) = measure.measure_shape("bert", SMALL, ["vanilla_xla"], settings)
    assert (row.case, row.message) == ("vanilla_xla", f"failed: {error}")


def test_attention_written_by_hand_equals_the_reference():
    names = ("distance_aware_key_mask", "relative_position", "transformer_xl", "adapted", "t5_bias")
    chosen = ["vanilla_key_mask_jax_nn", *(f"{name}_by_hand" for name in names)]
    compared = {name: cases.BY_HAND_CASES[name] for name in chosen}
    shape = SMALL._replace(length=24)  # longer than the largest distance of the relations
    operands = {
        name: cases.draw_operands(shape, case, "float32") for name, case in compared.items()
    }

    @jax.jit
    def attend(operands):
        pairs = {}
        for name, inputs in operands.items():
            call, arguments = by_hand.FUNCTIONS[compared[name].implementation], inputs.arguments
            expected = attention(*inputs[:4], **arguments, scale=0.5, implementation="reference")
            pairs[name] = call(*inputs[:4], **arguments, scale=0.5).values, expected.values
        return pairs

    for name, (actual, expected) in attend(operands).items():
        np.testing.assert_allclose(actual, expected, atol=3e-6, err_msg=name)


def test_by_hand_is_the_name_of_all_cases_that_compare_with_it():
    chosen = bench.Bench(cases=("alibi", "by_hand")).timed_cases
    assert chosen == ["alibi", *cases.BY_HAND_CASES]
    assert {"t5_bias_by_hand", "t5_bias_xla", "vanilla_jax_nn"} < {*chosen}


def test_the_comparison_has_ratios_to_attention_written_by_hand():
    rows = [
        Row("bert", "alibi_by_hand", both_ms=2.0, temporary_mib=300.0),
        Row("bert", "alibi_xla", both_ms=2.1, temporary_mib=150.0),
        Row("bert", "alibi", both_ms=0.2),
        Row("mid", "alibi_by_hand", message="out of memory"),
    ]
    titles = {"bert": "bert B64", "mid": "mid B8"}
    header = ["|  | bert B64 | mid B8 |", "| --- | ---: | ---: |"]
    assert format_comparison(rows, titles, "both_ms").splitlines() == [
        *header,
        "| alibi by hand, ms | 2 | - |",
        "| alibi xla | 1.05 | - |",
    ]
    *_, memory = format_comparison(rows, titles, "temporary_mib").splitlines()
    assert memory == "| alibi xla | 0.50 | - |"
