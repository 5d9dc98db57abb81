"""Evaluation of programs with NumPy, above all of those of the Pallas interpreters.

The interpreters write a kernel as a program of a thousand operations, and XLA compiles each program
for longer than a test runs it. NumPy evaluates the same operations without compilation. The same is
true of the programs around the kernels, and of the references.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from distattn_jax.attention.fused import interpreter

EVALUATED_JAX = (0, 12)  # oldest JAX whose programs are evaluated


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Return a context in which all traced kernels are evaluated with NumPy."""
    _replace_compilation()
    with interpreter.interpreted():
        yield


def evaluate(function: Callable, *arguments: Any, **named: Any) -> Any:
    """Trace a function, evaluate its program with NumPy, and return its results.

    JAX compiles the program on a machine with a GPU, and if it is a JAX that writes programs in
    another way.
    """
    if jax.__version_info__ < EVALUATED_JAX or jax.default_backend() == "gpu":
        return jax.jit(function)(*arguments, **named)
    jaxpr, results = jax.make_jaxpr(function, return_shape=True)(*arguments, **named)
    leaves = map(_read_array, jax.tree.leaves((arguments, named)))
    found = _run_program(jaxpr.jaxpr, jaxpr.consts, *leaves)
    return jax.tree.unflatten(jax.tree.structure(results), found)


@functools.cache
def _replace_compilation() -> None:
    """Let both interpreters, and the threads of a kernel, evaluate their programs with NumPy.

    A JAX that writes programs in another way compiles them.
    """
    if jax.__version_info__ < EVALUATED_JAX:
        return
    from jax._src import callback
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call as tpu
    from jax._src.pallas.mosaic.interpret import thread_map
    from jax._src.pallas.mosaic_gpu.interpret import interpret_pallas_call as gpu

    # JAX would copy all arguments of a callback to a device, and the callback would read them back.
    callback.api = types.SimpleNamespace(**{**vars(callback.api), "device_put": lambda x, _: x})
    thread_map._run_jaxpr = _run_program
    for module in (tpu, gpu):
        module.interpret_pallas_call = _call_back(module.interpret_pallas_call)


def _call_back(interpret: Callable) -> Callable:
    """Return the same function for a program that calls Python once for each kernel."""

    def interpret_in_python(*arrays, **params):
        program = functools.partial(interpret, **params)
        jaxpr, results = jax.make_jaxpr(program, return_shape=True)(*arrays)

        def run(*arrays):
            found = _run_program(jaxpr, jaxpr.consts, *map(np.asarray, arrays))
            return jax.tree.unflatten(jax.tree.structure(results), found)

        return io_callback(run, results, *arrays, ordered=True)

    return interpret_in_python


def _run_program(jaxpr: Any, consts: Sequence[Any], *arguments: Any) -> list[Any]:
    """Evaluate a program. Integers wrap around, and infinities make no warnings, as in XLA."""
    with np.errstate(all="ignore"):
        return _evaluate(jaxpr, consts, *arguments)


def _evaluate(jaxpr: Any, consts: Sequence[Any], *arguments: Any) -> list[Any]:
    values = dict(zip(jaxpr.constvars, map(_read_array, consts), strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)

    def read(atom):
        return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        operation = OPERATIONS.get(equation.primitive.name, _run_with_jax)
        found = operation(equation, *map(read, equation.invars))
        values |= zip(equation.outvars, found, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _read_array(x: Any) -> Any:
    """Return an array of NumPy. Keys of random numbers stay what they are."""
    is_key = isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    return x if is_key else np.asarray(x)


def _run_with_jax(equation: Any, *arguments: Any) -> Sequence[Any]:
    found = equation.primitive.bind(*arguments, **equation.params)
    return [*map(_read_array, found if equation.primitive.multiple_results else [found])]


def _call_function(equation: Any, *arguments: Any, name: str = "jaxpr") -> list[Any]:
    jaxpr = equation.params[name]
    return _evaluate(jaxpr, getattr(jaxpr, "consts", ()), *arguments)


def _run_branch(equation: Any, index: Any, *arguments: Any) -> list[Any]:
    branches = equation.params["branches"]
    jaxpr = branches[min(max(int(index), 0), len(branches) - 1)]
    return _evaluate(jaxpr, jaxpr.consts, *arguments)


def _run_loop(equation: Any, *arguments: Any) -> list[Any]:
    params = equation.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    start = params["cond_nconsts"]
    end = start + params["body_nconsts"]
    constants, carry = arguments[:end], list(arguments[end:])
    while _evaluate(condition, condition.consts, *constants[:start], *carry)[0]:
        carry = _evaluate(body, body.consts, *constants[start:], *carry)
    return carry


def _run_scan(equation: Any, *arguments: Any) -> list[Any]:
    """Run a loop, such as that over the grid of a kernel."""
    params = equation.params
    constants, carry, inputs = map(list, params["ft_in"].update(list(arguments)).unpack())
    jaxpr, steps = params["jaxpr"], range(params["length"])
    outputs = []
    for step in reversed(steps) if params["reverse"] else steps:
        found = _evaluate(jaxpr, jaxpr.consts, *constants, *carry, *(x[step] for x in inputs))
        carry, output = found[: len(carry)], found[len(carry) :]
        outputs.append(output)
    ordered = reversed(outputs) if params["reverse"] else outputs
    return [*carry, *map(np.stack, zip(*ordered, strict=True))]


def _run_callback(equation: Any, *arguments: Any) -> list[Any]:
    """Run a function of an interpreter, and copy its results, which may be views of its memory."""
    numbers = [x if x.ndim or x.dtype.kind not in "iu" else int(x) for x in arguments]
    found = zip(equation.params["callback"](*numbers), equation.params["result_avals"], strict=True)
    return [np.array(x, aval.dtype) for x, aval in found]


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Divide numbers. The quotient of integers is rounded towards 0."""
    if not np.issubdtype(x.dtype, np.integer):
        return x / y
    return (np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))).astype(x.dtype)


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"uint{8 * x.itemsize}")


def _multiply_matrices(x, y, *, dimension_numbers, preferred_element_type, **_) -> np.ndarray:
    contracted, batch = dimension_numbers
    x, y = (a.astype(preferred_element_type or a.dtype) for a in (x, y))
    if batch == ((), ()):
        return np.tensordot(x, y, contracted)
    axes = [[*range(x.ndim)], [*range(x.ndim, x.ndim + y.ndim)]]
    for own, other in zip(*batch, strict=True):
        axes[1][other] = own
    for own, other in zip(*contracted, strict=True):
        axes[1][other] = own
    kept = [
        [axis for i, axis in enumerate(own) if i not in (*contracted[side], *batch[side])]
        for side, own in enumerate(axes)
    ]
    return np.einsum(x, axes[0], y, axes[1], [*batch[0], *kept[0], *kept[1]], optimize=True)


def _gather(equation: Any, array, indices) -> Sequence[Any]:
    """Select single entries of an array, or slices. The index of an entry beyond it is an error."""
    numbers = equation.params["dimension_numbers"]
    axes = tuple(range(array.ndim))
    if not numbers.collapsed_slice_dims == numbers.start_index_map == axes:
        return _run_with_jax(equation, array, indices)
    return [np.asarray(array[tuple(np.moveaxis(indices, -1, 0))])]


def _pad(array, value, *, padding_config) -> np.ndarray:
    """Pad an array. Negative numbers cut entries off."""
    sizes = [
        low + high + length + max(length - 1, 0) * inner
        for length, (low, high, inner) in zip(array.shape, padding_config, strict=True)
    ]
    padded = np.full([max(size, 0) for size in sizes], value, array.dtype)
    target, source = [], []
    for length, size, (low, _, inner) in zip(array.shape, sizes, padding_config, strict=True):
        positions = low + np.arange(length) * (inner + 1)
        inside = np.flatnonzero((positions >= 0) & (positions < size))
        first, end = (inside[0], inside[-1] + 1) if inside.size else (0, 0)
        source.append(slice(first, end))
        target.append(
            slice(low + first * (inner + 1), low + (end - 1) * (inner + 1) + 1, inner + 1)
            if inside.size
            else slice(0, 0)
        )
    padded[tuple(target)] = array[tuple(source)]
    return padded


def _accumulate(function: np.ufunc) -> Callable:
    """Return a cumulative function along one axis."""

    def accumulate(x, *, axis, reverse) -> np.ndarray:
        x = np.flip(x, axis) if reverse else x
        found = function.accumulate(x, axis, dtype=x.dtype)
        return np.flip(found, axis) if reverse else found

    return accumulate


def _round(x, *, rounding_method) -> np.ndarray:
    assert rounding_method == jax.lax.RoundingMethod.TO_NEAREST_EVEN
    return np.round(x)


def _select(index: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    return np.where(index, *reversed(cases)) if len(cases) == 2 else np.choose(index, cases)


def _slices(array: np.ndarray, starts: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return slices of these sizes that lie inside of the array."""
    limits = zip(starts, array.shape, sizes, strict=True)
    clipped = [min(max(int(start), 0), length - size) for start, length, size in limits]
    return tuple(slice(start, start + size) for start, size in zip(clipped, sizes, strict=True))


def _broadcast(array: np.ndarray, *, shape, broadcast_dimensions, **_) -> np.ndarray:
    sizes = dict(zip(broadcast_dimensions, array.shape, strict=True))
    axes = [sizes.get(axis, 1) for axis in range(len(shape))]
    return np.broadcast_to(array.reshape(axes), shape)


def _iota(*, dtype, shape, dimension, **_) -> np.ndarray:
    sizes = [shape[axis] if axis == dimension else 1 for axis in range(len(shape))]
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(sizes), shape)


# Functions of the arrays.
ELEMENTWISE = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "sign", "abs", "sqrt")},
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "rem": np.fmod},
    **{"max": np.maximum, "min": np.minimum, "neg": np.negative, "select_n": _select},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert},
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
    **{"add_any": np.add, "square": np.square, "stop_gradient": lambda x: x},
    "is_finite": np.isfinite,
    "shift_right_arithmetic": np.right_shift,
    "shift_right_logical": lambda x, y: (_unsigned(x) >> _unsigned(y)).view(x.dtype),
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
}
# Functions of the arrays and of the keyword arguments of the primitive.
WITH_PARAMETERS = {
    **dict.fromkeys(("multiple_of", "remove_memory_space"), lambda x, **_: x),
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "convert_element_type": lambda x, *, new_dtype, **_: x.astype(new_dtype),
    "squeeze": lambda x, *, dimensions, **_: x.squeeze(dimensions),
    "reshape": lambda x, *, new_sizes, **_: x.reshape(new_sizes),
    "transpose": lambda x, *, permutation, **_: x.transpose(permutation),
    "concatenate": lambda *x, dimension, **_: np.concatenate(x, dimension),
    "reduce_sum": lambda x, *, axes, **_: x.sum(axes, dtype=x.dtype),
    "reduce_max": lambda x, *, axes, **_: x.max(axes),
    "reduce_min": lambda x, *, axes, **_: x.min(axes),
    "reduce_or": lambda x, *, axes, **_: x.any(axes),
    "reduce_and": lambda x, *, axes, **_: x.all(axes),
    "integer_pow": lambda x, *, y: x**y,
    "sin": lambda x, **_: np.sin(x),
    "cos": lambda x, **_: np.cos(x),
    "log1p": lambda x, **_: np.log1p(x),
    "logistic": lambda x, **_: (1 / (1 + np.exp(-x))).astype(x.dtype),
    "round": _round,
    "pad": _pad,
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "stack": lambda *x, axis: np.stack(x, axis),
    "cumsum": _accumulate(np.add),
    "cummax": _accumulate(np.maximum),
    "cummin": _accumulate(np.minimum),
    "dot_general": _multiply_matrices,
    "roll": lambda x, shift, *, axis, **_: np.roll(x, shift, axis),
    "slice": lambda x, *, start_indices, limit_indices, strides: x[
        tuple(map(slice, start_indices, limit_indices, strides or [None] * x.ndim))
    ],
    "dynamic_slice": lambda x, *starts, slice_sizes: x[_slices(x, starts, slice_sizes)],
}
OPERATIONS: dict[str, Callable[..., Sequence[Any]]] = {
    "jit": _call_function,
    "custom_vmap_call": functools.partial(_call_function, name="call"),
    "remat2": _call_function,
    "custom_jvp_call": functools.partial(_call_function, name="call_jaxpr"),
    "custom_vjp_call": functools.partial(_call_function, name="call_jaxpr"),
    "gather": _gather,
    "cond": _run_branch,
    "while": _run_loop,
    "scan": _run_scan,
    "io_callback": _run_callback,
    "unstack": lambda equation, x: list(np.moveaxis(x, equation.params["axis"], 0)),
    **{
        name: lambda equation, *x, apply=apply: [np.asarray(apply(*x))]
        for name, apply in ELEMENTWISE.items()
    },
    **{
        name: lambda equation, *x, apply=apply: [np.asarray(apply(*x, **equation.params))]
        for name, apply in WITH_PARAMETERS.items()
    },
}
