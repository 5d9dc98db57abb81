"""Compile the programs of the benchmark cases, from the shapes and dtypes of their inputs.

For small shapes, launching a program takes longer than one call of attention. One program therefore
makes several calls. Each call must depend on the call before, or the compiler could remove calls or
share work between them. The program therefore computes a tiny number from the output of a call, and
adds it to one element of the query of the next call. The number is smaller than the rounding error
of the element.
"""

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from distattn_jax.attention import Attended, ShardedSequence, Variant, attention
from experiments.bench.by_hand import FUNCTIONS
from experiments.bench.cases import (
    Case,
    Operands,
    draw_operands,
    make_sequence_mesh,
    missing_device,
    shard,
)
from experiments.bench.shapes import Shape
from experiments.bench.workers import QUICK_COMPILATION

FAILED = "failed:"  # begins the message of a case that ended with an unexpected error
REFUSED = "refused:"  # begins the message of a case that `attention` does not support
MAX_REFERENCE_BYTES = 2**30  # of a (T, S, H) array of all heads that are checked
NUDGE = 1e-12
TERMS = 8  # parts of the gradient of a parameter, for each example: see `_compile_expected`
# Names of the calls in a compiled program that show which implementation computes attention.
CALL_TARGETS = {"mosaic_gpu": "pallas", "__cudnn$": "cudnn"}

Function = Callable[[Operands], Any]


class Programs(NamedTuple):
    """Compiled programs of one benchmark case at one shape.

    Attributes:
      single: Program that runs a single forward and backward pass.
      forward: Program that runs all timed forward passes, one after the other.
      both: Program that runs all timed forward and backward passes, one after the other. `forward`
        and `both` are None if no call is timed.
      expected: Program that computes the correct outputs and gradients of the checked heads (see
        `select_heads`), in float32. The gradients of parameters have an additional leading axis of
        terms. Their sum over this axis is the correct gradient.
      select: Program that selects the checked heads from the output of `single`.
      implementation: Name of the implementation that `single` uses.
      compile_seconds: Time to compile `single`. Other processes may compile at the same time.
    """

    single: Any
    forward: Any
    both: Any
    expected: Any
    select: Any
    implementation: str
    compile_seconds: float


def try_compiling(case: Case, shape: Shape, dtype: str) -> Programs | str:
    """Return the programs of a case, or a message that says why the case cannot run."""
    device = missing_device(case)
    if device:
        return f"needs {device}"
    try:
        try:
            shapes = jax.eval_shape(lambda: draw_operands(shape, case, dtype))
            operands = shard(shapes, case)
            with _use_mesh(case):
                jax.eval_shape(make_forward(case), operands)
        except ValueError as error:
            return f"{REFUSED} {error}".splitlines()[0]
        return compile_case(case, operands, shape.calls)
    except Exception as error:  # A case that fails must not stop the other cases.
        return describe_failure(error)


def compile_case(case: Case, operands: Operands, calls: int) -> Programs:
    """Compile the programs of a case.

    Args:
      case: Case to compile.
      operands: Inputs, or their shapes and dtypes.
      calls: Number of attention calls in each timed program. With 0, nothing is timed.
    """
    start = time.perf_counter()
    with _use_mesh(case):
        lowered = jax.jit(make_both(case)).lower(operands)
        single = lowered.compile()
        seconds = time.perf_counter() - start
        forward = both = None
        if calls == 1:
            forward, both = jax.jit(make_forward(case)).lower(operands).compile(), single
        elif calls:
            forward, both = (
                jax.jit(functools.partial(_chain_calls, function, calls=calls))
                .lower(operands)
                .compile()
                for function in (make_forward(case), make_both(case))
            )
    implementation = case.implementation or name_implementation(lowered.as_text())
    expected = _compile_expected(case, operands)
    outputs = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        lowered.out_info,
        single.output_shardings,
    )
    select = _compile_select(case, outputs)
    return Programs(single, forward, both, expected, select, implementation, seconds)


def make_forward(case: Case) -> Function:
    """Return a function from `Operands` to the output of attention."""
    return lambda operands: _attend(case, operands.arguments, *operands[:4])


def make_both(case: Case) -> Function:
    """Return a function from `Operands` to the pair (output of attention, gradients).

    The gradients are those of query, key, value and the parameters of the attention variant.
    """

    def call(operands: Operands) -> tuple[Attended, tuple]:
        attend = functools.partial(_attend, case, operands.arguments)
        output, vjp = jax.vjp(attend, *operands[:4])
        return output, vjp(operands.cotangent)

    return call


def name_implementation(program: str) -> str:
    """Return the name of the attention implementation that a lowered program uses.

    If the program calls no fused kernel, the implementation is "xla".

    Args:
      program: Text of the lowered program.
    """
    found = (name for target, name in CALL_TARGETS.items() if target in program)
    return next(found, "xla")


def select_heads(operands: Operands, case: Case) -> Operands:
    """Return the inputs of the heads whose outputs and gradients are checked.

    The checked heads are the first key head, the last key head, and their query heads. If the case
    has dropout, all heads are checked, because the dropped entries depend on the head index.
    """
    if case.dropout_rate:
        return operands
    ends = np.unique([0, operands.key.shape[2] - 1])
    heads = (case.group * ends[:, None] + np.arange(case.group)).ravel()
    received = operands.cotangent.received
    return Operands(
        query=operands.query[:, :, heads],
        key=operands.key[:, :, ends],
        value=operands.value[:, :, ends],
        variant=jax.tree.map(lambda leaf: leaf[heads], operands.variant),
        cotangent=Attended(
            operands.cotangent.values[:, :, heads], None if received is None else received[:, heads]
        ),
        arguments=operands.arguments,
    )


def describe_failure(error: Exception) -> str:
    """Return the message that the table shows for a case that ended with an error."""
    if is_out_of_memory(error):
        return "out of memory"
    first, *_ = str(error).splitlines() or [""]
    return f"{FAILED} {first or type(error).__name__}"


def is_out_of_memory(error: Exception) -> bool:
    """Return True for the out-of-memory errors of GPUs, TPUs and CPUs."""
    return any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "Out of memory"))


def _compile_expected(case: Case, operands: Operands) -> Any:
    """Compile the program that computes the correct outputs and gradients, in float32.

    The program uses the implementation `reference` for short sequences, and `xla` for longer
    sequences. The gradients of the parameters have a leading axis of terms: each term is that of
    one example and of one in `TERMS` queries. If the case has dropout, it is that of all examples,
    which must be computed together, because the dropped entries depend on the example index.
    """

    def compute(operands: Operands) -> tuple[Attended, tuple]:
        inputs = jax.tree.map(_to_float32, select_heads(operands, case))
        _, length, heads, width = inputs.query.shape
        is_small = 4 * heads * length**2 * width <= MAX_REFERENCE_BYTES
        exact = case._replace(implementation="reference" if is_small else "xla", strategy="")

        def call(operands: Operands) -> tuple[tuple[Attended, list[Array]], Variant]:
            attend = functools.partial(_attend, exact, operands.arguments)
            output, vjp = jax.vjp(attend, *operands[:4])
            *gradients, _ = vjp(operands.cotangent)
            terms = jax.lax.map(
                lambda number: vjp(_select_term(operands.cotangent, number))[3], jnp.arange(TERMS)
            )
            return (output, gradients), terms

        def call_with_example(example: Operands) -> tuple[tuple[Attended, list[Array]], Variant]:
            batch = jax.tree.map(lambda leaf: leaf[None], example)._replace(variant=inputs.variant)
            outputs, terms = call(batch)
            return jax.tree.map(lambda leaf: leaf[0], outputs), terms

        if case.dropout_rate:
            (output, gradients), terms = call(inputs)
        else:
            examples = inputs._replace(variant=None)
            (output, gradients), terms = jax.lax.map(call_with_example, examples)
            terms = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), terms)
        return output, (*gradients, terms)

    with jax.default_matmul_precision("highest"):
        lowered = jax.jit(compute).lower(operands)
    # The program runs once. Searching for its fastest matrix products would take minutes.
    return lowered.compile(compiler_options=QUICK_COMPILATION)


def _select_term(cotangent: Attended, number: Array) -> Attended:
    """Return the cotangent with all rows set to 0 but one in `TERMS`, from row `number` on.

    The rows are the queries of the values, and the keys of the received attention.
    """

    def select(array: Array, axis: int) -> Array:
        is_selected = jnp.arange(array.shape[axis]) % TERMS == number
        shape = [-1 if each == axis else 1 for each in range(array.ndim)]
        return jnp.where(is_selected.reshape(shape), array, 0)

    received = None if cotangent.received is None else select(cotangent.received, 2)
    return Attended(select(cotangent.values, 1), received)


def _compile_select(case: Case, outputs: tuple[Attended, tuple]) -> Any:
    """Compile the program that selects the heads of `select_heads` from outputs and gradients.

    Args:
      case: Case to compile.
      outputs: Shapes and dtypes of the outputs and the gradients, with their shardings.
    """

    def select(output: Attended, gradients: tuple) -> tuple[Attended, tuple]:
        query, key, value, variant = gradients
        selected = select_heads(Operands(query, key, value, variant, output, {}), case)
        return selected.cotangent, selected[:4]

    return jax.jit(select).lower(*outputs).compile()


def _use_mesh(case: Case) -> contextlib.AbstractContextManager:
    """Return a context in which `attention` finds the devices that share a sequence."""
    return jax.set_mesh(make_sequence_mesh()) if case.strategy else contextlib.nullcontext()


def _to_float32(x: Array) -> Array:
    """Return floating-point arrays in float32, and other arrays unchanged."""
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _attend(case: Case, arguments: dict[str, Any], *arrays: Any) -> Attended:
    """Call `attention`, or a function written by hand, with the options of a case.

    The scores of all variants are scaled. By default, `Adapted` does not scale its scores. For
    these inputs, its softmax would then put all weight on one key, and 16-bit inputs would be too
    inexact to check its outputs.

    Args:
      case: Case with the options.
      arguments: Dict with the mask, the segments and the dropout key, if the case has them.
      *arrays: Query, key, value and attention variant.
    """
    length, width = arrays[0].shape[1], arrays[0].shape[3]
    if case.implementation in FUNCTIONS:
        return FUNCTIONS[case.implementation](*arrays, **arguments, scale=width**-0.5)
    return attention(
        *arrays,
        **arguments,
        received=case.received,
        dropout_rate=case.dropout_rate,
        local_window_size=int(case.window * length) if case.window else None,
        scale=width**-0.5,
        implementation=case.implementation,
        sequence=ShardedSequence(strategy=case.strategy) if case.strategy else None,
    )


def _chain_calls(function: Function, operands: Operands, calls: int) -> Float[Array, "B L N H"]:
    """Call a function `calls` times in sequence, and return the query after the last call.

    After each call, a tiny number is computed from the output, and added to one element of the
    query. Barriers keep the compiler from moving computation out of a call.
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
