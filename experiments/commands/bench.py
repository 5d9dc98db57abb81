"""Time attention for several cases and shapes, relative to cuDNN's dot-product attention."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from distattn_jax.train.options import Options, option, options_to_dict, parse_options
from distattn_jax.train.run import environment
from experiments.bench import pytorch
from experiments.bench.cases import (
    CASES,
    CPU_SHAPES,
    GLOBAL,
    LOCAL,
    REFERENCE_CASE,
    SHAPES,
    Shape,
    V,
    describe_shape,
    draw_operands,
    missing_device,
)
from experiments.bench.table import Row, add_rates, format_header, format_row, read_rows
from experiments.bench.timing import (
    compile_case,
    compute_expected,
    explain_refusal,
    is_out_of_memory,
    measure_errors,
    select_large_errors,
    time_programs,
)
from experiments.papers.stored_results import read_results, round_numbers, write_results

WRONG, FAILED = "wrong:", "failed:"  # Rows with these messages make the command fail.


@dataclasses.dataclass(frozen=True)
class Bench(Options):
    """Options of the benchmark.

    On a CPU, each shape is replaced by a smaller shape, and cases that need a GPU are not timed.
    """

    shapes: tuple[str, ...] = option(tuple(SHAPES), "sizes of the inputs", choices=tuple(SHAPES))
    cases: tuple[str, ...] = option(
        tuple(CASES),
        f"cases to time; the reference {REFERENCE_CASE} is always timed first",
        choices=tuple(CASES),
    )
    dtype: str = option(
        "auto",
        "dtype of the inputs; auto means float32 on a CPU and bfloat16 elsewhere",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    repeats: int = option(5, "number of timings; the median is reported")
    peers: bool = option(False, "whether to time PyTorch's attention too")
    output: str = option("", "folder for bench.json and bench.png; empty: write no files")
    draw: str = option("", "path of a bench.json to print and draw again, without timing")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "repeats")


def main(arguments: Sequence[str]) -> None:
    """Run `bench [--field value ...]`: print errors, compile time, times, rates and memory."""
    bench = parse_options(Bench(), list(arguments), program="python -m experiments bench")
    if bench.draw:
        path = epath.Path(bench.draw)
        stored = read_results(path.stem, path.parent)
        if stored is None:
            raise ValueError(f"--draw must be an existing bench.json; got {path}.")
        try:
            rows = read_rows(stored)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: is not what bench writes, {error!r}.") from None
        draw_figure(stored, print_table(stored, rows), path.parent)
        return
    absence = pytorch.explain_absence() if bench.peers else ""
    if absence:
        print(f"PyTorch is not timed: {absence}.")
        bench = dataclasses.replace(bench, peers=False)
    content = describe_setup(bench)
    rows = print_table(content, measure_all(bench, content))
    if bench.output:
        content["lines"] = [dataclasses.asdict(row) for row in rows]
        content = round_numbers(content)
        print(write_results(content, bench.output))
        draw_figure(content, read_rows(content), epath.Path(bench.output))
    bad = [row for row in rows if row.message.startswith((WRONG, FAILED))]
    if bad:
        names = ", ".join(f"{row.case} at {row.shape}" for row in bad)
        raise SystemExit(f"wrong or failed, and not timed: {names}")


def describe_setup(bench: Bench) -> dict[str, Any]:
    """Return a dict with the environment, options, dtype, shapes, w and v of a benchmark.

    w is the distance weight of a head, and v is the shape of its sigmoid.
    """
    on_cpu = jax.default_backend() == "cpu"
    shapes = CPU_SHAPES if on_cpu else SHAPES
    automatic = "float32" if on_cpu else "bfloat16"
    return {
        "experiment": "bench",
        "environment": environment(),
        "config": options_to_dict(bench),
        "dtype": automatic if bench.dtype == "auto" else bench.dtype,
        "shapes": {name: shapes[name]._asdict() for name in bench.shapes},
        "w": {"local": LOCAL, "global": GLOBAL},
        "v": V,
    }


def measure_all(bench: Bench, content: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each case at each shape, the reference case first.

    Args:
      bench: Options of the benchmark.
      content: Shapes and dtype, from `describe_setup`.
    """
    dtype = content["dtype"]
    for name, sizes in content["shapes"].items():
        shape = Shape(**sizes)
        cache: dict[Any, Any] = {}
        reference = measure_case(Row(name, REFERENCE_CASE), shape, dtype, bench.repeats, cache)
        yield add_rates(reference, shape, reference)
        for case in bench.cases:
            if case != REFERENCE_CASE:
                row = measure_case(Row(name, case), shape, dtype, bench.repeats, cache)
                yield add_rates(row, shape, reference)
        if bench.peers:
            for row in pytorch.measure_pytorch(name, shape, dtype, bench.repeats):
                yield add_rates(row, shape, reference)


def measure_case(row: Row, shape: Shape, dtype: str, repeats: int, cache: dict[Any, Any]) -> Row:
    """Measure one case and return its row with errors, times and memory.

    If the case cannot run or its errors are too large, the message of the row states the reason.

    Args:
      row: Row that contains only the names of the shape and the case.
      shape: Sizes of the arrays.
      dtype: Name of the dtype of the inputs.
      repeats: Number of timings, of which the median is reported.
      cache: Expected outputs and gradients by attention variant. If those of this variant are
        missing, this function computes and adds them.
    """
    case = CASES[row.case]
    device = missing_device(case)
    if device:
        return dataclasses.replace(row, message=f"needs {device}")
    try:
        operands = draw_operands(shape, case, dtype)
        reason = explain_refusal(case, operands)
        if reason:
            return dataclasses.replace(row, message=f"refused: {reason}")
        variant = (case.weights, case.received)
        if variant not in cache:
            cache[variant] = compute_expected(case, operands)
        programs = compile_case(case, operands, shape.calls)
        row = dataclasses.replace(row, errors=measure_errors(programs, operands, cache[variant]))
        large = select_large_errors(row.errors)
        if large:
            listed = ", ".join(f"{name} off by {error:.1e}" for name, error in large.items())
            return dataclasses.replace(row, message=f"{WRONG} {listed}")
        timing = time_programs(programs, operands, shape.calls, repeats)
        return dataclasses.replace(row, **timing._asdict())
    except (RuntimeError, ValueError) as error:
        message = (
            "out of memory" if is_out_of_memory(error) else f"{FAILED} {error}".splitlines()[0]
        )
        return dataclasses.replace(row, message=message)


def print_table(content: Mapping[str, Any], rows: Iterable[Row]) -> list[Row]:
    """Print each row of the table as soon as the row is measured, and return all rows.

    Args:
      content: Setup of the benchmark, from `describe_setup`.
      rows: Rows to print.
    """
    setup = content["environment"]
    print(f"{setup['device']}, JAX {setup['packages']['jax']}, {content['dtype']}")
    w = content["w"]
    print(f"local heads: w = {w['local']}, global heads: w = {w['global']}; v = {content['v']}")
    print(f"ratio: time relative to {REFERENCE_CASE} in this run, above 1 is slower\n")
    print(format_header())
    printed: list[Row] = []
    for row in rows:
        if not printed or printed[-1].shape != row.shape:
            shape = Shape(**content["shapes"][row.shape])
            title = ", ".join(describe_shape(row.shape, shape))
            print(f"\n{title}; calls in one program: {shape.calls}")
        print(format_row(row), flush=True)
        printed.append(row)
    return printed


def draw_figure(content: Mapping[str, Any], rows: Sequence[Row], folder: epath.Path) -> None:
    """Draw the times of a forward and backward pass, and save the figure as `folder/bench.png`.

    The figure has one panel per shape.

    Args:
      content: Setup of the benchmark, from `describe_setup`.
      rows: Rows of the table.
      folder: Folder of the figure.
    """
    try:
        from distattn_jax import plot
        from experiments.bench.figure import timing_bars
    except ModuleNotFoundError as error:
        print(f"no figure: {error.name} is not installed. Use --draw where it is.")
        return
    if all(row.both_ms is None for row in rows):
        print("no figure: nothing was timed.")
        return
    relative = any(row.both_ratio is not None for row in rows)
    times: dict[str, dict[str, float | None]] = {}
    for row in rows:
        shape = Shape(**content["shapes"][row.shape])
        panel = times.setdefault("\n".join(describe_shape(row.shape, shape)), {})
        panel[row.case] = row.both_ratio if relative else row.both_ms
    unit = f"time / {REFERENCE_CASE.replace('_', ' ')}" if relative else "milliseconds"
    letters = "B: batch size, N: heads, L: length, H: width of a head"
    label = f"forward + backward, {unit}\n{letters}"
    figure = timing_bars(times, unit=label, mark_one=relative)
    path = folder / "bench.png"
    plot.save(figure, path)
    print(path)
