"""Time attention for several cases and shapes, relative to dot-product attention.

Named shapes (`--shapes`) make the table of docs/kernels.md, relative to cuDNN. A user's own shapes
(`--shape`) are timed on any device, relative to the baseline that the device has.
"""

import contextlib
import dataclasses
import itertools
import math
import operator
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from distattn_jax.attention import devices, fused_kernels
from distattn_jax.train.options import (
    Options,
    list_set_options,
    option,
    parse_options,
    result_options,
)
from distattn_jax.train.run import environment
from experiments.bench import pytorch
from experiments.bench.cases import (
    ALL_CASES,
    BASELINES,
    BY_HAND,
    BY_HAND_CASES,
    CHECK_CASES,
    DEFAULT_CASES,
    DEVICES,
    FORMS,
    OWN_SHAPE_CASES,
    REFERENCE_CASE,
    TIMED_BASELINES,
    missing_device,
)
from experiments.bench.measure import WRONG, Settings, measure_shape
from experiments.bench.programs import FAILED
from experiments.bench.random_calls import DTYPES, RandomCall, check_random_calls, draw_call
from experiments.bench.results import add_rows, check_same_setup
from experiments.bench.shapes import (
    CHECK_SHAPES,
    CPU_SHAPES,
    DEFAULT_SHAPES,
    SHAPES,
    Shape,
    choose_calls,
    describe_shape,
    name_shape,
    parse_shape,
)
from experiments.bench.table import (
    Row,
    add_rates,
    find_baseline,
    format_comparison,
    format_header,
    format_ratios,
    format_row,
    format_short_header,
    format_short_row,
    read_rows,
    shorten_message,
)
from experiments.bench.variants import GLOBAL, LOCAL, V
from experiments.bench.workers import compile_quickly
from experiments.commands._json import keep_output_for_json, print_json
from experiments.papers.stored_results import read_results, write_results


@dataclasses.dataclass(frozen=True)
class Bench(Options):
    """Options of the benchmark.

    On a CPU, each named shape is replaced by a smaller shape, and cases that need a GPU are not
    timed. A shape of `--shape` is never replaced.
    """

    shapes: tuple[str, ...] = option(
        DEFAULT_SHAPES,
        "named sizes of the inputs; smaller sizes replace them on a CPU",
        choices=tuple(SHAPES),
    )
    shape: tuple[str, ...] = option(
        (),
        "your own sizes instead of --shapes, on any device: B,T,N,H (batch size, tokens, heads, "
        "width of a head), e.g. 8,512,16,64",
        repeatable=True,
    )
    cases: tuple[str, ...] = option(
        DEFAULT_CASES,
        f"cases to time; the reference {REFERENCE_CASE} is always timed first; {BY_HAND} means all "
        f"{len(BY_HAND_CASES)} cases that compare xla with attention written by hand; with "
        "--shape, the default is each attention variant once, and the cases that are always timed "
        f"are {' and '.join(TIMED_BASELINES)}, where they can run",
        choices=(*ALL_CASES, BY_HAND),
    )
    dtype: str = option(
        "auto",
        "dtype of the inputs; auto means float32 on a CPU and bfloat16 elsewhere",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    check: bool = option(
        False,
        "check and time all fused kernels of this GPU or TPU, at two shapes; please send us the "
        "table, because we have not run the kernels on most chips",
    )
    random_calls: int = option(
        0,
        "with --check: compare this number of random calls with float32, and repeat them for equal "
        "bits, instead of timing cases",
    )
    seed: int = option(0, "seed of --random-calls")
    first_call: int = option(
        0,
        "number of the first of the --random-calls, e.g. the first that an earlier check left out",
        changes_result=False,
    )
    forms: tuple[str, ...] = option(
        (),
        "forms of the kernels that --random-calls check; empty: all that differ on this chip",
        choices=tuple(FORMS),
        changes_result=False,
    )
    call_limit: float = option(
        120.0,
        "seconds after which one of the --random-calls is ended and is unfinished; 0: no limit; on "
        "a TPU, no call is ended",
        changes_result=False,
    )
    repeats: int = option(5, "number of timings; the median is reported")
    peers: bool = option(False, "whether to time the same cases with PyTorch, after all others")
    processes: int = option(
        0,
        "processes that compile; 0: one for each core if there is a GPU, otherwise 1; with 1, no "
        "other process is started, except for --random-calls on a GPU",
    )
    limit: float = option(
        0.0,
        "seconds after which no further case and no random call starts, and on a GPU, random calls "
        "that still run are ended; 0: no limit",
    )
    output: str = option(
        "", "folder for bench.json and bench.png; empty: write no files", changes_result=False
    )
    add: bool = option(False, "whether to keep the rows of other shapes and cases in bench.json")
    draw: str = option(
        "", "path of a bench.json to print and draw again, without timing", changes_result=False
    )
    json: bool = option(
        False, "print one JSON document instead of text, for programs", changes_result=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "repeats")
        self.require_at_least(0, "processes", "limit", "random_calls", "seed")
        self.require_at_least(0, "first_call", "call_limit")
        if self.random_calls and (not self.check or self.output or self.json):
            raise ValueError("random_calls must be used with check, without output and json.")
        for name in ("first_call", "forms", "call_limit"):
            if getattr(self, name) != getattr(Bench, name) and not self.random_calls:
                raise ValueError(f"{name} must be used with random_calls.")
        if self.add and not self.output:
            raise ValueError("add must be used with output, the folder of the bench.json.")
        if self.json and self.draw:
            raise ValueError("json cannot be used with --draw, whose file is a JSON document.")
        for text in self.shape:
            parse_shape(text)

    @property
    def timed_cases(self) -> list[str]:
        """Names of the cases to time. The name `by_hand` is replaced by the names of its cases."""
        expanded = ([*BY_HAND_CASES] if case == BY_HAND else [case] for case in self.cases)
        return list(dict.fromkeys(itertools.chain(*expanded)))

    @property
    def ordered_cases(self) -> list[str]:
        """Names of the cases in the order of their measurement: those that others need first.

        The first case is the reference case. At an own shape, the baselines come first. Those of
        `TIMED_BASELINES` that can run on this device are added.
        """
        if not self.shape:
            return list(dict.fromkeys((REFERENCE_CASE, *self.timed_cases)))
        added = (case for case in TIMED_BASELINES if not missing_device(ALL_CASES[case]))
        names = {*added, *self.timed_cases}
        others = [case for case in self.timed_cases if case not in BASELINES]
        return [*(case for case in BASELINES if case in names), *others]

    @property
    def own_shapes(self) -> dict[str, Shape]:
        """Shapes of `--shape`, by name."""
        parsed = map(parse_shape, self.shape)
        return {name_shape(shape): shape for shape in parsed}

    @property
    def shape_names(self) -> list[str]:
        """Names of the shapes to time."""
        return list(self.own_shapes or self.shapes)

    @property
    def timed_peers(self) -> list[str]:
        """Names of the functions of PyTorch to time."""
        return pytorch.select_peers((REFERENCE_CASE, *self.timed_cases)) if self.peers else []


def main(arguments: Sequence[str]) -> None:
    """Run `bench [--field value ...]`: print errors, compile time, times, rates and memory.

    With `--shape`, the table is shorter: times, their ratios to a baseline, and memory.
    """
    started = time.monotonic()
    # Each process must leave the memory of the GPU that it does not need to the others.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    bench = parse_options(Bench(), list(arguments), program="python -m experiments bench")
    if bench.draw:
        draw_again(epath.Path(bench.draw))
        return
    bench = choose_defaults(bench, list_set_options(arguments))
    if bench.random_calls:
        bad = check_calls(bench, started)
        if bad:
            raise SystemExit("\n".join(["wrong, failed, unfinished or not deterministic:", *bad]))
        return
    with keep_output_for_json(bench.json):
        content, bad = measure_and_write(bench, started)
    if bench.json:
        print_json(content)
    if bad:
        raise SystemExit(f"wrong or failed, and not timed: {', '.join(bad)}")


def choose_defaults(bench: Bench, set_options: Collection[str]) -> Bench:
    """Return the options with the default cases of own shapes or of `--check`, if there are any.

    Args:
      bench: Options of the benchmark.
      set_options: Names of the options that the user has set.
    """
    if bench.check:
        return choose_checks(bench, set_options)
    if not bench.shape:
        return bench
    if "shapes" in set_options:
        raise ValueError(
            "--shape cannot be used with --shapes: run the command once for each. With --output "
            "FOLDER --add, both runs write to the same file."
        )
    can_run = (case for case in OWN_SHAPE_CASES if not missing_device(ALL_CASES[case]))
    cases = bench.cases if "cases" in set_options else tuple(can_run)
    return dataclasses.replace(bench, shapes=(), cases=cases)


def choose_checks(bench: Bench, set_options: Collection[str]) -> Bench:
    """Return the options with the shapes and cases of `--check`, except those that are set."""
    if jax.default_backend() == "cpu":
        raise ValueError("--check must run on a machine with an NVIDIA GPU or a TPU.")
    forms = list_forms()
    cases = bench.cases if "cases" in set_options else None
    chosen = cases or tuple(name for name in CHECK_CASES if name.rpartition("_")[2] in forms)
    shapes = bench.shapes if "shapes" in set_options or bench.shape else CHECK_SHAPES
    return dataclasses.replace(bench, shapes=() if bench.shape else shapes, cases=chosen)


def list_forms() -> list[str]:
    """Return the names of the forms of the kernels that differ on this GPU or TPU."""
    capabilities = devices.local_machine().cuda_capabilities
    # The two forms of the kernels differ on Hopper GPUs alone.
    return [*FORMS] if any(map(fused_kernels.is_hopper, capabilities)) else ["fused"]


def check_calls(bench: Bench, started: float) -> list[str]:
    """Check the calls of `--random-calls`, print their results, and return the lines of bad calls.

    Args:
      bench: Options of the benchmark.
      started: Value of `time.monotonic()` at the start of the command.
    """
    calls = draw_calls(bench)
    if jax.default_backend() == "tpu":
        processes = 0  # A TPU belongs to this process.
    else:
        processes = count_processes(bench)
        compile_quickly(os.environ)
    deadline, call_limit = find_deadline(bench, started), bench.call_limit or math.inf
    return check_random_calls(calls, processes, deadline, call_limit)


def draw_calls(bench: Bench) -> list[RandomCall]:
    """Return the calls of `--random-calls`, in each form of the kernels."""
    backend = jax.default_backend()
    if "portable" in bench.forms and backend != "gpu":
        raise ValueError(f"--forms portable needs {DEVICES[FORMS['portable']]}.")
    dtypes = DTYPES[backend] if bench.dtype == "auto" else (bench.dtype,)
    # The portable form comes first: it has run less often.
    forms = dict.fromkeys(bench.forms) or reversed(list_forms())
    numbers = range(bench.first_call, bench.first_call + bench.random_calls)
    return [
        draw_call(bench.seed, number, FORMS[form], dtypes) for form in forms for number in numbers
    ]


def find_deadline(bench: Bench, started: float) -> float:
    """Return the value of `time.monotonic()` after which no further case starts."""
    return started + bench.limit if bench.limit else math.inf


def count_processes(bench: Bench) -> int:
    """Return the number of processes that compile at the same time."""
    # A TPU belongs to one process, and the programs of a CPU compile in a moment.
    automatic = (os.cpu_count() or 1) if jax.default_backend() == "gpu" else 1
    return bench.processes or automatic


def measure_and_write(bench: Bench, started: float) -> tuple[dict[str, Any], list[str]]:
    """Measure all cases, print their rows, and write them to the output folder, if there is one.

    Args:
      bench: Options of the benchmark.
      started: Value of `time.monotonic()` at the start of the command.

    Returns:
      The content of `bench.json` for this run alone, with the baseline of each shape, and a text
      for each case that was wrong or failed.
    """
    absence = pytorch.explain_absence() if bench.peers else ""
    if absence:
        print(f"PyTorch is not timed: {absence}.")
        bench = dataclasses.replace(bench, peers=False)
    setup = describe_setup(bench)
    stored = read_earlier_runs(bench, setup) if bench.add else None
    deadline = find_deadline(bench, started)
    rows: list[Row] = []
    print_rows = print_table
    if bench.shape:
        print_rows = print_short_tables
        print(f"cases: {', '.join(bench.ordered_cases)}; --cases chooses others")
    for row in print_rows(setup, measure_all(bench, setup, deadline)):
        rows.append(row)
        if bench.output:  # Write each row at once: a killed process loses only its last row.
            write_results(add_rows(setup, rows, stored), bench.output)
    if bench.output and rows:
        content = add_rows(setup, rows, stored)
        print(write_results(content, bench.output))
        draw_figure(content, read_rows(content), epath.Path(bench.output))
    report_left_out(bench, rows)
    bad = [row for row in rows if row.message.startswith((WRONG, FAILED))]
    found = {name: find_baseline(rows, name) for name in setup["shapes"]}
    baselines = {name: row.case if row else None for name, row in found.items()}
    content = add_rows(setup, rows) | {"baselines": baselines}
    return content, [f"{row.case} at {row.shape}" for row in bad]


def draw_again(path: epath.Path) -> None:
    """Print the tables of a stored benchmark, and save its plot in the same folder."""
    content = read_results(path.stem, path.parent)
    if content is None:
        raise ValueError(f"--draw must be an existing bench.json; got {path}.")
    with _explain_wrong_file(path):
        rows = read_rows(content)
    named = [row for row in rows if row.shape in SHAPES]
    own = [row for row in rows if row.shape not in SHAPES]
    if named:
        print_named_shapes(content, named)
    if own:
        list(print_short_tables(content, own))
    draw_figure(content, rows, path.parent)


def print_named_shapes(content: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Print the table of the named shapes, and the Markdown tables of ratios.

    Args:
      content: Setup of the benchmark, from `describe_setup`.
      rows: Rows of the named shapes.
    """
    rows = list(print_table(content, rows))
    titles = {
        name: " ".join(describe_shape(name, Shape(**sizes)))
        for name, sizes in content["shapes"].items()
        if name in SHAPES
    }
    print(f"\n{format_ratios(rows, titles)}\n")
    if any(row.implementation == BY_HAND for row in rows):
        for measure in ("forward_ms", "both_ms", "temporary_mib"):
            print(f"{measure}\n\n{format_comparison(rows, titles, measure)}\n")


def describe_setup(bench: Bench) -> dict[str, Any]:
    """Return a dict with the environment, dtype, shapes, w, v and options of a benchmark.

    w is the distance weight of a head, and v is the shape of its sigmoid. The options of this run
    are the only entry of the list "runs". Options that are paths or empty lists are left out.
    `add_rows` appends this entry to the list of earlier runs.
    """
    on_cpu = jax.default_backend() == "cpu"
    named = CPU_SHAPES if on_cpu else SHAPES
    shapes = {name: named[name] for name in SHAPES if name in bench.shapes}
    for name, shape in bench.own_shapes.items():
        shapes[name] = shape if on_cpu else choose_calls(shape)
    automatic = "float32" if on_cpu else "bfloat16"
    described = environment()
    config = {name: value for name, value in result_options(bench).items() if value != []}
    run = {name: described[name] for name in ("time", "commit")}
    run |= {"torch": pytorch.find_version()} if bench.peers else {}
    return {
        "experiment": "bench",
        "environment": described,
        "dtype": automatic if bench.dtype == "auto" else bench.dtype,
        "shapes": {name: shape._asdict() for name, shape in shapes.items()},
        "w": {"local": LOCAL, "global": GLOBAL},
        "v": V,
        "runs": [run | {"config": config}],
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
    settings = Settings(setup["dtype"], bench.repeats, count_processes(bench), deadline)
    shapes = {name: Shape(**setup["shapes"][name]) for name in bench.shape_names}
    rows: list[Row] = []
    for name, shape in shapes.items():
        for row in measure_shape(name, shape, bench.ordered_cases, settings):
            rows.append(row)
            yield add_rates(row, shape, find_baseline(rows, name))
    for name, shape in shapes.items():
        for row in pytorch.measure_pytorch(bench.timed_peers, name, shape, settings):
            yield add_rates(row, shape, find_baseline(rows, name))


def report_left_out(bench: Bench, rows: Sequence[Row]) -> None:
    """Print the cases that did not start before the time limit, and how to add them."""
    done = {(row.shape, row.case) for row in rows}
    left_out = {
        shape: [
            case for case in (*bench.timed_cases, *bench.timed_peers) if (shape, case) not in done
        ]
        for shape in bench.shape_names
    }
    left_out = {shape: cases for shape, cases in left_out.items() if cases}
    if not left_out:
        return
    print(f"\nleft out, because --limit {bench.limit:g} seconds had passed:")
    for shape, cases in left_out.items():
        print(f"  {shape}: {', '.join(cases)}")
    flag = "--shape" if bench.shape else "--shapes"
    print(f"Run the command again with --add true and these {flag} and --cases to add them.")


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
    print(f"ratio: time relative to {REFERENCE_CASE} in this run, above 1 is slower")
    if setup["platform"] == "cpu":
        print("On a CPU, smaller shapes replace the named ones. --shape times your own as it is.")
    print()
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


def print_short_tables(content: Mapping[str, Any], rows: Iterable[Row]) -> Iterator[Row]:
    """Print a table of times and memory for each own shape, row by row, and yield the rows.

    Args:
      content: Setup of the benchmark, from `describe_setup`.
      rows: Rows to print.
    """
    setup, w = content["environment"], content["w"]
    print(f"{setup['device']}, JAX {setup['packages']['jax']}, {content['dtype']}")
    weights = f"half have w = {w['local']}, half w = {w['global']}"
    print(f"distance-aware heads: {weights}; v = {content['v']}")
    print("temporary: memory of a forward and backward pass, besides its inputs and outputs")
    printed: list[Row] = []
    for name, group in itertools.groupby(rows, key=operator.attrgetter("shape")):
        shape = Shape(**content["shapes"][name])
        sizes = f"B {shape.batch}, T {shape.length}, N {shape.heads}, H {shape.width}"
        calls = f"; calls in one program: {shape.calls}" if shape.calls > 1 else ""
        print(f"\n{sizes}{calls}\n{format_short_header()}")
        for row in group:
            print(format_short_row(row), flush=True)
            printed.append(row)
            yield row
        baseline = find_baseline(printed, name)
        if baseline:
            print(f"ratio: time relative to {baseline.case}, above 1 is slower")


def draw_figure(content: Mapping[str, Any], rows: Sequence[Row], folder: epath.Path) -> None:
    """Draw the times of a forward and backward pass, and save the plot as `folder/bench.png`.

    The plot has one panel per shape. `select_common` selects the shapes and the cases. Own shapes
    are drawn only if there are no named shapes, and always in milliseconds.

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
    named = [row for row in rows if row.shape in SHAPES]
    rows = named or rows
    if all(row.both_ms is None for row in rows):
        print("no figure: nothing was timed.")
        return
    relative = any(row.both_ratio is not None for row in named)
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
