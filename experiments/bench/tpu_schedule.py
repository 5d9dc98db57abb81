"""Count the bundles of the loops of a TPU kernel, in the schedules that the compiler writes.

A bundle is one instruction of a TPU, which starts several operations. Each section of tiles is one
loop of a kernel, and one iteration of this loop computes one tile. The bundles of one iteration
contain neither stalls nor the time of copies, so that their number is no measurement of speed.
"""

import re
from pathlib import Path
from typing import Any

KERNELS = ("forward", "query_gradient", "key_gradient", "received", "attention_given", "splash")
BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(LB)?[A-Z ]*:\s*(>*)\s*\{")


def count_bundles(schedule: str) -> list[int]:
    """Return the number of bundles in each innermost loop, from a schedule of the compiler.

    Each line of a schedule is one bundle. It has one ">" for each loop that contains the bundle,
    and a loop begins at the label LB. Empty bundles have no ">": they belong to the loop before.
    """
    loops: list[dict[str, Any]] = []
    open_loops: list[dict[str, Any]] = []
    for line in schedule.splitlines():
        match = BUNDLE.match(line)
        if match is None:
            continue
        is_start, depth = match[1] is not None, len(match[2])
        while open_loops and 0 < depth < open_loops[-1]["depth"] + is_start:
            open_loops.pop()
        if is_start:
            for loop in open_loops:
                loop["is_innermost"] = False
            loops.append({"depth": depth, "bundles": 0, "is_innermost": True})
            open_loops.append(loops[-1])
        if open_loops:
            open_loops[-1]["bundles"] += 1
    return [loop["bundles"] for loop in loops if loop["is_innermost"]]


def read_schedules(folder: Path) -> dict[str, list[int]]:
    """Return the bundles of the innermost loops of each kernel, from the dump of the compiler."""
    counts = {}
    for path in sorted(folder.glob("*-final_bundles.txt")):
        match = re.fullmatch(r"\d+-(.+)-\d+-final_bundles\.txt", path.name)
        if match and match[1].startswith(KERNELS):
            counts[match[1]] = count_bundles(path.read_text())
    return counts
