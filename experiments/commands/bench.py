"""Times attention: cases x shapes, each checked first, against cuDNN's dot-product attention."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from etils import epath

from distattn_jax.train.flags import Checked, option, parse, to_dict
from distattn_jax.train.run import environment
from experiments.bench import peers
from experiments.bench.cases import (
    CASES,
    GLOBAL,
    LOCAL,
    SHAPES,
    TINY,
    YARDSTICK,
    Shape,
    V,
    drawn,
    lacks,
)
from experiments.bench.lines import Line, header, lines_of, rated, row
from experiments.bench.timing import (
    compiled,
    errors_of,
    expected,
    refusal,
    timed,
    too_large,
)
from experiments.commands.train import is_memory
from experiments.papers import stored_results

WRONG, FAILED = "wrong:", "failed:"  # how lines begin that must not be


@dataclasses.dataclass(frozen=True)
class Bench(Checked):
    """What is timed. On a CPU the shapes are tiny ones, and what needs a GPU is left out."""

    shapes: tuple[str, ...] = option(tuple(SHAPES), "the sizes", choices=tuple(SHAPES))
    cases: tuple[str, ...] = option(
        tuple(CASES), f"what is timed, after {YARDSTICK}, the yardstick", choices=tuple(CASES)
    )
    dtype: str = option(
        "auto",
        "of the inputs; auto: bfloat16, on a CPU float32",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    repeats: int = option(5, "how often everything is timed; the median counts")
    peers: bool = option(False, "whether PyTorch's attentions are timed as well")
    output: str = option("", "folder for bench.json and bench.png; empty: none")
    draw: str = option("", "a bench.json to print and draw again; nothing is timed")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "repeats")


def main(arguments: Sequence[str]) -> None:
    """`bench [--field value ...]`: errors, seconds to compile, milliseconds, TFLOP/s, MiB."""
    bench = parse(Bench(), list(arguments), program="python -m experiments bench")
    if bench.draw:
        path = epath.Path(bench.draw)
        written = stored_results.read(path.stem, path.parent)
        if written is None:
            raise ValueError(f"draw must be a bench.json that is there; got {path}.")
        draw(show(written, lines_of(written)), path.parent)
        return
    missing = peers.missing() if bench.peers else ""
    if missing:
        print(f"PyTorch is not timed: {missing}.")
        bench = dataclasses.replace(bench, peers=False)
    content = setting(bench)
    lines = show(content, measured(bench, content))
    if bench.output:
        content["lines"] = [dataclasses.asdict(line) for line in lines]
        kept = stored_results.rounded(content)
        print(stored_results.write(kept, bench.output))
        draw(lines_of(kept), epath.Path(bench.output))
    bad = [line for line in lines if line.said.startswith((WRONG, FAILED))]
    if bad:
        names = ", ".join(f"{line.case} at {line.shape}" for line in bad)
        raise SystemExit(f"wrong or failed, and not timed: {names}")


def setting(bench: Bench) -> dict[str, Any]:
    """What is known before anything is timed."""
    on_cpu = jax.default_backend() == "cpu"
    shapes = TINY if on_cpu else SHAPES
    automatic = "float32" if on_cpu else "bfloat16"
    return {
        "experiment": "bench",
        "environment": environment(),
        "config": to_dict(bench),
        "dtype": automatic if bench.dtype == "auto" else bench.dtype,
        "shapes": {name: shapes[name]._asdict() for name in bench.shapes},
        "w": {"local": LOCAL, "global": GLOBAL},
        "v": V,
    }


def measured(bench: Bench, content: Mapping[str, Any]) -> Iterator[Line]:
    """A line for each case at each shape, the yardstick first."""
    dtype = content["dtype"]
    for name, sizes in content["shapes"].items():
        shape = Shape(**sizes)
        known: dict[Any, Any] = {}  # what is expected: cases differ in how the same is computed
        one = measure(Line(name, YARDSTICK), shape, dtype, bench.repeats, known)
        yield rated(one, shape, one)
        for case in bench.cases:
            if case != YARDSTICK:
                line = measure(Line(name, case), shape, dtype, bench.repeats, known)
                yield rated(line, shape, one)
        if bench.peers:
            for line in peers.measured(name, shape, dtype, bench.repeats):
                yield rated(line, shape, one)


def measure(line: Line, shape: Shape, dtype: str, repeats: int, known: dict[Any, Any]) -> Line:
    """The line with its errors, and what a call costs; what is not to be had is said, and no end.

    `known` is what is expected, by what is computed.
    """
    case = CASES[line.case]
    needed = lacks(case)
    if needed:
        return dataclasses.replace(line, said=f"needs {needed}")
    try:
        operands = drawn(shape, case, dtype)
        reason = refusal(case, operands)
        if reason:
            return dataclasses.replace(line, said=f"refused: {reason}")
        sought = (case.weights, case.received)
        if sought not in known:
            known[sought] = expected(case, operands)
        programs = compiled(case, operands, shape.calls)
        line = dataclasses.replace(line, errors=errors_of(programs, operands, known[sought]))
        wrong = too_large(line.errors)
        if wrong:
            told = ", ".join(f"{of} off by {error:.1e}" for of, error in wrong.items())
            return dataclasses.replace(line, said=f"{WRONG} {told}")
        costs = timed(programs, operands, shape.calls, repeats)
        return dataclasses.replace(line, **costs._asdict())
    except (RuntimeError, ValueError) as error:
        said = "out of memory" if is_memory(error) else f"{FAILED} {error}".splitlines()[0]
        return dataclasses.replace(line, said=said)


def show(content: Mapping[str, Any], lines: Iterable[Line]) -> list[Line]:
    """Prints the table, each line as soon as it is there."""
    here = content["environment"]
    print(f"{here['device']}, JAX {here['packages']['jax']}, {content['dtype']}")
    w = content["w"]
    print(f"local heads: w = {w['local']}, global ones: w = {w['global']}; v = {content['v']}")
    print(f"ratio: to {YARDSTICK} in this run, above 1 is slower\n")
    print(header())
    shown: list[Line] = []
    for line in lines:
        if not shown or shown[-1].shape != line.shape:
            shape = Shape(**content["shapes"][line.shape])
            print(f"\n{line.shape}: {shape}, calls in one program: {shape.calls}")
        print(row(line), flush=True)
        shown.append(line)
    return shown


def draw(lines: Sequence[Line], folder: epath.Path) -> None:
    """Bars of forward and backward, a panel for each shape."""
    try:
        from distattn_jax import plot
        from experiments.bench.figure import timing_bars
    except ModuleNotFoundError as error:
        print(f"no picture: {error.name} is not installed. Elsewhere, --draw makes it.")
        return
    if all(line.both_ms is None for line in lines):
        print("no picture: nothing was timed.")
        return
    relative = any(line.both_ratio is not None for line in lines)
    figures: dict[str, dict[str, float | None]] = {}
    for line in lines:
        of_shape = figures.setdefault(line.shape, {})
        of_shape[line.case] = line.both_ratio if relative else line.both_ms
    unit = f"time / {YARDSTICK.replace('_', ' ')}" if relative else "milliseconds"
    figure = timing_bars(figures, unit=f"forward + backward, {unit}", one=relative)
    path = folder / "bench.png"
    plot.save(figure, path)
    print(path)
