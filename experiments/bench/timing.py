"""Check the outputs of the compiled programs of a benchmark case, and time the programs."""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from distattn_jax.attention import Attended
from experiments.bench.cases import Operands
from experiments.bench.programs import Programs

LIMIT = 0.1  # largest accepted relative error, because inputs may have 16 bits
SECONDS_PER_TIMING = 0.1  # length of one timing of a short program, about
MAX_LAUNCHES = 20
INPUTS = ("values", "received", "d_query", "d_key", "d_value")  # Other names are parameters.
SHORT_NAMES = {"d_variant.weight": "d_w", "d_variant.shape": "d_v"}


def measure_errors(programs: Programs, operands: Operands) -> dict[str, float]:
    """Return a dict from the name of each output and gradient to its relative error.

    Only the heads that `select_heads` selects are compared with the correct arrays. The gradient of
    a parameter is a sum over examples and queries. The terms of this sum have both signs, and may
    be much larger than the sum. The error of the gradient is therefore relative to the norm of the
    terms, if this is larger than the norm of the sum.
    """
    expected = name_arrays(*programs.expected(operands))
    actual = name_arrays(*programs.select(*programs.single(operands)))
    errors = {}
    for name, array in expected.items():
        parts = array[None] if name in INPUTS else array
        errors[name] = _relative_error(actual[name], parts)
    return errors


def select_large_errors(errors: Mapping[str, float]) -> dict[str, float]:
    """Return the entries of `errors` that are above `LIMIT` or NaN."""
    return {name: error for name, error in errors.items() if not error <= LIMIT}


def time_programs(
    programs: Programs, operands: Operands, calls: int, repeats: int
) -> dict[str, float | None]:
    """Measure the time and the memory of one call of attention.

    Args:
      programs: Compiled programs.
      operands: Inputs of the programs.
      calls: Number of calls inside a timed program.
      repeats: Number of timings, of which the median is returned.

    Returns:
      Values of the fields `temporary_mib`, `forward_ms` and `both_ms` of `Row`. The memory is None
      if the compiler does not report it.
    """
    memory = programs.single.memory_analysis()
    return {
        "temporary_mib": memory.temp_size_in_bytes / 2**20 if memory else None,
        "forward_ms": _milliseconds(programs.forward, operands, calls, repeats),
        "both_ms": _milliseconds(programs.both, operands, calls, repeats),
    }


def _milliseconds(program: Any, operands: Operands, calls: int, repeats: int) -> float:
    """Return the median time per call in milliseconds, over `repeats` timings.

    One run of the program makes `calls` calls. Two warm-up runs are not timed. If the program is
    short, a timing launches several runs before it blocks, to hide the launch overhead.
    """
    _time_launches(program, operands, 1)
    seconds = _time_launches(program, operands, 1)
    launches = min(MAX_LAUNCHES, max(1, int(SECONDS_PER_TIMING / seconds)))
    timings = [_time_launches(program, operands, launches) for _ in range(repeats)]
    return 1e3 * float(np.median(timings)) / calls


def _time_launches(program: Any, operands: Operands, launches: int) -> float:
    """Launch a program `launches` times, then block. Return the mean time per run in seconds."""
    start = time.perf_counter()
    for _ in range(launches):
        outputs = program(operands)
    jax.block_until_ready(outputs)
    return (time.perf_counter() - start) / launches


def name_arrays(output: Attended, gradients: tuple) -> dict[str, Array]:
    """Return a dict from name to output or gradient. Arrays that are None are omitted.

    The name of a parameter's gradient contains the path of the parameter in the variant, such as
    "d_variant.keys". Distance-aware attention has two short names: "d_w" is the gradient of its
    distance weights w, and "d_v" is the gradient of its sigmoid shapes v.
    """
    query, key, value, variant = gradients
    arrays = dict(zip(INPUTS, (output.values, output.received, query, key, value), strict=True))
    for path, leaf in jax.tree_util.tree_leaves_with_path(variant):
        name = f"d_variant{jax.tree_util.keystr(path)}"
        arrays[SHORT_NAMES.get(name, name)] = leaf
    return {name: array for name, array in arrays.items() if array is not None}


def _relative_error(actual: Array, parts: Array) -> float:
    """Return ‖actual - expected‖ / max(‖expected‖, ‖parts‖), with Euclidean norms in float64.

    If all parts are 0, e.g. the gradient of a query that sees one key, return ‖actual - expected‖.

    Args:
      actual: Array to check.
      parts: Terms of the expected array. Their sum over the first axis is the expected array.
    """
    a, b = (np.asarray(x, np.float64) for x in (actual, parts))
    expected = b.sum(axis=0)
    norms = (float(np.linalg.norm(x.ravel())) for x in (a - expected, expected, b))
    error, *sizes = norms
    return error / (max(sizes) or 1)
