"""Compilation of the TPU kernels without a TPU, and the tables of the compiler's figures."""

import importlib.util
import time

import jax
import pytest

from distattn_jax.attention import fused_kernels
from distattn_jax.attention.fused.tile_runs import TileKind
from experiments.bench import tpu_cases, tpu_compile, tpu_table

COMPILED = {
    **{"status": "compiled", "lower_seconds": 1.0, "compile_seconds": 2.0},
    **{"temporary_bytes": 2**20, "bundles": {}, "sections": {}, "versions": {"jax": "1"}},
}
SPLASH = {"splash_mha_fwd.1": [100], "splash_mha_dq.2": [200], "splash_mha_dkv.3": [400]}
LOOPS = {"forward.1": [90, 130], "query_gradient": [220, 300], "key_gradient.2": [440, 500]}
TILE_KINDS = {name: ["far", "plain"] for name in tpu_table.KERNELS}


def make_results(group, **changes):
    """Return equal figures for all cases of a group, with changes by the name of the program."""
    return {
        case.name: COMPILED | changes.get(case.program, {}) for case in tpu_cases.GROUPS[group]()
    }


def read_row(table, name):
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.split("|")[2:-1]]


def test_every_case_has_a_name_of_its_own_and_unknown_names_are_refused():
    cases = {case for make_cases in tpu_cases.GROUPS.values() for case in make_cases()}
    assert len({case.name for case in cases}) == len(cases)

    with pytest.raises(ValueError, match="--case must be the name of a case"):
        tpu_cases.find_case("typo")


def test_bundles_are_divided_by_those_of_splash_attention():
    distance_aware = {"bundles": LOOPS, "sections": TILE_KINDS}
    cases = make_results("schedule", splash={"bundles": SPLASH}, distance_aware=distance_aware)
    table = tpu_table.format_schedule(cases)
    assert read_row(table, "splash") == ["100", "200", "400"] * 2
    assert read_row(table, "distance aware, near")[:3] == ["130 (1.30)", "300 (1.50)", "500 (1.25)"]
    assert read_row(table, "distance aware, far")[:3] == ["90 (0.90)", "220 (1.10)", "440 (1.10)"]


def test_a_kernel_with_more_loops_than_kinds_of_tiles_has_no_bundles_per_tile():
    result = COMPILED | {"bundles": {"forward": [1, 2, 3]}, "sections": TILE_KINDS}
    assert tpu_table.find_bundles(result, "forward", ("far",)) is None


def test_memory_is_divided_by_that_of_splash_attention_of_the_same_version():
    cases = make_results("memory", splash={"temporary_bytes": 2**21})
    assert read_row(tpu_table.format_memory(cases), "dot product") == ["1 (0.50)"] * 4
    cases = make_results("memory", splash={"versions": {"jax": "2"}, "temporary_bytes": 2**21})
    assert read_row(tpu_table.format_memory(cases), "dot product") == ["1"] * 4


def test_memory_of_a_ring_is_divided_by_that_of_one_device():
    cases = make_results("sequence")
    for name in cases:
        mebibytes = 1 if "sequence" in name else 4
        sizes = dict.fromkeys(("argument_bytes", "output_bytes"), mebibytes * 2**20)
        permutes = {"synchronous": 1, "asynchronous": 9, "enclosing": 8}
        permutes = {"permutes": permutes} if "sequence" in name else {}
        cases[name] = cases[name] | sizes | permutes
    table = tpu_table.format_sequence(cases)
    rows = [line for line in table.splitlines() if line.startswith("| dot product, 32,768")]
    assert rows[0].split("|")[2:-1] == [" 1 ", " 9.0 ", " 1.0 ", " - "]
    assert rows[1].split("|")[2:-1] == [" 8 ", " 3.0 (0.33) ", " 1.0 ", " 9 of 10, 8 "]


def test_a_refused_case_is_listed():
    refused = {"status": "refused", "message": "too much VMEM"}
    cases = make_results("compilation") | {"mask v6e B1 N2 L2048 H64": refused}
    table = tpu_table.format_compilation(cases)
    assert read_row(table, "mask") == ["1 of 2", "v6e L2048 H64: refused", "2.0"]
    assert read_row(table, "alibi")[:2] == ["10 of 10", "-"]


def test_the_tile_with_the_fewest_bundles_per_entry_is_marked():
    cases = make_results("tiles", distance_aware={"bundles": LOOPS, "sections": TILE_KINDS})
    figures = read_row(tpu_table.format_tiles(cases), "distance aware, v5e, H64")
    assert figures[-1] == "**0.91**"  # 1024 (130 + 300 + 500) / 1024²
    assert figures[0] == "14.53"


def test_kinds_of_tiles_have_names():
    kinds = (TileKind(is_far=True), TileKind(is_zero=True, is_masked=True), TileKind())
    assert [*map(tpu_table.name_tile_kind, kinds)] == ["far", "masked zero", "plain"]


def test_stored_results_are_kept_and_added_to(tmp_path, monkeypatch):
    path = tmp_path / "tpu.json"
    compiled = []

    def compile_in_process(name, deadline):
        compiled.append(name)
        return {"status": "failed", "message": "crash"} if name == "c" else COMPILED

    monkeypatch.setattr(tpu_compile, "compile_in_process", compile_in_process)
    monkeypatch.setattr(tpu_compile, "find_versions", lambda: {"jax": "1"})
    tpu_compile.compile_all(["b"], path, processes=1, seconds=9.0)
    tpu_compile.compile_all(["a", "b", "c"], path, processes=1, seconds=9.0)
    tpu_compile.compile_all(["b"], path, processes=1, seconds=9.0, again=True)
    assert compiled == ["b", "a", "c", "b"]
    assert list(tpu_compile.read_cases(path)) == ["a", "b"]


def test_results_of_other_versions_are_replaced(tmp_path, monkeypatch):
    path = tmp_path / "tpu.json"
    monkeypatch.setattr(tpu_compile, "compile_in_process", lambda name, deadline: COMPILED)
    for version, names in (("1", ["a", "b"]), ("2", ["a"])):
        monkeypatch.setattr(tpu_compile, "find_versions", lambda version=version: {"jax": version})
        tpu_compile.compile_all(names, path, processes=1, seconds=9.0)
    cases = tpu_compile.read_cases(path)
    assert (cases["a"]["versions"], cases["b"]["versions"]) == ({"jax": "2"}, {"jax": "1"})


def test_no_case_starts_after_the_time_limit():
    result = tpu_compile.compile_in_process("any", time.monotonic() - 1)
    assert result["status"] == "not run"


def test_the_pages_hold_the_stored_results():
    cases = tpu_compile.read_cases(tpu_compile.RESULTS)
    assert tpu_table.format_page(cases) in tpu_compile.PAGE.read_text()
    assert tpu_table.format_training(cases) in tpu_compile.TRAINING_PAGE.read_text()
    assert tpu_table.format_sequence(cases) in tpu_compile.DEVICES_PAGE.read_text()


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the compiler for TPUs, is not installed: pip install '.[tpu]' on x86_64",
)
@pytest.mark.skipif(
    jax.__version_info__ < fused_kernels.OLDEST_JAX, reason="the fused kernels need a newer JAX"
)
@pytest.mark.parametrize(
    "name",
    [
        *(f"{name} v5e B1 N2 L2048 H64" for name in tpu_cases.VARIANTS),
        *(f"{name} v6e B1 N2 L2048 H64" for name in tpu_cases.OPTIONS),
        "distance_aware v5p B1 N2 L2048 H64",
        "distance_aware v5e B2 N2 L2048 H64 mesh 2x2",
        "distance_aware v5e B1 N2 L2048 H128 tile 512x512",
    ],
)
def test_kernels_compile_for_a_tpu(name, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")  # of the tests, for CPUs
    result = tpu_compile.compile_in_process(name, time.monotonic() + 600)
    assert result["status"] == "compiled", result
    if "tile" in name:
        assert tpu_table.find_bundles(result, "forward", ("plain",)) > 0
