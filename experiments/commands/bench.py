"""Time attention for several cases and shapes, relative to cuDNN's dot-product attention."""

import contextlib
import dataclasses
import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from distattn_jax.train.options import Options, option, parse_options, result_options
from distattn_jax.train.run import environment
from experiments.bench import pytorch
from experiments.bench.cases import (
    ALL_CASES,
    BY_HAND,
    BY_HAND_CASES,
    DEFAULT_CASES,
    REFERENCE_CASE,
)
from experiments.bench.measure import WRONG, Settings, measure_shape
from experiments.bench.programs import FAILED
from experiments.bench.results import add_rows, check_same_setup
from experiments.bench.shapes import CPU_SHAPES, DEFAULT_SHAPES, SHAPES, Shape, describe_shape
from experiments.bench.table import (
    Row,
    add_rates,
    format_comparison,
    format_header,
    format_ratios,
    format_row,
    read_rows,
    shorten_message,
)
from experiments.bench.variants import GLOBAL, LOCAL, V
from experiments.papers.stored_results import read_results, write_results


@dataclasses.dataclass(frozen=True)
class Bench(Options):
    """Options of the benchmark.

    On a CPU, each shape is replaced by a smaller shape, and cases that need a GPU are not timed.
    """

    shapes: tuple[str, ...] = option(DEFAULT_SHAPES, "sizes of the inputs", choices=tuple(SHAPES))
    cases: tuple[str, ...] = option(
        DEFAULT_CASES,
        f"cases to time; the reference {REFERENCE_CASE} is always timed first; {BY_HAND} means all "
        f"{len(BY_HAND_CASES)} cases that compare xla with attention written by hand",
        choices=(*ALL_CASES, BY_HAND),
    )
    dtype: str = option(
        "auto",
        "dtype of the inputs; auto means float32 on a CPU and bfloat16 elsewhere",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    repeats: int = option(5, "number of timings; the median is reported")
    peers: bool = option(False, "whether to time the same cases with PyTorch, after all others")
    processes: int = option(
        0,
        "processes that compile; 0: one for each core if there is a GPU, otherwise 1; with 1, no "
        "other process is started",
    )
    limit: float = option(0.0, "seconds after which no further case starts; 0: no limit")
    output: str = option(
        "", "folder for bench.json and bench.png; empty: write no files", changes_result=False
    )
    add: bool = option(False, "whether to keep the rows of other shapes and cases in bench.json")
    draw: str = option(
        "", "path of a bench.json to print and draw again, without timing", changes_result=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "repeats")
        self.require_at_least(0, "processes", "limit")
        if self.add and not self.output:
            raise ValueError("add must be used with output, the folder of the bench.json.")

    @property
    def timed_cases(self) -> list[str]:
        """Names of the cases to time. The name `by_hand` is replaced by the names of its cases."""
        expanded = ([*BY_HAND_CASES] if case == BY_HAND else [case] for case in self.cases)
        return list(dict.fromkeys(itertools.chain(*expanded)))

    @property
    def timed_peers(self) -> list[str]:
        """Names of the functions of PyTorch to time."""
        return pytorch.select_peers((REFERENCE_CASE, *self.timed_cases)) if self.peers else []


def main(arguments: Sequence[str]) -> None:
    """Run `bench [--field value ...]`: print errors, compile time, times, rates and memory."""
    started = time.monotonic()
    # Each process must leave the memory of the GPU that it does not need to the others.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    bench = parse_options(Bench(), list(arguments), program="python -m experiments bench")
    if bench.draw:
        draw_again(epath.Path(bench.draw))
        return
    absence = pytorch.explain_absence() if bench.peers else ""
    if absence:
        print(f"PyTorch is not timed: {absence}.")
        bench = dataclasses.replace(bench, peers=False)
    setup = describe_setup(bench)
    stored = read_earlier_runs(bench, setup) if bench.add else None
    deadline = started + bench.limit if bench.limit else math.inf
    rows: list[Row] = []
    for row in print_table(setup, measure_all(bench, setup, deadline)):
        rows.append(row)
        if bench.output:  # Write each row at once: a killed process loses only its last row.
            write_results(add_rows(setup, rows, stored), bench.output)
    if bench.output and rows:
        content = add_rows(setup, rows, stored)
        print(write_results(content, bench.output))
        draw_figure(content, read_rows(content), epath.Path(bench.output))
    report_left_out(bench, rows)
    bad = [row for row in rows if row.message.startswith((WRONG, FAILED))]
    if bad:
        names = ", ".join(f"{row.case} at {row.shape}" for row in bad)
        raise SystemExit(f"wrong or failed, and not timed: {names}")


def draw_again(path: epath.Path) -> None:
    """Print the tables of a stored benchmark, and save its plot in the same folder."""
    content = read_results(path.stem, path.parent)
    if content is None:
        raise ValueError(f"--draw must be an existing bench.json; got {path}.")
    with _explain_wrong_file(path):
        rows = read_rows(content)
    rows = list(print_table(content, rows))
    titles = {
        name: " ".join(describe_shape(name, Shape(**sizes)))
        for name, sizes in content["shapes"].items()
    }
    print(f"\n{format_ratios(rows, titles)}\n")
    if any(row.implementation == BY_HAND for row in rows):
        for measure in ("forward_ms", "both_ms", "temporary_mib"):
            print(f"{measure}\n\n{format_comparison(rows, titles, measure)}\n")
    draw_figure(content, rows, path.parent)


def describe_setup(bench: Bench) -> dict[str, Any]:
    """Return a dict with the environment, dtype, shapes, w, v and options of a benchmark.

    w is the distance weight of a head, and v is the shape of its sigmoid. The options of this run
    are the only entry of the list "runs". Options that are paths are left out. `add_rows` appends
    this entry to the list of earlier runs.
    """
    on_cpu = jax.default_backend() == "cpu"
    shapes = CPU_SHAPES if on_cpu else SHAPES
    automatic = "float32" if on_cpu else "bfloat16"
    described = environment()
    run = {name: described[name] for name in ("time", "commit")}
    run |= {"torch": pytorch.find_version()} if bench.peers else {}
    return {
        "experiment": "bench",
        "environment": described,
        "dtype": automatic if bench.dtype == "auto" else bench.dtype,
        "shapes": {name: shapes[name]._asdict() for name in SHAPES if name in bench.shapes},
        "w": {"local": LOCAL, "global": GLOBAL},
        "v": V,
        "runs": [run | {"config": result_options(bench)}],
    }


def read_earlier_runs(bench: Bench, setup: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of the existing bench.json, or None if there is no such file.

    Raise a ValueError if the rows of this run must not be added to the file, e.g. because it has
    times of another device.
    """
    folder = epath.Path(bench.output)
    stored = read_results(setup["experiment"], folder)
    if stored is None:
        return None
    path = folder / f"{setup['experiment']}.json"
    with _explain_wrong_file(path):
        read_rows(stored)
        check_same_setup(setup, stored, path)
    return stored


@contextlib.contextmanager
def _explain_wrong_file(path: epath.Path) -> Iterator[None]:
    """Convert errors in the `with` block into a ValueError: `bench` did not write this file."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is not what bench writes, {error!r}.") from None


def measure_all(bench: Bench, setup: Mapping[str, Any], deadline: float) -> Iterator[Row]:
    """Yield a row for each case at each shape. Shapes come in the order of the options.

    PyTorch is timed last, because a CUDA error of PyTorch could make every later case fail.

    Args:
      bench: Options of the benchmark.
      setup: Shapes and dtype, from `describe_setup`.
      deadline: Value of `time.monotonic()` after which no further case starts.
    """
    # A TPU belongs to one process, and the programs of a CPU compile in a moment.
    automatic = (os.cpu_count() or 1) if jax.default_backend() == "gpu" else 1
    processes = bench.processes or automatic
    settings = Settings(setup["dtype"], bench.repeats, processes, deadline)
    shapes = {name: Shape(**setup["shapes"][name]) for name in bench.shapes}
    references = {name: Row(name, REFERENCE_CASE) for name in shapes}
    for name, shape in shapes.items():
        for row in measure_shape(name, shape, bench.timed_cases, settings):
            if row.case == REFERENCE_CASE:
                references[name] = row
            yield add_rates(row, shape, references[name])
    for name, shape in shapes.items():
        for row in pytorch.measure_pytorch(bench.timed_peers, name, shape, settings):
            yield add_rates(row, shape, references[name])


def report_left_out(bench: Bench, rows: Sequence[Row]) -> None:
    """Print the cases that did not start before the time limit, and how to add them."""
    done = {(row.shape, row.case) for row in rows}
    left_out = {
        shape: [
            case for case in (*bench.timed_cases, *bench.timed_peers) if (shape, case) not in done
        ]
        for shape in bench.shapes
    }
    left_out = {shape: cases for shape, cases in left_out.items() if cases}
    if not left_out:
        return
    print(f"\nleft out, because --limit {bench.limit:g} seconds had passed:")
    for shape, cases in left_out.items():
        print(f"  {shape}: {', '.join(cases)}")
    print("Run the command again with --add true and these --shapes and --cases to add them.")


def print_table(content: Mapping[str, Any], rows: Iterable[Row]) -> Iterator[Row]:
    """Print each row of the table as soon as the row is measured, and yield it.

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
    previous = None
    for row in rows:
        if row.shape != previous:
            shape = Shape(**content["shapes"][row.shape])
            title = ", ".join(describe_shape(row.shape, shape))
            print(f"\n{title}; calls in one program: {shape.calls}")
        print(format_row(row), flush=True)
        previous = row.shape
        yield row


def draw_figure(content: Mapping[str, Any], rows: Sequence[Row], folder: epath.Path) -> None:
    """Draw the times of a forward and backward pass, and save the plot as `folder/bench.png`.

    The plot has one panel per shape. `select_common` selects the shapes and the cases.

    Args:
      content: Setup of the benchmark, from `describe_setup`.
      rows: Rows of the table.
      folder: Folder of the plot.
    """
    try:
        from distattn_jax import plot
        from experiments.bench.figure import select_common, timing_bars
    except ModuleNotFoundError as error:
        print(f"no figure: {error.name} is not installed. Use --draw where it is.")
        return
    if all(row.both_ms is None for row in rows):
        print("no figure: nothing was timed.")
        return
    relative = any(row.both_ratio is not None for row in rows)
    times: dict[str, dict[str, float | str]] = {}
    for row in rows:
        shape = Shape(**content["shapes"][row.shape])
        panel = times.setdefault("\n".join(describe_shape(row.shape, shape)), {})
        duration = row.both_ratio if relative else row.both_ms
        if duration is not None:
            panel[row.case] = duration
        elif row.message:
            panel[row.case] = shorten_message(row.message)
    unit = f"time / {REFERENCE_CASE.replace('_', ' ')}" if relative else "milliseconds"
    letters = "B: batch size, N: heads, L: length, H: width of a head"
    label = f"forward + backward, {unit}\n{letters}"
    figure = timing_bars(select_common(times), unit=label, mark_one=relative)
    path = folder / "bench.png"
    plot.save(figure, path)
    print(path)
