"""Compile the portable GPU kernels for six chips without a GPU, and store their registers.

The compiler for NVIDIA GPUs runs on every machine with Linux, after

    pip install --no-deps jax-cuda13-plugin jax-cuda13-pjrt nvidia-cuda-nvcc nvidia-nvvm \\
        nvidia-cuda-runtime nvidia-cuda-cupti nvidia-cuda-crt nvidia-nvjitlink

    python -m experiments.bench.gpu_compile --processes 8   # all cases, to experiments/results
    python -m experiments.bench.gpu_compile --chips         # only update the page

A case is one case of the benchmark at one shape on one chip, forward and backward pass. Each case
is compiled in its own process. Each result is stored at once, with the versions of JAX and of the
compiler. If a case has a stored result with the current versions, it is not compiled again, unless
`--again` is set. Nothing runs on a GPU. The results are registers, spilled bytes and shared memory.
"""

import argparse
import concurrent.futures
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.bench import gpu_programs, gpu_table
from experiments.bench.cases import CASES
from experiments.bench.gpu_programs import CHIPS, LONGEST_MESSAGE
from experiments.bench.tpu_compile import HelpFormatter, read_cases, write_cases
from experiments.papers.stored_results import FOLDER, round_numbers, update_results_page

RESULTS = FOLDER / "gpu.json"
PAGE = FOLDER.parent.parent / "docs" / "gpu.md"
PACKAGES = ("jax", "jaxlib", "nvidia-cuda-nvcc")
WIDE_CASES = ("vanilla", "distance_aware", "relative_position", "transformer_xl", "adapted")


def list_cases(chips: list[str]) -> list[str]:
    """Return the names "chip/shape/case" of all cases on the given chips."""
    fused = [name for name, case in CASES.items() if case.implementation in (None, "pallas")]
    pairs = [("mid", name) for name in fused] + [("wide", name) for name in WIDE_CASES]
    return [f"{chip}/{shape}/{case}" for shape, case in pairs for chip in chips]


def read_reports(output: str, folder: Path) -> dict[str, dict[str, int]]:
    """Return the registers, spilled bytes and bytes of shared memory of each kernel, by name.

    Args:
      output: Text that the compiler has printed.
      folder: Folder to which the shared memory of each kernel has been written.
    """
    kernels = {}
    # A warning about spills precedes the name of the function. It repeats the numbers.
    for report in output.split("Function properties for ")[1:]:
        kernel = report.partition("_mosaic_gpu_kernel")[0]
        (resources,) = (each.read_text() for each in folder.glob(f"{kernel}_*.resources.txt"))
        registers, *spills = (
            re.findall(pattern, report)[0]
            for pattern in (r"Used (\d+) reg", r"(\d+) bytes spill st", r"(\d+) bytes spill lo")
        )
        kernels[kernel] = {
            "registers": int(registers),
            "spilled_bytes": sum(map(int, spills)),
            "shared_bytes": int(re.findall(r"smem_scratch_bytes=(\d+)", resources)[0]),
        }
    return dict(sorted(kernels.items()))


def compile_in_process(name: str) -> dict[str, Any]:
    """Compile a case in a new process, and return its status and the numbers of the compiler."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-m", "experiments.bench.gpu_programs", name],
            env={**os.environ, **gpu_programs.VARIABLES, gpu_programs.FOLDER_VARIABLE: folder},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            return {"status": "failed", "message": process.stderr[-LONGEST_MESSAGE:]}
        (line,) = (line for line in process.stdout.splitlines() if line.startswith("{"))
        result = json.loads(line)
        if result["status"] == "compiled":
            result["kernels"] = read_reports(process.stdout, Path(folder))
    return result


def compile_all(names: list[str], path: Path, processes: int, *, again: bool = False) -> None:
    """Compile the cases that have no stored result with the current versions, and store results.

    Args:
      names: Names of the cases.
      path: File of the results. It may contain results of earlier runs.
      processes: Number of cases that are compiled at the same time.
      again: If True, compile all cases.
    """
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    cases = read_cases(path) if path.exists() else {}
    missing = [name for name in names if again or cases.get(name, {}).get("versions") != versions]
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        pending = {pool.submit(compile_in_process, name): name for name in missing}
        for count, future in enumerate(concurrent.futures.as_completed(pending), 1):
            name, result = pending[future], future.result()
            print(f"{count}/{len(missing)} {name}: {gpu_table.describe(result)}", flush=True)
            if result["status"] != "failed":
                cases[name] = round_numbers(result | {"versions": versions})
                write_cases(cases, path)


def main() -> None:
    """Compile the cases of the chosen chips, then update docs/gpu.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--chips", nargs="*", choices=tuple(CHIPS), default=tuple(CHIPS))
    parser.add_argument("--processes", type=int, default=4, help="cases compiled at a time")
    parser.add_argument("--again", action="store_true", help="also compile stored cases")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of the results")
    options = parser.parse_args()
    if options.chips:
        names = list_cases(options.chips)
        compile_all(names, options.output, options.processes, again=options.again)
    if options.output == RESULTS:
        text = gpu_table.format_page(read_cases(options.output), CHIPS)
        update_results_page("gpu", text, PAGE)


if __name__ == "__main__":
    main()
