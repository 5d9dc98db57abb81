"""`python -m experiments.bench.gpu_compile`: stored results, tables and compilation."""

import jax
import pytest

from distattn_jax.attention import devices, fused_kernels
from experiments.bench import gpu_compile, gpu_table
from experiments.bench.cases import CASES, CHECK_CASES
from experiments.commands import bench
from tests.attention.test_fused_ahead_of_time import has_cuda_compiler

REPORT = """ptxas info    : Compiling entry function 'forward_mosaic_gpu_kernel' for 'sm_80'
ptxas info    : Function properties for forward_mosaic_gpu_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 128 registers, used 2 barriers, 1 bytes smem
ptxas warning : Registers are spilled to local memory in function 'received_mosaic_gpu_kernel', \
8 bytes spill stores, 12 bytes spill loads
ptxas info    : Compiling entry function 'received_mosaic_gpu_kernel' for 'sm_80'
ptxas info    : Function properties for received_mosaic_gpu_kernel
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 1 bytes smem
"""


def test_the_reports_of_the_compiler_are_read(tmp_path):
    for number, kernel in enumerate(("received", "forward")):
        report = f"Resources(smem_scratch_bytes={51200 + number})"
        (tmp_path / f"{kernel}_{number}.resources.txt").write_text(report)
    assert gpu_compile.read_reports(REPORT, tmp_path) == {
        "forward": {"registers": 128, "spilled_bytes": 0, "shared_bytes": 51201},
        "received": {"registers": 255, "spilled_bytes": 20, "shared_bytes": 51200},
    }


def test_only_cases_without_a_current_result_are_compiled(tmp_path, monkeypatch):
    path, compiled = tmp_path / "gpu.json", []

    def compile_in_process(name):
        compiled.append(name)
        if name == "c":
            return {"status": "failed", "message": ""}
        return {"status": "compiled", "kernels": {}}

    monkeypatch.setattr(gpu_compile, "compile_in_process", compile_in_process)
    monkeypatch.setattr(gpu_compile, "PACKAGES", ())
    gpu_compile.compile_all(["a"], path, processes=1)
    gpu_compile.compile_all(["a", "b", "c"], path, processes=1)
    gpu_compile.compile_all(["a"], path, processes=1, again=True)
    assert compiled == ["a", "b", "c", "a"]
    assert list(gpu_compile.read_cases(path)) == ["a", "b"]


def test_the_page_holds_the_stored_results():
    cases = gpu_compile.read_cases(gpu_compile.RESULTS)
    assert gpu_table.format_page(cases, gpu_compile.CHIPS) in gpu_compile.PAGE.read_text()


@pytest.mark.skipif(not has_cuda_compiler(), reason="needs JAX's CUDA packages and ptxas")
@pytest.mark.skipif(
    jax.__version_info__ < fused_kernels.OLDEST_JAX, reason="the fused kernels need a newer JAX"
)
@pytest.mark.parametrize("chip", gpu_compile.CHIPS)
def test_kernels_compile_for_a_chip(chip, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")  # of the tests, for CPUs
    result = gpu_compile.compile_in_process(f"{chip}/mid/vanilla")
    assert result["status"] == "compiled", result
    assert {kernel["spilled_bytes"] for kernel in result["kernels"].values()} == {0}


@pytest.mark.parametrize(("capability", "forms"), [(8.9, 1), (9.0, 2)])
def test_check_runs_all_fused_cases_in_each_form_of_the_chip(capability, forms, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with devices.assumed(devices.Machine("cuda", [capability], [], (0, 12))):
        chosen = bench.choose_defaults(bench.Bench(check=True), {"check"})
    assert len(chosen.cases) * 2 == len(CHECK_CASES) * forms
    assert {CHECK_CASES[name].variant for name in chosen.cases} >= {
        CASES[name].variant for name in ("vanilla", "relative_position", "transformer_xl")
    }


def test_check_needs_a_gpu_or_tpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    with pytest.raises(ValueError, match="must run on a machine with an NVIDIA GPU or a TPU"):
        bench.choose_defaults(bench.Bench(check=True), {"check"})
