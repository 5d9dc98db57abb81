"""Random calls of the fused kernels: compared with float32, and repeated for equal bits.

    python -m experiments bench --check --random-calls 200 --seed 0

A call has a random variant, shape and dtype, and random options. Equal seeds give equal calls. The
errors of values and gradients are measured, and limited, like those of the benchmark's cases.
"""

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.bench.cases import CASES, FORMS, Case, Operands, draw_operands
from experiments.bench.measure import WRONG
from experiments.bench.programs import REFUSED, Programs, describe_failure, try_compiling
from experiments.bench.shapes import Shape
from experiments.bench.timing import measure_errors, select_large_errors
from experiments.bench.variants import adapted, transformer_xl
from experiments.bench.workers import run_tasks

# Kernels read the bias of this case from a table, as that of `two_sided`. Leaving it out keeps the
# calls of each seed the same as those that were checked on a GPU.
LEFT_OUT = "two_sided_buckets"
# Variants of all other cases that have fused kernels, by the name of the case.
VARIANTS = {
    name: case.variant
    for name, case in CASES.items()
    if case == Case(case.variant) and name != LEFT_OUT
} | {"dot_product": CASES["vanilla"].variant}
LENGTHS = 16, 2048
WIDEST = 128
DTYPES = {"gpu": ("bfloat16", "float16"), "tpu": ("bfloat16", "float32")}  # by back end
CORRECT = "correct"
OTHER_BITS = "other bits:"  # begins the message of a call whose repetition gave other bits
UNFINISHED = "unfinished:"  # begins the message of a call that took too long
GOOD = (CORRECT, REFUSED)  # A call is bad unless its message begins with one of these.


class RandomCall(NamedTuple):
    """Attention call with random options.

    Attributes:
      number: Number of the call. With the seed, it determines the call.
      variant: Name of the variant in `VARIANTS`.
      case: Variant, implementation and options.
      shape: Sizes of the inputs.
      dtype: Name of the dtype of the inputs.
    """

    number: int
    variant: str
    case: Case
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        options = {
            name: value
            for name, value in self.case._asdict().items()
            if name not in ("variant", "implementation") and value != Case._field_defaults[name]
        }
        described = (f" {name}={value}" for name, value in options.items())
        words = self.number, self.case.implementation, self.dtype, self.shape, self.variant
        return " ".join(map(str, words)) + "".join(described)


def draw_call(seed: int, number: int, implementation: str, dtypes: Sequence[str]) -> RandomCall:
    """Return the random call with a number. Equal arguments give equal calls.

    Args:
      seed: Seed of all calls.
      number: Number of the call.
      implementation: Name of the implementation to check.
      dtypes: Names of dtypes, of which one is drawn.
    """
    random = np.random.default_rng((seed, number))

    def choose(*values: Any) -> Any:
        return values[random.integers(len(values))]

    name = choose(*VARIANTS)
    key_heads, group = choose(1, 2, 3), choose(1, 1, 2, 4)
    shape = Shape(
        batch=choose(1, 2, 3),
        heads=key_heads * group,
        length=int(np.exp2(random.uniform(*np.log2(LENGTHS)))),
        width=int(random.integers(1, WIDEST + 1)),
        calls=0,
    )
    if VARIANTS[name] in (adapted, transformer_xl):  # Sinusoids need an even width.
        shape = shape._replace(width=shape.width + shape.width % 2)
    case = Case(
        VARIANTS[name],
        implementation,
        received=choose(True, False),
        mask=choose("", "", "keys", "pairs"),
        segments=choose(1, 1, 2, 3) if shape.length >= 4 * LENGTHS[0] else 1,
        window=choose(0.0, 0.0, 0.25, 0.5),
        group=group,
        dropout_rate=choose(0.0, 0.0, 0.1, 0.5),
    )
    return RandomCall(number, name, case, shape, choose(*dtypes))


def try_call(call: RandomCall) -> str:
    """Compile a call, check it, and describe the result."""
    programs = try_compiling(call.case, call.shape, call.dtype)
    if isinstance(programs, str):
        return programs
    return check_call(programs, draw_operands(call.shape, call.case, call.dtype))


def check_call(programs: Programs, operands: Operands) -> str:
    """Check the errors of a compiled call, and that its repetition gives the same bits.

    Args:
      programs: Compiled programs of the call.
      operands: Inputs of the programs.

    Returns:
      The word `CORRECT`, `WRONG`, `OTHER_BITS` or `FAILED`, followed by all errors.
    """
    try:
        errors = measure_errors(programs, operands)
        is_repeatable = _have_equal_bits(*(programs.single(operands) for _ in range(2)))
    except Exception as error:  # A call that fails must not stop the others.
        return describe_failure(error)
    listed = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    if select_large_errors(errors):
        return f"{WRONG} {listed}"
    return f"{CORRECT}, same bits: {listed}" if is_repeatable else f"{OTHER_BITS} {listed}"


def check_random_calls(
    calls: Sequence[RandomCall],
    processes: int,
    deadline: float,
    call_limit: float,
    report: Callable[[str], None] = functools.partial(print, flush=True),
) -> list[str]:
    """Check calls, report a line for each that ends, and a summary. Return the lines of bad calls.

    Args:
      calls: Calls to check.
      processes: Number of other processes that check calls at the same time. With 0, this process
        checks all calls, and cannot end a call that takes too long.
      deadline: Value of `time.monotonic()` at which calls that have not ended are left out.
      call_limit: Seconds after which the process of a call is ended. The call is then bad.
      report: Callback that receives each line of text.
    """
    counts: Counter[str] = Counter()
    bad = []
    left_out = list(calls)
    for call, result in _check_all(calls, processes, deadline, call_limit):
        line = f"{call}: {result}"
        report(line)
        left_out.remove(call)
        counts[result.partition(":")[0]] += 1
        if not result.startswith(GOOD):
            bad.append(line)
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    named = f": {_list_numbers(left_out)}" if left_out else ""
    report(f"{len(calls)} calls: {summary or 'none checked'}; {len(left_out)} left out{named}")
    return bad


def _check_all(
    calls: Sequence[RandomCall], processes: int, deadline: float, call_limit: float
) -> Iterator[tuple[RandomCall, str]]:
    """Yield each call and its result. See `check_random_calls`."""
    if not processes:
        for call in calls:
            if time.monotonic() <= deadline:
                yield call, try_call(call)
        return
    results = run_tasks(
        _try_one_of_many, calls, processes, deadline, call_limit, _leaves_device_usable
    )
    for call, result in results:
        if isinstance(result, TimeoutError):
            result = f"{UNFINISHED} {result}"
        elif isinstance(result, ChildProcessError):
            result = describe_failure(result)
        yield call, result


def _leaves_device_usable(result: Any) -> bool:
    """Return False if a call failed. After some errors, its process can use the GPU no longer."""
    return isinstance(result, str) and result.startswith((*GOOD, WRONG, OTHER_BITS))


def _list_numbers(calls: Iterable[RandomCall]) -> str:
    """Return the numbers of calls for each form of the kernels, as text: "portable 3, 5-8"."""
    forms = {implementation: form for form, implementation in FORMS.items()}
    parts = []
    for name, group in itertools.groupby(calls, lambda call: call.case.implementation):
        numbers = [call.number for call in group]
        starts = [number for number in numbers if number - 1 not in numbers]
        ends = [number for number in numbers if number + 1 not in numbers]
        pairs = zip(starts, ends, strict=True)
        ranges = (str(start) if start == end else f"{start}-{end}" for start, end in pairs)
        parts.append(f"{forms.get(name, name)} {', '.join(ranges)}")
    return "; ".join(parts)


def _try_one_of_many(call: RandomCall) -> str:
    """Return the result of a call, and leave no compiled program in memory."""
    result = try_call(call)
    jax.clear_caches()
    return result


def _have_equal_bits(first: Any, second: Any) -> bool:
    """Return True if two pytrees of arrays have the same bits."""
    pairs = zip(*map(jax.tree.leaves, (first, second)), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
