"""Markdown tables of what the GPU compiler reports: registers, spills and shared memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.papers.formatting import NOT_RUN_SENTENCE, markdown_table

Results = Mapping[str, Mapping[str, Any]]
KERNELS = {  # name of a kernel: title
    "forward": "forward",
    "query_gradient": "dq",
    "key_gradient": "dk, dv",
    "received": "received",
    "attention_given": "given",
    "position_gradient": "positions",
}
SHAPES = {"mid": "heads 64 wide", "wide": "heads 128 wide"}


def describe(result: Mapping[str, Any]) -> str:
    """Describe the result of one case in one line of text."""
    if result["status"] != "compiled":
        return f"{result['status']}: {result['message']}"
    return ", ".join(
        f"{kernel} {numbers['registers']} registers, {numbers['spilled_bytes']} bytes spilled, "
        f"{numbers['shared_bytes']} bytes shared"
        for kernel, numbers in result["kernels"].items()
    )


def format_page(cases: Results, chips: Mapping[str, Any]) -> str:
    """Return the tables of docs/gpu.md: a summary, then one table for each width of the heads.

    Args:
      cases: Result of each case, by name: "chip/shape/case".
      chips: Chips by name, in the order of the columns.
    """
    parts = [_format_summary(cases, chips)]
    for shape, title in SHAPES.items():
        names = list(dict.fromkeys(x.split("/")[2] for x in cases if x.split("/")[1] == shape))
        rows = [
            [case, *(_format_cell(cases, chip, shape, case) for chip in chips)] for case in names
        ]
        header = ["case", *(f"{chip} ({numbers.capability})" for chip, numbers in chips.items())]
        parts.append(f"### {title.capitalize()}\n\n{markdown_table(header, rows)}")
    return "\n\n".join(parts)


def _format_summary(cases: Results, chips: Mapping[str, Any]) -> str:
    """Return a table with one row per chip: cases, registers, spills and shared memory."""
    rows = []
    for chip in chips:
        results = [result for name, result in cases.items() if name.split("/")[0] == chip]
        compiled = [result for result in results if result["status"] == "compiled"]
        kernels = [kernel for result in compiled for kernel in result["kernels"].values()]
        if not kernels:
            rows.append([chip, *[NOT_RUN_SENTENCE] * 5])
            continue
        spilling = [kernel["spilled_bytes"] for kernel in kernels if kernel["spilled_bytes"]]
        rows.append(
            [
                f"{chip}, compute capability {chips[chip].capability}",
                f"{len(compiled)} of {len(results)}",
                str(len(kernels)),
                str(max(kernel["registers"] for kernel in kernels)),
                f"{len(spilling)}" + (f", at most {max(spilling)} bytes" if spilling else ""),
                f"{max(kernel['shared_bytes'] for kernel in kernels) / 1024:.0f} KiB of "
                f"{chips[chip].shared_memory // 1024}",
            ]
        )
    header = [
        *("chip", "compiled cases", "kernels", "most registers", "kernels that spill registers"),
        "most shared memory of a thread block",
    ]
    return markdown_table(header, rows)


def _format_cell(cases: Results, chip: str, shape: str, case: str) -> str:
    """Return the registers of each kernel of a case, and its spilled bytes, if any.

    The kernels are in the order of `KERNELS`.
    """
    result = cases.get(f"{chip}/{shape}/{case}")
    if result is None:
        return NOT_RUN_SENTENCE
    if result["status"] != "compiled":
        return result["status"]
    return " ".join(map(_format_kernel, _sort(result["kernels"])))


def _sort(kernels: Mapping[str, Mapping[str, int]]) -> Sequence[Mapping[str, int]]:
    return [kernels[name] for name in KERNELS if name in kernels]


def _format_kernel(numbers: Mapping[str, int]) -> str:
    spilled = numbers["spilled_bytes"]
    return f"{numbers['registers']}" + (f" (+{spilled})" if spilled else "")
