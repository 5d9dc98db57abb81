"""Count the bundles in the loops of a TPU kernel, from the schedules that the compiler writes.

A bundle is one instruction of a TPU. It starts several operations. The number of bundles is no
measurement of speed, because it includes neither stalls nor the time of copies.

Our kernels have one loop for each kind of tile. One iteration of a loop computes one tile and
starts the copies of the next tile. All bundles of an iteration are counted, with one exception:
most iterations skip the code that evaluates a distance function, because its result is stored. In
splash attention, one region of a larger loop computes a tile. Only the bundles of this region are
counted. They do not include the bundles that start copies.
"""

import re
from pathlib import Path
from typing import Any

KERNELS = ("forward", "query_gradient", "key_gradient", "received", "attention_given", "splash")
REGION = re.compile(r"(Start|End) region (\d+)")
BRANCH = re.compile(r"sbr\.rel \(.*?\) target = \$region(\d+)")
BRANCH_DELAY = 4
LONGEST_COPY = 64  # bundles: a shorter loop inside of a longer one only copies data
BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(LB)?[A-Z ]*:\s*(>*)\s*\{")


def count_bundles(schedule: str) -> list[int]:
    """Return the number of bundles in one iteration of each innermost loop of a schedule.

    A loop that only copies data is a part of the loop around it, and is counted once.

    Each line of a schedule is one bundle. The line has one ">" for each loop around the bundle. A
    loop begins at the label LB. An empty bundle has no ">", and belongs to the loop of the bundle
    before.
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
            loops.append({"depth": depth, "lines": [], "inner": []})
            if open_loops:
                open_loops[-1]["inner"].append(loops[-1])
            open_loops.append(loops[-1])
        if open_loops:
            open_loops[-1]["lines"].append(line)
    copies = [inner for loop in loops for inner in loop["inner"] if _is_copy(inner, loop)]
    counts = []
    for loop in loops:
        if loop in copies or any(inner not in copies for inner in loop["inner"]):
            continue
        copied = sum(len(inner["lines"]) for inner in loop["inner"])
        counts.append(_count_usual_bundles(loop["lines"]) + copied)
    return counts


def _is_copy(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Return True if a loop only copies data for the loop that contains it."""
    return not inner["inner"] and len(inner["lines"]) <= LONGEST_COPY < len(outer["lines"])


def _count_usual_bundles(lines: list[str]) -> int:
    """Return the number of bundles of an iteration in which every forward branch is taken.

    `lines` has one bundle on each line. After a branch, `BRANCH_DELAY` more bundles run before the
    jump.
    """
    is_skipped = [False] * len(lines)
    for first, line in enumerate(lines):
        for region in BRANCH.findall(line):
            label = re.compile(rf"\s*0x[0-9a-f]+ PF: .*empty region {region}\b")
            last = next((i for i in range(first, len(lines)) if label.match(lines[i])), first)
            for i in range(first + 1 + BRANCH_DELAY, last):
                is_skipped[i] = True
    return is_skipped.count(False)


def count_largest_region(schedule: str) -> int:
    """Return the number of bundles in the largest innermost region of a schedule.

    A region is a piece of code between the comments "Start region" and "End region", for example
    the body of a condition. An innermost region contains no other region.
    """
    bundles, largest = 0, 0
    open_regions: dict[str, int] = {}
    last_start = ""
    for line in schedule.splitlines():
        if BUNDLE.match(line) is None:
            continue
        for kind, number in REGION.findall(line):
            if kind == "Start":
                open_regions[number] = bundles
                last_start = number
            elif number == last_start:
                largest = max(largest, bundles + 1 - open_regions[number])
        bundles += 1
    return largest


def read_schedules(folder: Path) -> dict[str, list[int]]:
    """Return a dict from kernel name to the number of bundles in each innermost loop.

    A kernel of splash attention has a single number: the bundles of its largest region.

    Args:
      folder: Folder to which the compiler wrote its schedules.
    """
    counts = {}
    for path in sorted(folder.glob("*-final_bundles.txt")):
        match = re.fullmatch(r"\d+-(.+)-\d+-final_bundles\.txt", path.name)
        if match and match[1].startswith(KERNELS):
            schedule = path.read_text()
            is_splash = match[1].startswith("splash")
            counts[match[1]] = (
                [count_largest_region(schedule)] if is_splash else count_bundles(schedule)
            )
    return counts
