"""Compile the TPU kernels without a TPU, and store the numbers that the compiler reports.

The compiler for TPUs runs on every x86_64 machine with Linux, after `pip install '.[tpu]'`:

    python -m experiments.bench.tpu_compile --processes 8      # all cases, to experiments/results
    python -m experiments.bench.tpu_compile --groups schedule  # scheduled bundles per tile
    python -m experiments.bench.tpu_compile --groups tiles     # sizes of tiles, and the best
    python -m experiments.bench.tpu_compile --groups sequence  # rings of devices
    python -m experiments.bench.tpu_compile --groups           # only update the pages

A case is one program for one kind of TPU. Each case is compiled in its own process. Each result is
stored at once, with the versions of JAX and of the compiler. If a case has a stored result with the
current versions, it is not compiled again, unless `--again` is set. Nothing runs on a TPU. The
results are memory, scheduled bundles per tile, and seconds to compile.
"""

import argparse
import concurrent.futures
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.bench import tpu_table
from experiments.bench.tpu_cases import GROUPS, find_case
from experiments.bench.tpu_permutes import count_permutes
from experiments.bench.tpu_schedule import read_schedules
from experiments.papers.stored_results import FOLDER, round_numbers, update_results_page

RESULTS = FOLDER / "tpu.json"
PAGE = FOLDER.parent.parent / "docs" / "tpu.md"
TRAINING_PAGE = FOLDER.parent / "tpu.md"
DEVICES_PAGE = PAGE.parent / "devices.md"
PACKAGES = ("jax", "jaxlib", "libtpu")
DUMP_FLAGS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true --xla_jf_emit_annotations=true "
    "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*"
)
# The compiler must not look for a TPU of this machine.
VARIABLES = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # Otherwise only one process may load the compiler.
}
LONGEST_MESSAGE = 400  # characters of an error of the compiler


def compile_case(name: str, folder: Path) -> dict[str, Any]:
    """Compile one case, and return its status and the numbers that the compiler reports.

    Args:
      name: Name of the case.
      folder: Folder to which the compiler writes its schedules.
    """
    import jax

    from experiments.bench.tpu_programs import lower_case

    case = find_case(name)
    start = time.perf_counter()
    try:
        lowered = lower_case(case)
    except ValueError as error:  # `attention` explains why it has no kernel.
        if "does not support this call" not in str(error):
            raise
        return {"status": "no kernel", "message": str(error)[:LONGEST_MESSAGE]}
    result: dict[str, Any] = {"lower_seconds": time.perf_counter() - start}
    start = time.perf_counter()
    try:
        compiled = lowered.program.compile()
    except jax.errors.JaxRuntimeError as error:
        return result | {"status": "refused", "message": str(error)[:LONGEST_MESSAGE]}
    if case.sequence > 1:
        result["permutes"] = count_permutes(compiled.as_text())._asdict()
    memory = compiled.memory_analysis()
    return result | {
        "status": "compiled",
        "compile_seconds": time.perf_counter() - start,
        "temporary_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "alias_bytes": memory.alias_size_in_bytes,
        "bundles": read_schedules(folder),
        "sections": {
            kernel: [tpu_table.name_tile_kind(tile_kind) for tile_kind in tile_kinds]
            for kernel, tile_kinds in lowered.tile_kinds.items()
        },
    }


def compile_in_process(name: str, deadline: float) -> dict[str, Any]:
    """Call `compile_case` in a new process, and return the result.

    Args:
      name: Name of the case.
      deadline: Value of `time.monotonic()` at which the process is stopped.
    """
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        return {"status": "not run", "message": "the time limit was reached"}
    with tempfile.TemporaryDirectory() as folder:
        flags = os.environ.get("LIBTPU_INIT_ARGS", "")
        if find_case(name).tile is not None:  # Writing the schedules takes longer than compiling.
            flags = f"{flags} {DUMP_FLAGS.format(folder)}"
        command = [sys.executable, "-m", "experiments.bench.tpu_compile", "--case", name]
        try:
            process = subprocess.run(
                [*command, "--dump", folder],
                env={**os.environ, **VARIABLES, "LIBTPU_INIT_ARGS": flags},
                capture_output=True,
                text=True,
                timeout=remaining,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"status": "not run", "message": "the time limit was reached"}
    if process.returncode:
        return {"status": "failed", "message": process.stderr[-LONGEST_MESSAGE:]}
    return json.loads(process.stdout.splitlines()[-1])


def compile_all(
    names: list[str], path: Path, processes: int, seconds: float, *, again: bool = False
) -> None:
    """Compile the cases that have no stored result with the current versions, and store results.

    Args:
      names: Names of the cases.
      path: File of the results. It may contain results of earlier runs.
      processes: Number of cases that are compiled at the same time.
      seconds: Time limit of the run.
      again: If True, compile all cases.
    """
    versions = find_versions()
    cases = read_cases(path) if path.exists() else {}
    missing = [
        name
        for name in dict.fromkeys(names)
        if again or cases.get(name, {}).get("versions") != versions
    ]
    deadline = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
        pending = {pool.submit(compile_in_process, name, deadline): name for name in missing}
        for count, future in enumerate(concurrent.futures.as_completed(pending), 1):
            name, result = pending[future], future.result()
            print(f"{count}/{len(missing)} {name}: {tpu_table.describe(result)}", flush=True)
            if result["status"] not in ("not run", "failed"):
                cases[name] = round_numbers(result | {"versions": versions})
                write_cases(cases, path)


def find_versions() -> dict[str, str]:
    """Return the version of each package that determines the compiled programs."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def read_cases(path: Path) -> dict[str, dict[str, Any]]:
    """Read the file of results: a dict from the name of each case to its result."""
    return json.loads(path.read_text())


def write_cases(cases: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write the results of all cases, with one line per case."""
    lines = [f" {json.dumps(name)}: {json.dumps(cases[name])}" for name in sorted(cases)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> None:
    """Compile the cases of the chosen groups, then update the pages that have their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    groups = tuple(GROUPS)
    parser.add_argument("--groups", nargs="*", choices=groups, default=groups)
    parser.add_argument("--processes", type=int, default=4, help="cases compiled at a time")
    parser.add_argument("--seconds", type=float, default=36000.0, help="time limit of the run")
    parser.add_argument("--again", action="store_true", help="also compile stored cases")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--case", help="compile one case, and print its result as JSON")
    parser.add_argument("--dump", type=Path, help="folder of the compiler's schedules")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(compile_case(options.case, options.dump)))
        return
    names = [case.name for group in options.groups for case in GROUPS[group]()]
    if names:  # Without a group, only the page is written, which needs no compiler.
        compile_all(names, options.output, options.processes, options.seconds, again=options.again)
    cases = read_cases(options.output)
    print(tpu_table.format_tiles(cases))
    if options.output == RESULTS:
        update_results_page("tpu", tpu_table.format_page(cases), PAGE)
        update_results_page("tpu_training", tpu_table.format_training(cases), TRAINING_PAGE)
        update_results_page("tpu_sequence", tpu_table.format_sequence(cases), DEVICES_PAGE)


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Formatter that keeps the lines of the description and prints the defaults of the options."""


if __name__ == "__main__":
    main()
