"""`python -m experiments bench`: rates, checks, messages and files."""

import json
import sys

import jax
import numpy as np
import pytest

from distattn_jax.attention import attention
from experiments.__main__ import main
from experiments.bench import cases, timing
from experiments.bench.table import Row, add_rates, format_row
from experiments.commands import bench

ARGUMENTS = ("bench", "--shapes", "bert", "--repeats", "1", "--cases")


@pytest.fixture(autouse=True)
def _pretend_to_be_a_cpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setitem(cases.CPU_SHAPES, "bert", cases.Shape(2, 4, 24, 8, calls=2))


def test_a_run_prints_and_writes_a_table_and_can_draw_it_again(tmp_path, capsys):
    main([*ARGUMENTS, "vanilla", "distance_aware_xla", "--output", str(tmp_path)])
    printed = capsys.readouterr().out.splitlines()
    written = json.loads((tmp_path / "bench.json").read_text())
    reference, vanilla, distance_aware = written["lines"]
    assert (reference["case"], reference["message"]) == ("vanilla_cudnn", "needs an NVIDIA GPU")
    assert (vanilla["case"], vanilla["message"]) == ("vanilla", "needs a Hopper GPU")
    names = {"values", "d_query", "d_key", "d_value", "d_w", "d_v"}
    assert set(distance_aware["errors"]) == names
    assert all(error < 1e-5 for error in distance_aware["errors"].values())
    assert distance_aware["forward_ms"] > 0
    assert distance_aware["both_ms"] > 0
    assert distance_aware["both_ratio"] is None  # The reference case needs a GPU.
    assert "B2 N4 L24 H8, instead of bert; calls in one program: 2" in printed
    picture = tmp_path / "bench.png"
    before = picture.read_bytes()
    picture.unlink()
    main(["bench", "--draw", str(tmp_path / "bench.json")])
    again = capsys.readouterr().out.splitlines()
    table = next(i for i, line in enumerate(printed) if line.startswith("case"))
    assert again[: table + 2] == printed[: table + 2]
    assert [line[:30] for line in again] == [line[:30] for line in printed if ".json" not in line]
    assert picture.read_bytes() == before


def test_only_shapes_of_their_full_size_are_called_by_their_name():
    full, small = cases.SHAPES["long"], cases.CPU_SHAPES["long"]
    assert cases.describe_shape("long", full) == ("long", "B4 N16 L8192 H64")
    assert cases.describe_shape("long", small) == ("B1 N4 L192 H64", "instead of long")


def test_a_wrong_implementation_is_named_and_not_timed(monkeypatch, capsys):
    def wrong_attention(*arrays, implementation, **options):
        output = attention(*arrays, implementation=implementation, **options)
        return (
            output if implementation == "reference" else output._replace(values=1.5 * output.values)
        )

    monkeypatch.setattr(timing, "attention", wrong_attention)
    with pytest.raises(SystemExit) as exit:
        main([*ARGUMENTS, "vanilla_xla"])
    assert exit.value.code == "wrong or failed, and not timed: vanilla_xla at bert"
    assert "vanilla_xla                 wrong: values off by 5.0e-01" in capsys.readouterr().out


def test_errors_that_are_not_numbers_are_too_large():
    assert set(timing.select_large_errors({"values": np.nan, "d_key": 0.11, "d_query": 0.09})) == {
        "values",
        "d_key",
    }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("heads must be narrow.\nMore."), "refused: heads must be narrow."),
        (RuntimeError("RESOURCE_EXHAUSTED: 1 TiB"), "out of memory"),
    ],
)
def test_refusals_and_missing_memory_are_messages_in_the_table(monkeypatch, capsys, error, message):
    def refusing(*arrays, **options):
        raise error

    monkeypatch.setattr(timing, "attention", refusing)
    main([*ARGUMENTS, "vanilla_xla"])
    assert capsys.readouterr().out.splitlines()[-1] == f"vanilla_xla{'':17}{message}"


def test_a_failed_case_is_a_message_and_fails_the_command_at_the_end(monkeypatch, capsys):
    def breaking(case, operands, calls):
        raise RuntimeError("no such layout\nfound")

    monkeypatch.setattr(bench, "compile_case", breaking)
    with pytest.raises(SystemExit, match="wrong or failed, and not timed: vanilla_xla at bert"):
        main([*ARGUMENTS, "vanilla_xla", "vanilla"])
    assert capsys.readouterr().out.splitlines()[-2] == f"vanilla_xla{'':17}failed: no such layout"


def test_the_first_half_of_the_heads_is_local_and_the_second_global():
    case, shape = cases.CASES["distance_aware"], cases.Shape(1, 4, 2, 8, calls=1)
    variant = cases.draw_operands(shape, case, "float32").variant
    np.testing.assert_allclose(variant.weight, [-0.1, -0.1, 0.1, 0.1])
    np.testing.assert_allclose(variant.shape, 1)


def test_rates_and_ratios_by_hand():
    shape = cases.SHAPES["long"]
    assert shape.flops == 4 * 4 * 16 * 8192 * 8192 * 64 == 1_099_511_627_776
    reference = Row("long", "vanilla_cudnn", forward_ms=2.0, both_ms=10.0)
    row = add_rates(Row("long", "vanilla", forward_ms=4.0, both_ms=15.0), shape, reference)
    assert row.forward_tflops == pytest.approx(274.877906944)
    assert row.both_tflops == pytest.approx(3.5 * 1099.511627776 / 15)
    assert (row.forward_ratio, row.both_ratio) == (2, 1.5)
    cells = ["-", "-", "-", "-", "-", "4.000", "274.9", "2.00", "15.000", "256.6", "1.50"]
    assert format_row(row).split() == ["vanilla", *cells]


def test_missing_pytorch_is_reported_once(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    main([*ARGUMENTS, "vanilla", "--peers", "true"])
    printed = capsys.readouterr().out
    assert printed.count("PyTorch is not timed: it is not installed.") == 1


def test_draw_needs_an_existing_file(tmp_path):
    with pytest.raises(SystemExit, match=r"--draw must be an existing bench.json; got .*none"):
        main(["bench", "--draw", str(tmp_path / "none.json")])
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"bench.json: is not what bench writes, KeyError\('lines"):
        main(["bench", "--draw", str(tmp_path / "bench.json")])
