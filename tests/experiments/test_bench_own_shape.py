"""`python -m experiments bench --shape`: sizes, baselines, memory, files and errors."""

import json
import re

import jax
import pytest

from distattn_jax.train.options import parse_options
from experiments.__main__ import main
from experiments.bench.cases import BASELINES
from experiments.bench.memory import measure_program
from experiments.bench.results import add_rows
from experiments.bench.shapes import SHAPES, choose_calls, name_shape
from experiments.bench.table import Row, find_baseline
from experiments.commands import bench
from experiments.papers.stored_results import write_results


@pytest.fixture(autouse=True)
def _pretend_to_be_a_cpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")


def parse(*arguments):
    return parse_options(bench.Bench(), arguments, program="bench")


def hide_times(text):
    """Return the lines of a text without their decimals: stored times are rounded once more."""
    return re.sub(r" *\d+\.\d+", " -", text).splitlines()


def test_own_shapes_are_timed_as_they_are_and_printed_as_json(tmp_path, capsys):
    sizes = ["--shape", "2,5,1,3", "--shape", "1,1,1,3"]
    options = ["--cases", "transformer_xl", "--repeats", "1", "--output", str(tmp_path)]
    main(["bench", *sizes, *options, "--json"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document.pop("baselines") == dict.fromkeys(["2,5,1,3", "1,1,1,3"], "vanilla_jax_nn")
    assert document == json.loads((tmp_path / "bench.json").read_text())
    assert document["shapes"] == {
        "2,5,1,3": {"batch": 2, "heads": 1, "length": 5, "width": 3, "calls": 1},
        "1,1,1,3": {"batch": 1, "heads": 1, "length": 1, "width": 3, "calls": 1},
    }
    for line in document["lines"]:
        if line["case"] == "transformer_xl":  # Its width N H must be even.
            assert line["message"].startswith("refused: ")
        else:
            assert (line["implementation"], line["both_ratio"]) == ("jax_nn", 1)
            assert min(line["forward_ms"], line["both_ms"], line["temporary_mib"]) >= 0
    assert "B 2, T 5, N 1, H 3\n" in printed.err
    main(["bench", "--draw", str(tmp_path / "bench.json")])
    again = capsys.readouterr().out
    assert {*hide_times(printed.err)} - {*hide_times(again)} == {
        "cases: vanilla_jax_nn, transformer_xl; --cases chooses others",
        str(tmp_path / "bench.json"),
    }


def test_a_sequence_is_shared_between_all_devices_or_the_line_says_what_is_missing(
    monkeypatch, capsys
):
    command = ["bench", "--shape", "1,128,1,4", "--cases", "vanilla_ring", "--repeats", "1"]
    main([*command, "--json"])
    *_, line = json.loads(capsys.readouterr().out)["lines"]
    assert (line["case"], line["implementation"]) == ("vanilla_ring", "xla")
    assert max(line["errors"].values()) < 1e-5
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    main(command)
    assert re.search(r"vanilla_ring +- +needs several devices", capsys.readouterr().out)


def test_a_call_that_does_not_fit_into_memory_is_one_line(capsys):
    main(["bench", "--shape", "64,65536,64,64", "--cases", "vanilla_jax_nn"])
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith("vanilla_jax_nn")
    assert "out of memory: the call needs " in line


@pytest.mark.usefixtures("eight_devices")
def test_all_devices_of_a_cpu_share_its_memory():
    mesh = jax.make_mesh((8,), ("sequence",))
    place = jax.NamedSharding(mesh, jax.P("sequence"))
    array = jax.ShapeDtypeStruct((80,), "float32", sharding=place)
    program = jax.jit(lambda x: x + 1).lower(array).compile()
    assert measure_program(program) == 2 * 80 * 4  # the input and the output


WANTED = "--shape must be B,T,N,H, four whole numbers above 0"


@pytest.mark.parametrize("text", ["8,512", "8,512,8,64,1", "8,0,8,64", "a,b,c,d", "8.5,1,1,1", ""])
def test_a_shape_that_is_not_four_numbers_is_refused(capsys, text):
    with pytest.raises(SystemExit) as exit:
        main(["bench", "--shape", text])
    assert exit.value.code == 2
    message = capsys.readouterr().err
    assert WANTED in message
    assert f"got {text!r}." in message


def test_named_and_own_shapes_are_not_confused(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--shape", "bert"])
    assert "got 'bert'. Use --shapes for shapes that have names." in capsys.readouterr().err
    with pytest.raises(SystemExit, match="--shape cannot be used with --shapes"):
        main(["bench", "--shape", "8,512,8,64", "--shapes", "bert"])


def test_repeated_flags_and_lists_give_each_shape_once():
    own = parse(
        "--shape", "8,512,4,64", "1,2,3,4", "--shape", "8, 512, 4, 64", "--shape", "5,6,7,8"
    )
    assert own.shape_names == ["8,512,4,64", "1,2,3,4", "5,6,7,8"]
    assert own.own_shapes["8,512,4,64"][:4] == (8, 4, 512, 64)


def test_the_default_cases_of_a_cpu_need_no_other_device():
    chosen = bench.choose_defaults(parse("--shape", "1,2,3,4"), {"shape"})
    assert chosen.ordered_cases[:3] == ["vanilla_jax_nn", "vanilla_xla", "distance_aware"]
    assert not {"vanilla_cudnn", "vanilla"} & {*chosen.ordered_cases}
    named = parse("--shapes", "bert", "--cases", "alibi")
    assert bench.choose_defaults(named, {"shapes", "cases"}) == named
    assert named.ordered_cases == ["vanilla_cudnn", "alibi"]


def test_a_gpu_is_also_compared_with_jax_nn_because_cudnn_refuses_some_calls(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    chosen = parse("--shape", "1,2,3,4", "--cases", "alibi").ordered_cases
    assert chosen == ["vanilla_cudnn", "vanilla_jax_nn", "alibi"]


def test_baselines_come_first_so_that_the_next_replaces_one_that_fails():
    chosen = parse("--shape", "1,2,3,4", "--cases", "alibi", "vanilla_xla").ordered_cases
    assert chosen == ["vanilla_jax_nn", "vanilla_xla", "alibi"]
    failed, timed = Row("1,2,3,4", BASELINES[1]), Row("1,2,3,4", BASELINES[2], both_ms=2.0)
    other = Row("bert", BASELINES[1], both_ms=1.0)
    assert find_baseline([other, failed, timed], "1,2,3,4") is timed
    assert find_baseline([other], "bert") is None  # Named shapes are compared with cuDNN alone.


def test_small_programs_make_as_many_calls_as_the_named_shapes_of_their_size():
    for shape in SHAPES.values():
        assert choose_calls(shape._replace(calls=1)) == shape


def test_own_shapes_join_named_shapes_in_a_file_and_leave_their_figure(tmp_path, capsys):
    named = bench.describe_setup(parse("--shapes", "long", "bert"))
    rows = [Row("bert", "alibi", both_ms=2.0), Row("long", "alibi", both_ms=3.0)]
    stored = add_rows(named, rows)
    assert "shape" not in stored["runs"][0]["config"]
    own = bench.describe_setup(
        bench.choose_defaults(parse("--shape", "9,8,7,6", "1,2,3,4"), {"shape"})
    )
    new = [
        Row(shape, case, both_ms=1.0) for shape in own["shapes"] for case in ("t5_bias", "alibi")
    ]
    joined = add_rows(own, new, stored)
    assert list(joined["shapes"]) == ["bert", "long", "9,8,7,6", "1,2,3,4"]
    order = [(line["shape"], line["case"]) for line in joined["lines"]]
    assert order[2:] == [(name, case) for name in own["shapes"] for case in ("alibi", "t5_bias")]
    pictures, tables = [], []
    for folder, content in ((tmp_path / "named", stored), (tmp_path / "both", joined)):
        write_results(content, folder)
        main(["bench", "--draw", str(folder / "bench.json")])
        pictures.append((folder / "bench.png").read_bytes())
        tables.append([line for line in capsys.readouterr().out.splitlines() if line[:1] == "|"])
    assert pictures[0] == pictures[1]
    assert tables[0] == tables[1]


def test_shapes_have_the_name_that_the_option_takes():
    assert parse("--shape", name_shape(SHAPES["bert"])).own_shapes == {
        "64,256,12,64": SHAPES["bert"]._replace(calls=1)
    }
