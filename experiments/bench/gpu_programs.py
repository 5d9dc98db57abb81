"""One case of `gpu_compile`: lower and compile it for a GPU that this machine does not have.

    python -m experiments.bench.gpu_programs "A100/mid/vanilla"   # prints the compiler's reports

`gpu_compile` runs this command for each case. This module imports little, because each process
imports it again.
"""

import json
import os
import sys
import time
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from distattn_jax.attention import devices
from experiments.bench.cases import CASES, draw_operands
from experiments.bench.programs import make_both
from experiments.bench.shapes import SHAPES

# The compiler prints registers and spilled bytes to the standard output.
VARIABLES = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    "MOSAIC_GPU_DUMP_PTXAS": "1",
}
FOLDER_VARIABLE = "MOSAIC_GPU_DUMP_TO"
LONGEST_MESSAGE = 400  # characters of an error of the compiler


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


def lower_case(name: str) -> Any:
    """Lower the forward and backward pass of a case with the portable kernels for its chip.

    Args:
      name: Name of the case: "chip/shape/case".
    """
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


def compile_case(name: str) -> dict[str, Any]:
    """Compile one case, and return its status, seconds to compile and temporary memory.

    Args:
      name: Name of the case.
    """
    try:
        lowered = lower_case(name)
    except ValueError as error:  # `attention` explains why it has no kernel.
        if "does not support this call" not in str(error):
            raise
        return {"status": "no kernel", "message": str(error)[:LONGEST_MESSAGE]}
    # Shared memory has been reported. Writing the code after each pass would take half of the time.
    os.environ.pop(FOLDER_VARIABLE, None)
    start = time.perf_counter()
    memory = lowered.compile().memory_analysis()
    return {
        "status": "compiled",
        "compile_seconds": time.perf_counter() - start,
        "temporary_bytes": memory.temp_size_in_bytes,
    }


if __name__ == "__main__":
    print(json.dumps(compile_case(sys.argv[1])))
