"""How a case is checked, and how it is timed.

Calls of small shapes are over in less time than it takes to start them. So many are made inside one
program, each on what the one before gave: one entry of the query is moved by less than its last
digit. The compiler can leave none of them out, nor any part of them, nor make a part once for all.
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

LIMITS = {"d_w": 0.5, "d_v": 0.5}  # sums over the whole map of what mostly cancels
LIMIT = 0.1  # of all other relative errors; generous, for 16 bits
LONGEST = 2048  # beyond it the reference's map is too large
NUDGE = 1e-12

Call = Callable[[Operands], Any]


class Programs(NamedTuple):
    """A case, compiled for a shape.

    Attributes:
      one: a call and its gradients.
      forward: as many calls as were asked for, one after the other.
      both: as many, with their gradients.
      compile_seconds: of `one`.
    """

    one: Any
    forward: Any
    both: Any
    compile_seconds: float


class Timed(NamedTuple):
    """What a call costs."""

    compile_seconds: float
    temporary_mib: float | None  # None: the device does not say
    forward_ms: float
    both_ms: float


def forward(case: Case) -> Call:
    """Operands -> what attention gives."""
    attend = _attend(case)
    return lambda operands: attend(*operands[:4])


def both(case: Case) -> Call:
    """Operands -> what attention gives, and the gradients: of query, key, value, w and v."""

    def call(operands: Operands) -> tuple[Attended, tuple]:
        given, pull = jax.vjp(_attend(case), *operands[:4])
        return given, pull(operands.cotangent)

    return call


def refusal(case: Case, operands: Operands) -> str:
    """Why the implementation does not serve these arrays; empty: it does."""
    try:
        jax.eval_shape(forward(case), operands)
    except ValueError as error:
        return str(error).splitlines()[0]
    return ""


def compiled(case: Case, operands: Operands, calls: int) -> Programs:
    """All programs of a case."""
    began = time.perf_counter()
    one = jax.jit(both(case)).lower(operands).compile()
    seconds = time.perf_counter() - began
    if calls == 1:
        return Programs(one, jax.jit(forward(case)).lower(operands).compile(), one, seconds)
    of_forward, of_both = (
        jax.jit(functools.partial(_one_after_the_other, call, calls=calls))
        .lower(operands)
        .compile()
        for call in (forward(case), both(case))
    )
    return Programs(one, of_forward, of_both, seconds)


def expected(case: Case, operands: Operands) -> dict[str, Array]:
    """By the equations in float32, over the same inputs: the first head and the last."""
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), _ends_of(operands))
    is_short = operands.query.shape[1] <= LONGEST
    reference = case._replace(implementation="reference" if is_short else "xla")
    with jax.default_matmul_precision("highest"):
        return _named(*jax.jit(both(reference))(exact))


def errors_of(programs: Programs, operands: Operands, wanted: Mapping[str, Array]) -> dict:
    """Relative errors |a - b| / |b| of the first head and the last."""
    given, (query, key, value, variant) = programs.one(operands)
    ends = _ends_of(Operands(query, key, value, variant, given))
    got = _named(ends.cotangent, ends[:4])
    return {name: _relative_error(got[name], wanted[name]) for name in wanted}


def too_large(errors: Mapping[str, float]) -> dict[str, float]:
    """Those beyond their limits, and those that are not numbers."""
    return {name: error for name, error in errors.items() if not error <= LIMITS.get(name, LIMIT)}


def timed(programs: Programs, operands: Operands, calls: int, repeats: int) -> Timed:
    """What a call costs."""
    memory = programs.one.memory_analysis()
    return Timed(
        compile_seconds=programs.compile_seconds,
        temporary_mib=memory.temp_size_in_bytes / 2**20 if memory else None,
        forward_ms=milliseconds(programs.forward, operands, calls, repeats),
        both_ms=milliseconds(programs.both, operands, calls, repeats),
    )


def milliseconds(program: Any, operands: Operands, calls: int, repeats: int) -> float:
    """Of one of the calls of a program: the median over `repeats` runs."""
    jax.block_until_ready(program(operands))
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(program(operands))
        seconds.append(time.perf_counter() - began)
    return 1e3 * float(np.median(seconds)) / calls


def _one_after_the_other(call: Call, operands: Operands, calls: int) -> Float[Array, "B L N H"]:
    """The query after so many calls. A barrier lets nothing pass: what is behind it is computed."""

    def step(query: Array, _: None) -> tuple[Array, None]:
        here = jax.lax.optimization_barrier(operands._replace(query=query))
        given = jax.lax.optimization_barrier(call(here))
        firsts = [leaf[(0,) * leaf.ndim] for leaf in jax.tree.leaves(given)]
        nudge = NUDGE * sum(first.astype(jnp.float32) for first in firsts)
        moved = query[:1, :1, :1, :1] + nudge.astype(query.dtype)
        return jax.lax.dynamic_update_slice(query, moved, (0, 0, 0, 0)), None

    query, _ = jax.lax.scan(step, operands.query, length=calls)
    return query


def _attend(case: Case) -> Callable[..., Attended]:
    return functools.partial(attention, received=case.received, implementation=case.implementation)


def _ends_of(operands: Operands) -> Operands:
    """The first head and the last."""
    ends = jnp.array([0, -1])
    query, key, value, change = (x[:, :, ends] for x in (*operands[:3], operands.cotangent.values))
    received = operands.cotangent.received
    variant = jax.tree.map(lambda leaf: leaf[ends], operands.variant)
    of_received = None if received is None else received[:, ends]
    return Operands(query, key, value, variant, Attended(change, of_received))


def _named(given: Attended, gradients: tuple) -> dict[str, Array]:
    query, key, value, variant = gradients
    found = {
        "values": given.values,
        "received": given.received,
        "d_query": query,
        "d_key": key,
        "d_value": value,
        "d_w": getattr(variant, "weight", None),
        "d_v": getattr(variant, "shape", None),
    }
    return {name: array for name, array in found.items() if array is not None}


def _relative_error(got: Array, wanted: Array) -> float:
    a, b = (np.asarray(x, np.float64).ravel() for x in (got, wanted))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
