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
import time
from pathlib import Path
from typing import Any, NamedTuple

from experiments.bench import gpu_table
from experiments.bench.tpu_compile import HelpFormatter, read_cases, write_cases
from experiments.papers.stored_results import FOLDER, round_numbers, update_results_page

RESULTS = FOLDER / "gpu.json"
PAGE = FOLDER.parent.parent / "docs" / "gpu.md"
PACKAGES = ("jax", "jaxlib", "nvidia-cuda-nvcc")
VARIABLES = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "MOSAIC_GPU_DUMP_PTXAS": "1",
}
LONGEST_MESSAGE = 400  # characters of an error of the compiler
WIDE_CASES = ("vanilla", "distance_aware", "relative_position", "transformer_xl", "adapted")


class Chip(NamedTuple):
    """GPU for which kernels are compiled.

    Attributes:
      capability: Compute capability.
      shared_memory: Bytes of shared memory that a thread block can use.
      processors: Number of processors (streaming multiprocessors).
      settings: Further settings of the compute capability.
    """

    capability: str
    shared_memory: int
    processors: int
    settings: str = ""


CHIPS = {
    "A100": Chip("8.0", 163 * 1024, 108),
    "RTX 3090": Chip("8.6", 99 * 1024, 82),
    "L4": Chip("8.9", 99 * 1024, 58),
    "H200": Chip("9.0", 227 * 1024, 132),
    "B200": Chip("10.0", 227 * 1024, 148),
    "RTX 5090": Chip("12.0", 99 * 1024, 170, "feature_extension: ACCELERATED_FEATURES"),
}
TARGET = """
platform_name: "CUDA"
device_description_str: "NVIDIA"
dnn_version_info {{ major: 9 minor: 10 }}
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} {settings} }}
  core_count: {processors} fpus_per_core: 128 clock_rate_ghz: 1.9
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_core: {memory_of_processor}
  shared_memory_per_block_optin: {memory}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  device_memory_size: 24000000000 memory_bandwidth: 1000000000000 l2_cache_size: 52428800
}}
"""


def describe_target(chip: Chip) -> str:
    """Return the description of a chip that JAX needs to compile for it."""
    major, minor = chip.capability.split(".")
    return TARGET.format(
        major=major,
        minor=minor,
        settings=chip.settings,
        processors=chip.processors,
        memory=chip.shared_memory,
        memory_of_processor=chip.shared_memory + 1024,
    )


def list_cases(chips: list[str]) -> list[str]:
    """Return the names "chip/shape/case" of all cases on the given chips."""
    from experiments.bench.cases import CASES

    fused = [name for name, case in CASES.items() if case.implementation in (None, "pallas")]
    pairs = [("mid", name) for name in fused] + [("wide", name) for name in WIDE_CASES]
    return [f"{chip}/{shape}/{case}" for shape, case in pairs for chip in chips]


def lower_case(name: str) -> Any:
    """Lower the forward and backward pass of a case with the portable kernels for its chip.

    Args:
      name: Name of the case: "chip/shape/case".
    """
    import jax
    from jax.experimental import topologies

    from distattn_jax.attention import devices
    from experiments.bench.cases import CASES, draw_operands
    from experiments.bench.programs import make_both
    from experiments.bench.shapes import SHAPES

    chip_name, shape, case_name = name.split("/")
    chip = CHIPS[chip_name]
    case = CASES[case_name]._replace(implementation="pallas_portable")
    target = describe_target(chip)
    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=target)
    device = topology.devices[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    operands = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(lambda: draw_operands(SHAPES[shape], case, "bfloat16")),
    )
    machine = devices.Machine(
        "cuda", [float(chip.capability)], [], devices.local_machine().jax_version
    )
    # Mosaic GPU generates instructions for the default device.
    with jax.default_device(device), devices.assumed(machine):
        return jax.jit(make_both(case)).trace(operands).lower(lowering_platforms=("cuda",))


def compile_case(name: str, folder: Path) -> dict[str, Any]:
    """Compile one case, and return its status and the numbers that the compiler reports.

    Args:
      name: Name of the case.
      folder: Folder to which the compiler writes its reports.
    """
    try:
        lowered = lower_case(name)
    except ValueError as error:  # `attention` explains why it has no kernel.
        if "does not support this call" not in str(error):
            raise
        return {"status": "no kernel", "message": str(error)[:LONGEST_MESSAGE]}
    start = time.perf_counter()
    memory = lowered.compile().memory_analysis()
    return {
        "status": "compiled",
        "compile_seconds": time.perf_counter() - start,
        "temporary_bytes": memory.temp_size_in_bytes,
        "kernels": read_reports(folder),
    }


def read_reports(folder: Path) -> dict[str, dict[str, int]]:
    """Return the registers, spilled bytes and bytes of shared memory of each kernel, by name."""
    kernels = {}
    for path in sorted(folder.glob("*.ptxas")):
        kernel, report = path.stem.rpartition("_")[0], path.read_text()
        # The numbers at the ends of the names differ: Pallas lowers in another order.
        (resources,) = (each.read_text() for each in folder.glob(f"{kernel}_*.resources.txt"))
        spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
        kernels[kernel] = {
            "registers": int(re.findall(r"Used (\d+) registers", report)[0]),
            "spilled_bytes": sum(map(int, spills)),
            "shared_bytes": int(re.findall(r"smem_scratch_bytes=(\d+)", resources)[0]),
        }
    return kernels


def compile_in_process(name: str) -> dict[str, Any]:
    """Call `compile_case` in a new process, and return the result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "experiments.bench.gpu_compile", "--case", name]
        process = subprocess.run(
            [*command, "--dump", folder],
            env={**os.environ, **VARIABLES, "MOSAIC_GPU_DUMP_TO": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if process.returncode:
        return {"status": "failed", "message": process.stderr[-LONGEST_MESSAGE:]}
    return json.loads(process.stdout.splitlines()[-1])


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
    parser.add_argument("--case", help="compile one case, and print its result as JSON")
    parser.add_argument("--dump", type=Path, help="folder of the compiler's reports")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(compile_case(options.case, options.dump)))
        return
    if options.chips:
        names = list_cases(options.chips)
        compile_all(names, options.output, options.processes, again=options.again)
    if options.output == RESULTS:
        text = gpu_table.format_page(read_cases(options.output), CHIPS)
        update_results_page("gpu", text, PAGE)


if __name__ == "__main__":
    main()
