"""Markdown tables of the numbers that the TPU compiler reports: bundles, memory, seconds."""

import collections
import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.bench import tpu_cases
from experiments.bench.tpu_programs import OPTIONS, Case
from experiments.papers.formatting import NOT_RUN_SENTENCE, markdown_table

KERNELS = {  # name of our kernel: title, and beginning of the name of splash attention's kernel
    "forward": ("forward", "splash_mha_fwd"),
    "query_gradient": ("dq", "splash_mha_dq"),
    "key_gradient": ("dk, dv", "splash_mha_dkv"),
}
BUNDLE_COLUMNS = [
    f"{title}, {chip}" for chip in tpu_cases.MAIN_GENERATIONS for title, _ in KERNELS.values()
]
NEAR, FAR = ("plain",), ("far",)
Results = Mapping[str, Mapping[str, Any]]


def name_tile_kind(tile_kind: Any) -> str:
    """Return a name for a kind of tile, such as "plain", "far" or "masked far"."""
    name = "zero" if tile_kind.is_zero else "far" if tile_kind.is_far else "plain"
    return f"masked {name}" if tile_kind.is_masked else name


def describe(result: Mapping[str, Any]) -> str:
    """Describe the result of one case in one line of text."""
    if result["status"] != "compiled":
        return f"{result['status']}: {result['message']}"
    text = f"compiled in {result['compile_seconds']} s"
    text += f", temporary memory {_mebibytes(result):.1f} MiB"
    for kernel, loops in result["bundles"].items():
        text += f", {kernel} {'/'.join(map(str, loops))}"
    return text


def find_bundles(result: Mapping[str, Any], kernel: str, tile_kinds: Iterable[str]) -> int | None:
    """Return the number of bundles that a kernel needs for one tile, or None if it is unknown.

    A bundle is one TPU instruction. If the kernel has loops for several of the kinds of tiles,
    return the largest number.

    Args:
      result: Result of a case of attention.
      kernel: Name of the kernel.
      tile_kinds: Names of kinds of tiles, see `name_tile_kind`.
    """
    names = result.get("sections", {}).get(kernel, [])
    loops = _find_loops(result, kernel)
    if len(loops) != len(names):
        return None
    found = [bundles for name, bundles in zip(names, loops, strict=True) if name in tile_kinds]
    return max(found, default=None)


def _find_loops(result: Mapping[str, Any], kernel: str) -> Sequence[int]:
    """Return the number of bundles of each loop of a kernel, or [] if the kernel is missing.

    In the dump of the compiler, the name of a kernel may have a suffix.
    """
    bundles = result.get("bundles", {})
    return next((bundles[name] for name in bundles if name.startswith(kernel)), [])


def format_page(cases: Results) -> str:
    """Return the part of `docs/tpu.md` that has all tables except for training."""
    sections = (
        ("Scheduled bundles per tile", format_schedule, tpu_cases.schedule_cases()),
        ("Temporary memory", format_memory, tpu_cases.memory_cases()),
        ("Compiled cases", format_compilation, tpu_cases.compilation_cases()),
        ("Sizes of tiles", format_tiles, tpu_cases.tile_cases()),
    )
    return "\n".join(
        f"### {title}\n\n{make_table(cases)}\n\n{_format_versions(cases, listed)}\n"
        for title, make_table, listed in sections
    )


def _format_versions(cases: Results, listed: Sequence[Case]) -> str:
    """Return a sentence about the versions of JAX and libtpu that compiled the cases of a table.

    The sentence has the number of cases that each version compiled.
    """
    found = [cases[case.name]["versions"] for case in listed if case.name in cases]
    counts = collections.Counter(
        ", ".join(f"{name} {version}" for name, version in versions.items()) for versions in found
    )
    texts = [f"{count} with {versions}" for versions, count in counts.items()]
    missing = len(listed) - len(found)
    texts += [f"{missing} not yet"] if missing else []
    return f"Cases tried: {'; '.join(texts)}."


def format_schedule(cases: Results) -> str:
    """Return a Markdown table of the bundles (TPU instructions) that each kernel needs per tile.

    A cell also has the ratio to splash attention.
    """
    rows = []
    by_program: dict[str, list[Case]] = {}
    for case in tpu_cases.schedule_cases():
        by_program.setdefault(case.program, []).append(case)
    for program, listed in by_program.items():
        groups: dict[str, tuple[str, ...]] = {"": NEAR}
        if program not in ("splash", "dot_product", "adapted"):
            groups = {", near": NEAR, ", far": FAR}
        for suffix, tile_kinds in groups.items():
            cells = _format_bundles(cases, listed, tile_kinds)
            if set(cells) != {"-"}:
                rows.append([program.replace("_", " ") + suffix, *cells])
    return markdown_table(["tile", *BUNDLE_COLUMNS], rows)


def _format_bundles(cases: Results, listed: Sequence[Case], tile_kinds: Sequence[str]) -> list[str]:
    """Return the cells of one row of the table of bundles, one for each TPU and kernel.

    A cell has the bundles per tile, and in parentheses the ratio to splash attention.

    Args:
      cases: Dict from the name of each case to its result.
      listed: Cases of one program, in the order of the generations in `BUNDLE_COLUMNS`.
      tile_kinds: Names of kinds of tiles.
    """
    cells = []
    for case, kernel in itertools.product(listed, KERNELS):
        result = cases.get(case.name, {})
        splash = cases.get(dataclasses.replace(case, program="splash").name, {})
        found = _count_bundles(result, case.program, kernel, tile_kinds)
        reference = _count_bundles(splash, "splash", kernel, tile_kinds)
        text = "-" if found is None else f"{found:.0f}"
        if found and reference and case.program != "splash":
            is_comparable = result["versions"] == splash["versions"]
            text += f" ({found / reference:.2f})" if is_comparable else ""
        cells.append(text)
    return cells


def _count_bundles(
    result: Mapping[str, Any], program: str, kernel: str, tile_kinds: Sequence[str]
) -> float | None:
    """Return the bundles that a kernel of a program needs for one tile of one head.

    Return None if the number is unknown.
    """
    if program == "splash":
        return next(iter(_find_loops(result, KERNELS[kernel][1])), None)
    return find_bundles(result, kernel, tile_kinds)


def format_memory(cases: Results) -> str:
    """Return a Markdown table of the temporary memory of each program, in MiB.

    A cell also has the ratio to splash attention.
    """
    memory_cases = tpu_cases.memory_cases()
    found = {(c.program, c.generation, c.sizes): cases.get(c.name, {}) for c in memory_cases}
    columns = list(dict.fromkeys((case.generation, case.sizes) for case in memory_cases))
    rows = []
    for program in dict.fromkeys(case.program for case in memory_cases):
        cells = [_format_memory(found[program, *at], found["splash", *at]) for at in columns]
        if set(cells) != {"-"}:
            rows.append([program.replace("_", " "), *cells])
    return markdown_table(["MiB", *(f"{sizes}, {chip}" for chip, sizes in columns)], rows)


def _format_memory(result: Mapping[str, Any], splash: Mapping[str, Any]) -> str:
    """Return the temporary MiB of a case, with the ratio to splash attention in parentheses."""
    if result.get("status") != "compiled":
        return result.get("status", "-")
    text = f"{_mebibytes(result):.0f}"
    if result is splash or result["versions"] != splash.get("versions"):
        return text
    return f"{text} ({_mebibytes(result) / _mebibytes(splash):.2f})"


def _mebibytes(result: Mapping[str, Any]) -> float:
    return result["temporary_bytes"] / 2**20


def format_training(cases: Results) -> str:
    """Return a sentence on each compiled training step: memory per chip, and compile time."""
    lines = []
    for case in tpu_cases.training_cases():
        result = cases.get(case.name, {"status": "not run"})
        mesh = "{} x {}".format(*case.mesh)
        start = f"- {case.generation}, mesh {mesh} (data x model), {case.sizes.batch} texts of "
        start += f"{case.sizes.length} tokens: "
        if result["status"] != "compiled":
            lines.append(f"{start}{result['status']}.")
            continue
        gibibytes = {
            name: result[f"{name}_bytes"] / 2**30 for name in ("argument", "temporary", "output")
        }
        # The new state takes the memory of the old state.
        total = sum(gibibytes.values()) - result["alias_bytes"] / 2**30
        lines.append(
            f"{start}{total:.2f} GiB per chip ({gibibytes['argument']:.2f} GiB for the model, the "
            f"optimizer and the batch, {gibibytes['temporary']:.2f} GiB temporary); traced and "
            f"lowered in {result['lower_seconds']:.0f} s, compiled in "
            f"{result['compile_seconds']:.0f} s."
        )
    return "\n".join(lines) + "\n"


def format_sequence(cases: Results) -> str:
    """Return a Markdown table of the memory of a device, and of the permutes of a ring.

    A cell of memory also has the ratio to one device with the whole text.
    """
    rows = []
    whole: dict[tuple[str, Any], float] = {}  # MiB of one device
    for case in tpu_cases.sequence_cases():
        result = cases.get(case.name, {})
        cells = [result.get("status", "-"), "-", "-"]
        if result.get("status") == "compiled":
            parts = [result[f"{name}_bytes"] for name in ("argument", "output", "temporary")]
            mebibytes = sum(parts) / 2**20
            if case.sequence == 1:
                whole[case.program, case.sizes] = mebibytes
            reference = whole.get((case.program, case.sizes), mebibytes)
            ratio = f" ({mebibytes / reference:.2f})" if reference != mebibytes else ""
            cells = [f"{mebibytes:.1f}{ratio}", f"{parts[2] / 2**20:.1f}", "-"]
            permutes = result.get("permutes")
            if permutes:
                total = permutes["asynchronous"] + permutes["synchronous"]
                cells[2] = "{asynchronous} of {total}, {enclosing}".format(total=total, **permutes)
        suffix = " distance aware" if case.program in OPTIONS else ""
        name = case.program.replace("_", " ") + suffix
        rows.append([f"{name}, {case.sizes.length:,} tokens", str(case.sequence), *cells])
    header = ["call and gradients", "devices", "MiB per device", "of these temporary"]
    return markdown_table([*header, "permutes: asynchronous, around a kernel"], rows) + "\n"


def format_compilation(cases: Results) -> str:
    """Return a Markdown table with one row per program: cases, and median seconds to compile."""
    by_program: dict[str, list[Case]] = {}
    for case in tpu_cases.compilation_cases():
        if case.name in cases:
            by_program.setdefault(case.program, []).append(case)
    rows = []
    for program, tried in by_program.items():
        statuses = {case: cases[case.name]["status"] for case in tried}
        others = [f"{_describe_place(c)}: {s}" for c, s in statuses.items() if s != "compiled"]
        found = [cases[c.name]["compile_seconds"] for c, s in statuses.items() if s == "compiled"]
        seconds = [one for one in found if one is not None]
        median = f"{statistics.median(seconds):.1f}" if seconds else "-"
        count = f"{len(found)} of {len(tried)}"
        rows.append([program.replace("_", " "), count, "; ".join(others) or "-", median])
    header = ["program", "compiled", "not compiled", "seconds to compile, median"]
    return markdown_table(header, rows)


def _describe_place(case: Case) -> str:
    """Describe TPU, length, head width and mesh of a case, such as "v5e L2048 H64, mesh 2 x 2"."""
    mesh = "" if case.mesh == (1, 1) else ", mesh {} x {}".format(*case.mesh)
    return f"{case.generation} L{case.sizes.length} H{case.sizes.width}{mesh}"


def format_tiles(cases: Results) -> str:
    """Return a Markdown table of the bundles (TPU instructions) that tiles of each size need.

    A number is the bundles per 1024 entries of a tile, summed over the three kernels. The lowest
    number of a row is bold. The tiles are plain: not masked, and without a constant distance
    function.
    """
    by_row: dict[str, dict[tuple[int, int], float]] = {}
    for case in tpu_cases.tile_cases():
        figure = bundles_per_entry(cases.get(case.name, {}), case)
        if figure is not None and case.tile is not None:
            name = f"{case.program.replace('_', ' ')}, {case.generation}, H{case.sizes.width}"
            by_row.setdefault(name, {})[case.tile] = 1024 * figure
    if not by_row:
        return NOT_RUN_SENTENCE
    tiles = sorted({tile for figures in by_row.values() for tile in figures})
    rows = []
    for name, figures in by_row.items():
        texts = {tile: f"{figure:.2f}" for tile, figure in figures.items()}
        if len(figures) > 1:
            best = min(figures, key=lambda tile: figures[tile])
            texts[best] = f"**{texts[best]}**"
        rows.append([name, *(texts.get(tile, "-") for tile in tiles)])
    return markdown_table(["queries x keys", *("{} x {}".format(*tile) for tile in tiles)], rows)


def bundles_per_entry(result: Mapping[str, Any], case: Case) -> float | None:
    """Return the bundles per entry of a plain tile, summed over kernels, or None if unknown."""
    found = [find_bundles(result, kernel, NEAR) for kernel in KERNELS]
    if case.tile is None or None in found:
        return None
    return sum(bundles for bundles in found if bundles) / (case.tile[0] * case.tile[1])
