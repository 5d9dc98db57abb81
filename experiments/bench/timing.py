"""Check and time one case of the benchmark.

For small shapes, launching a program takes longer than one call of attention. One program therefore
runs several calls. A tiny number, computed from the output of a call, is added to one element of
the query of the next call. This number is smaller than the rounding error of the element, but
because of it the compiler can neither remove a call nor share work between calls.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from distattn_jax.attention import Attended, attention
from experiments.bench.cases import Case, Operands

# Largest accepted relative errors. Gradients of w and v are sums over the whole map in which most
# terms cancel. The limit for everything else is generous, because inputs may have 16 bits.
PARAMETER_LIMITS = {"d_w": 0.5, "d_v": 0.5}
LIMIT = 0.1
MAX_REFERENCE_LENGTH = 2048  # The reference stores a whole attention map, too large beyond this.
NUDGE = 1e-12

Function = Callable[[Operands], Any]


class Programs(NamedTuple):
    """Compiled programs of one benchmark case at one shape.

    Attributes:
      single: Program that runs a single forward and backward pass.
      forward: Program that runs all timed forward passes, one after the other.
      both: Program that runs all timed forward and backward passes, one after the other.
      compile_seconds: Time to compile `single`.
    """

    single: Any
    forward: Any
    both: Any
    compile_seconds: float


class Timing(NamedTuple):
    """Compile time, memory and run times of one call.

    Attributes:
      compile_seconds: Time to compile a program of one forward and backward pass.
      temporary_mib: Memory in MiB that a call needs in addition to its inputs and outputs. None if
        the compiler does not report it.
      forward_ms: Milliseconds of a forward pass.
      both_ms: Milliseconds of a forward and backward pass.
    """

    compile_seconds: float
    temporary_mib: float | None
    forward_ms: float
    both_ms: float


def make_forward(case: Case) -> Function:
    """Return a function that maps operands to the output of attention."""
    attend = _bind_attention(case)
    return lambda operands: attend(*operands[:4])


def make_both(case: Case) -> Function:
    """Return a function that maps operands to the pair (output of attention, gradients).

    The gradients are those of query, key, value and the parameters of the attention variant.
    """

    def call(operands: Operands) -> tuple[Attended, tuple]:
        output, vjp = jax.vjp(_bind_attention(case), *operands[:4])
        return output, vjp(operands.cotangent)

    return call


def explain_refusal(case: Case, operands: Operands) -> str:
    """Return why the implementation rejects these arrays, or "" if it accepts them."""
    try:
        jax.eval_shape(make_forward(case), operands)
    except ValueError as error:
        return str(error).splitlines()[0]
    return ""


def compile_case(case: Case, operands: Operands, calls: int) -> Programs:
    """Compile the programs of a case. Each timed program contains `calls` calls."""
    start = time.perf_counter()
    single = jax.jit(make_both(case)).lower(operands).compile()
    seconds = time.perf_counter() - start
    if calls == 1:
        forward = jax.jit(make_forward(case)).lower(operands).compile()
        return Programs(single, forward, single, seconds)
    forward, both = (
        jax.jit(functools.partial(_chain_calls, function, calls=calls)).lower(operands).compile()
        for function in (make_forward(case), make_both(case))
    )
    return Programs(single, forward, both, seconds)


def compute_expected(case: Case, operands: Operands) -> dict[str, Array]:
    """Return the expected outputs and gradients of the first and the last head, in float32.

    The implementation `reference` computes the arrays for short sequences, and the implementation
    `xla` for longer sequences.
    """
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), _select_end_heads(operands))
    is_short = operands.query.shape[1] <= MAX_REFERENCE_LENGTH
    reference = case._replace(implementation="reference" if is_short else "xla")
    with jax.default_matmul_precision("highest"):
        return _name_arrays(*jax.jit(make_both(reference))(exact))


def measure_errors(
    programs: Programs, operands: Operands, expected: Mapping[str, Array]
) -> dict[str, float]:
    """Return the relative error of each output and gradient, by name.

    Only the first and the last head are compared with the expected arrays.
    """
    output, (query, key, value, variant) = programs.single(operands)
    ends = _select_end_heads(Operands(query, key, value, variant, output))
    actual = _name_arrays(ends.cotangent, ends[:4])
    return {name: _relative_error(actual[name], expected[name]) for name in expected}


def select_large_errors(errors: Mapping[str, float]) -> dict[str, float]:
    """Return the errors above their limits, by name. An error that is NaN is included."""
    return {
        name: error
        for name, error in errors.items()
        if not error <= PARAMETER_LIMITS.get(name, LIMIT)
    }


def time_programs(programs: Programs, operands: Operands, calls: int, repeats: int) -> Timing:
    """Measure the time and the memory of one call of attention.

    Args:
      programs: Compiled programs.
      operands: Inputs of the programs.
      calls: Number of calls inside a timed program.
      repeats: Number of timings, of which the median is returned.
    """
    memory = programs.single.memory_analysis()
    return Timing(
        compile_seconds=programs.compile_seconds,
        temporary_mib=memory.temp_size_in_bytes / 2**20 if memory else None,
        forward_ms=_milliseconds(programs.forward, operands, calls, repeats),
        both_ms=_milliseconds(programs.both, operands, calls, repeats),
    )


def _milliseconds(program: Any, operands: Operands, calls: int, repeats: int) -> float:
    """Return the milliseconds per call: the median of `repeats` runs of the program.

    A run of the program contains `calls` calls. One more run comes first and is not timed.
    """
    jax.block_until_ready(program(operands))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(program(operands))
        seconds.append(time.perf_counter() - start)
    return 1e3 * float(np.median(seconds)) / calls


def _chain_calls(function: Function, operands: Operands, calls: int) -> Float[Array, "B L N H"]:
    """Call a function `calls` times in sequence, and return the last, slightly changed query.

    A tiny number, computed from the output of a call, is added to the query of the next call.
    Barriers keep the compiler from moving computation out of a call.
    """

    def step(query: Array, _: None) -> tuple[Array, None]:
        inputs = jax.lax.optimization_barrier(operands._replace(query=query))
        outputs = jax.lax.optimization_barrier(function(inputs))
        entries = [leaf[(0,) * leaf.ndim] for leaf in jax.tree.leaves(outputs)]
        nudge = NUDGE * sum(entry.astype(jnp.float32) for entry in entries)
        moved = query[:1, :1, :1, :1] + nudge.astype(query.dtype)
        return jax.lax.dynamic_update_slice(query, moved, (0, 0, 0, 0)), None

    query, _ = jax.lax.scan(step, operands.query, length=calls)
    return query


def _bind_attention(case: Case) -> Callable[..., Attended]:
    """Return the function `attention` with the options of a case as fixed arguments."""
    return functools.partial(attention, received=case.received, implementation=case.implementation)


def _select_end_heads(operands: Operands) -> Operands:
    """Return the operands of the first and the last head."""
    ends = jnp.array([0, -1])
    query, key, value, cotangent = (
        x[:, :, ends] for x in (*operands[:3], operands.cotangent.values)
    )
    received = operands.cotangent.received
    received = None if received is None else received[:, ends]
    variant = jax.tree.map(lambda leaf: leaf[ends], operands.variant)
    return Operands(query, key, value, variant, Attended(cotangent, received))


def _name_arrays(output: Attended, gradients: tuple) -> dict[str, Array]:
    """Return all outputs and gradients in a dict by name. Arrays that are None are omitted."""
    query, key, value, variant = gradients
    arrays = {
        "values": output.values,
        "received": output.received,
        "d_query": query,
        "d_key": key,
        "d_value": value,
        "d_w": getattr(variant, "weight", None),
        "d_v": getattr(variant, "shape", None),
    }
    return {name: array for name, array in arrays.items() if array is not None}


def _relative_error(actual: Array, expected: Array) -> float:
    """Return ‖actual - expected‖ / ‖expected‖, with Euclidean norms in float64."""
    a, b = (np.asarray(x, np.float64).ravel() for x in (actual, expected))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def is_out_of_memory(error: Exception) -> bool:
    """Return True for the out-of-memory errors of GPUs, TPUs and CPUs."""
    return any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory"))
