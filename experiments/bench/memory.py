"""Check that the programs of a benchmark case fit into the memory of a CPU.

A GPU reports an allocation that fails, and the benchmark catches the error. Linux grants memory
that it does not have, and kills the process that uses it. The memory of a program is therefore
compared with the free memory before the program runs.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import jax

from experiments.bench.programs import Programs

CONTROL_GROUP = Path("/sys/fs/cgroup")  # limits of a container


def explain_lack_of_memory(programs: Programs) -> str:
    """Return a message if programs need more memory than this CPU has, and "" otherwise."""
    if jax.default_backend() != "cpu":
        return ""
    free = find_free_memory()
    for task, program in (("the call", programs.both), ("its check", programs.expected)):
        needed = measure_program(program)
        if free is not None and needed > free:
            gib = f"{needed / 2**30:,.1f} GiB; {free / 2**30:,.1f} GiB are free"
            return f"out of memory: {task} needs {gib}"
    return ""


def measure_program(program: Any) -> int:
    """Return the bytes of the inputs, outputs and temporaries of a compiled program.

    The devices of a CPU share its memory: their bytes are added. The result is 0 if the compiler
    does not report them.
    """
    memory = program.memory_analysis()
    if memory is None:
        return 0
    shardings = jax.tree.leaves((program.input_shardings, program.output_shardings))
    devices = max(len(sharding.device_set) for sharding in shardings)
    sizes = memory.argument_size_in_bytes, memory.output_size_in_bytes, memory.temp_size_in_bytes
    return devices * sum(sizes)


def find_free_memory() -> int | None:
    """Return the bytes that a process can allocate, or None if they are unknown.

    The limit of a container counts too. Systems without /proc report only their whole memory.
    """
    sizes = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = dict(line.split(":") for line in lines)["MemAvailable"].split()[0]
        sizes.append(1024 * int(kib))
    with contextlib.suppress(OSError, ValueError, KeyError):
        limit = int((CONTROL_GROUP / "memory.max").read_text())
        lines = (CONTROL_GROUP / "memory.stat").read_text().splitlines()
        used = dict(line.split() for line in lines)["anon"]
        sizes.append(limit - int(used))
    if not sizes:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(sizes, default=None)
