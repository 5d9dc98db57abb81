"""Markdown tables of the figures that the compiler for TPUs reports."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.bench import tpu_cases
from experiments.bench.tpu_programs import Case

KERNELS = {  # name of our kernel: title, and beginning of the name of splash attention's kernel
    "forward": ("forward", "splash_mha_fwd"),
    "query_gradient": ("dq", "splash_mha_dq"),
    "key_gradient": ("dk, dv", "splash_mha_dkv"),
}
NEAR, FAR = ("before diagonal", "after diagonal"), "far"
Results = Mapping[str, Mapping[str, Any]]


def name_section(section: Any) -> str:
    """Return a name for a section of tiles, such as "far" or "masked"."""
    side = {1: "before diagonal", 0: "plain", -1: "after diagonal"}[section.side]
    name = "zero" if section.is_zero else "far" if section.is_far else side
    return f"masked {name}" if section.is_masked else name


def describe(result: Mapping[str, Any]) -> str:
    """Return the figures of one case as one line."""
    if result["status"] != "compiled":
        return f"{result['status']}: {result['message']}"
    text = f"compiled in {result['compile_seconds']:.1f} s"
    text += f", temporary memory {_mebibytes(result):.1f} MiB"
    for kernel, loops in result["bundles"].items():
        text += f", {kernel} {'/'.join(map(str, loops))}"
    return text


def find_bundles(result: Mapping[str, Any], kernel: str, sections: Iterable[str]) -> int | None:
    """Return the bundles of one tile of a kernel, or None if the result lacks them.

    Args:
      result: Figures of a case of attention.
      kernel: Name of the kernel.
      sections: Names of sections. The result belongs to the first one that the kernel has.
    """
    names = result.get("sections", {}).get(kernel, [])
    loops = _find_loops(result, kernel)
    if len(loops) != len(names):
        return None
    by_section = dict(zip(reversed(names), reversed(loops), strict=True))
    return next((by_section[name] for name in sections if name in by_section), None)


def _find_loops(result: Mapping[str, Any], kernel: str) -> Sequence[int]:
    """Return the bundles of the loops of a kernel, whose name in the dump may have a suffix."""
    bundles = result.get("bundles", {})
    return next((bundles[name] for name in bundles if name.startswith(kernel)), [])


def format_page(content: Mapping[str, Any]) -> str:
    """Return all tables, for the page of the results."""
    cases = content["cases"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    parts = [
        f"Compiled with {versions}.",
        "### Scheduled bundles per tile",
        format_schedule(cases),
        "### Temporary memory",
        format_memory(cases),
        "### Compiled cases",
        format_compilation(cases),
        "### Sizes of tiles",
        format_tiles(cases),
    ]
    return "\n\n".join(parts) + "\n"


def format_schedule(cases: Results) -> str:
    """Return the bundles per tile of each kernel, and their ratio to splash attention."""
    rows = [
        ["tile", *(f"{title}, {chip}" for chip in ("v5e", "v6e") for title, _ in KERNELS.values())]
    ]
    programs = [case.program for case in tpu_cases.schedule_cases() if case.generation == "v5e"]
    for program in programs:
        kinds: dict[str, tuple[str, ...]] = {"": ("plain",)}
        if program not in ("splash", "dot_product", "adapted"):
            kinds = {", near": (*NEAR, "plain"), ", far": (FAR,)}
        for kind, sections in kinds.items():
            cells = [
                _format_bundles(cases, program, chip, kernel, sections)
                for chip in ("v5e", "v6e")
                for kernel in KERNELS
            ]
            if set(cells) != {"-"}:
                rows.append([program.replace("_", " ") + kind, *cells])
    return _format_table(rows)


def _format_bundles(
    cases: Results, program: str, chip: str, kernel: str, sections: Sequence[str]
) -> str:
    """Return the bundles of a tile, with the ratio to splash attention in parentheses."""
    case = next(
        case
        for case in tpu_cases.schedule_cases()
        if (case.program, case.generation) == (program, chip)
    )
    splash = cases.get(_replace_program(case, "splash").name, {})
    reference = next(iter(_find_loops(splash, KERNELS[kernel][1])), None)
    if program == "splash":
        return "-" if reference is None else str(reference)
    found = find_bundles(cases.get(case.name, {}), kernel, sections)
    if found is None:
        return "-"
    return f"{found} ({found / reference:.2f})" if reference else str(found)


def _replace_program(case: Case, program: str) -> Case:
    """Return the case of another program at the same sizes."""
    return Case(program, case.generation, case.sizes, case.tile, case.mesh)


def format_memory(cases: Results) -> str:
    """Return the temporary memory of each program, and its ratio to splash attention."""
    memory_cases = tpu_cases.memory_cases()
    columns = list(dict.fromkeys((case.generation, case.sizes) for case in memory_cases))
    rows = [["MiB", *(f"{sizes}, {generation}" for generation, sizes in columns)]]
    for program in dict.fromkeys(case.program for case in memory_cases):
        cells = []
        for generation, sizes in columns:
            found = {
                case.program: cases.get(case.name, {})
                for case in memory_cases
                if (case.generation, case.sizes) == (generation, sizes)
            }
            cells.append(_format_memory(found[program], found["splash"]))
        rows.append([program.replace("_", " "), *cells])
    return _format_table(rows)


def _format_memory(result: Mapping[str, Any], splash: Mapping[str, Any]) -> str:
    """Return the temporary MiB of a case, with the ratio to splash attention in parentheses."""
    if result.get("status") != "compiled":
        return result.get("status", "-")
    text = f"{_mebibytes(result):.0f}"
    if result is splash or splash.get("status") != "compiled":
        return text
    return f"{text} ({_mebibytes(result) / _mebibytes(splash):.2f})"


def _mebibytes(result: Mapping[str, Any]) -> float:
    return result["temporary_bytes"] / 2**20


def format_training(cases: Results) -> str:
    """Return a sentence on each compiled training step: memory per chip and seconds to compile."""
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


def format_compilation(cases: Results) -> str:
    """Return one line for each program: its compiled cases, and its seconds to compile."""
    rows = [["program", "compiled", "not compiled", "seconds to compile, median"]]
    listed = tpu_cases.compilation_cases()
    for program in dict.fromkeys(case.program for case in listed):
        found = [
            (case, cases[case.name])
            for case in listed
            if case.program == program and case.name in cases
        ]
        compiled = [result for _, result in found if result["status"] == "compiled"]
        others = [
            f"{_describe_place(case)}: {result['status']}"
            for case, result in found
            if result["status"] != "compiled"
        ]
        seconds = [result["compile_seconds"] for result in compiled]
        cells = [f"{len(compiled)} of {len(found)}", "; ".join(others) or "-"]
        cells.append(f"{statistics.median(seconds):.1f}" if seconds else "-")
        rows.append([program.replace("_", " "), *cells])
    return _format_table(rows)


def _describe_place(case: Case) -> str:
    """Return generation, length and width of a case, and its mesh."""
    mesh = "" if case.mesh == (1, 1) else ", mesh {} x {}".format(*case.mesh)
    return f"{case.generation} L{case.sizes.length} H{case.sizes.width}{mesh}"


def format_tiles(cases: Results) -> str:
    """Return the bundles per 1024 entries of each size of tiles, and mark the best of each chip.

    The bundles of one near tile of the three kernels are added. Of the dot product, these are the
    bundles of a plain tile.
    """
    tile_cases = tpu_cases.tile_cases()
    columns = list(
        dict.fromkeys((case.generation, case.program, case.sizes.width) for case in tile_cases)
    )
    names = [f"{program.replace('_', ' ')}, {chip}, H{width}" for chip, program, width in columns]
    rows = [["queries x keys", *names]]
    by_column = {
        column: {
            case.tile: bundles_per_entry(cases.get(case.name, {}), case)
            for case in tile_cases
            if (case.generation, case.program, case.sizes.width) == column
        }
        for column in columns
    }
    for tile in dict.fromkeys(case.tile for case in tile_cases if case.tile):
        cells = []
        for column in columns:
            figures = by_column[column]
            known = [figure for figure in figures.values() if figure is not None]
            figure = figures[tile]
            text = "-" if figure is None else f"{1024 * figure:.2f}"
            cells.append(f"**{text}**" if known and figure == min(known) else text)
        rows.append(["{} x {}".format(*tile), *cells])
    return _format_table(rows)


def bundles_per_entry(result: Mapping[str, Any], case: Case) -> float | None:
    """Return the bundles of the three kernels per entry of a near tile, or None if unknown."""
    found = [find_bundles(result, kernel, (*NEAR, "plain")) for kernel in KERNELS]
    if case.tile is None or None in found:
        return None
    return sum(bundles for bundles in found if bundles) / (case.tile[0] * case.tile[1])


def _format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. The first row is its header."""
    lines = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
