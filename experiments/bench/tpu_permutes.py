"""Count the permutes of a compiled ring of devices, and those that travel while a kernel runs.

A permute sends an array from each device of a ring to the next one. The compiler makes it
asynchronous: it starts the permute by one instruction, and waits for it by another. If a kernel
lies between these two instructions, then the device computes while the array travels.
"""

import re
from typing import NamedTuple

COMPUTATION = re.compile(r"(?:ENTRY )?%(\S+) \(")
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = .*? ([a-z-]+)\((?:%([^\s,)]+))?")
NAME = re.compile(r"%([\w.-]+)")
KERNEL = 'custom_call_target="tpu_custom_call"'


class Permutes(NamedTuple):
    """Numbers of permutes in a program.

    Attributes:
      synchronous: Permutes for which the device waits at once.
      asynchronous: Permutes that start and end by separate instructions.
      enclosing: Asynchronous permutes that enclose a kernel.
    """

    synchronous: int
    asynchronous: int
    enclosing: int


def count_permutes(program: str) -> Permutes:
    """Count the permutes of a compiled program.

    Args:
      program: Text of the program, in which instructions have the order of their execution.
    """
    computations = _split_computations(program)
    synchronous = asynchronous = enclosing = 0
    for lines in computations.values():
        starts: dict[str, int] = {}
        for number, line in enumerate(lines):
            match = INSTRUCTION.match(line)
            name, operation, operand = match.groups() if match else ("", "", "")
            synchronous += operation == "collective-permute"
            if operation == "collective-permute-start":
                starts[name] = number
            if operation == "collective-permute-done":
                asynchronous += 1
                between = lines[starts[operand] + 1 : number]
                enclosing += any(_has_kernel(line, computations) for line in between)
    return Permutes(synchronous, asynchronous, enclosing)


def _split_computations(program: str) -> dict[str, list[str]]:
    """Return the instructions of each computation, by the name of the computation."""
    computations: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in program.splitlines():
        match = COMPUTATION.match(line)
        if match:
            lines = computations.setdefault(match[1], [])
        elif line.startswith("  "):
            lines.append(line)
    return computations


def _has_kernel(line: str, computations: dict[str, list[str]]) -> bool:
    """Return True if an instruction is a kernel, or calls a computation that has a kernel."""
    if KERNEL in line:
        return True
    called = [name for name in NAME.findall(line) if name in computations]
    return any(_has_kernel(each, computations) for name in called for each in computations[name])
