"""Measure the error of float32 attention with each `precision`, against float64.

    python -m experiments.bench.precision_errors               # as `attention` chooses
    python -m experiments.bench.precision_errors --implementation xla

The error of an array is the norm of its difference from float64, divided by its norm. Every shape
and variant is measured with `SEEDS` draws of query, key, value and cotangent. A row has the median
and the largest error over the draws: of the values and of the gradients of query, key and value,
and after a slash of the gradients of the variant's parameters.
"""

import argparse
from typing import NamedTuple

import jax
import numpy as np

from distattn_jax.attention import IMPLEMENTATIONS, Attended, attention
from experiments.bench.cases import CASES, Case, Operands, draw_operands
from experiments.bench.shapes import Shape

SHAPES = (
    *(Shape(1, 2, 64, 16), Shape(1, 4, 128, 16), Shape(1, 2, 128, 64)),
    *(Shape(2, 4, 128, 64), Shape(1, 4, 512, 16), Shape(1, 2, 1024, 64)),
)
VARIANTS = (
    *("vanilla", "distance_aware", "relative_position", "transformer_xl"),
    *("adapted", "kerple_log", "t5_bias"),
)
PRECISIONS = ("BF16_BF16_F32", "F16_F16_F32", None)
SEEDS = 10


class Errors(NamedTuple):
    """Relative errors of one draw of the inputs.

    Attributes:
      inputs: Largest error of the values and of the gradients of query, key and value.
      parameters: Largest error of the gradients of the variant's parameters, or 0.
    """

    inputs: float
    parameters: float


def measure_errors(
    shape: Shape, case: Case, implementation: str | None = None, seeds: int = SEEDS
) -> dict[str | None, list[Errors]]:
    """Return the errors of each draw, for each of `PRECISIONS`.

    Args:
      shape: Sizes of the inputs, which are drawn from a normal distribution.
      case: Case whose variant is measured. Its options are ignored.
      implementation: Argument of `attention`.
      seeds: Number of draws.
    """
    draws = [_draw(draw_operands(shape, case, "float32"), seed) for seed in range(seeds)]
    with jax.enable_x64(True):
        compute = _make_program(None, "xla")
        exact = [compute(jax.tree.map(lambda x: x.astype("float64"), draw)) for draw in draws]
        exact = [_to_numpy(each) for each in exact]
    errors = {}
    for precision in PRECISIONS:
        compute = _make_program(precision, implementation)
        actual = [_to_numpy(compute(draw)) for draw in draws]
        errors[precision] = [_compare(*pair) for pair in zip(actual, exact, strict=True)]
    return errors


def _draw(operands: Operands, seed: int) -> Operands:
    """Replace query, key, value and cotangent by other draws of the same shapes."""
    arrays = (*operands[:3], operands.cotangent.values)
    keys = jax.random.split(jax.random.key(seed), len(arrays))
    query, key, value, cotangent = (
        jax.random.normal(random, x.shape, x.dtype) for random, x in zip(keys, arrays, strict=True)
    )
    return operands._replace(query=query, key=key, value=value, cotangent=Attended(cotangent))


def _make_program(precision: str | None, implementation: str | None):
    """Return a compiled function from `Operands` to the values and all gradients."""

    @jax.jit
    def compute(operands):
        def attend(*arrays):
            # By default, `Adapted` does not scale its scores, and all weight is on one key.
            scale = arrays[0].shape[3] ** -0.5
            options = {"precision": precision, "implementation": implementation}
            return attention(*arrays, scale=scale, **options).values

        values, vjp = jax.vjp(attend, *operands[:4])
        return values, vjp(operands.cotangent.values)

    return compute


def _to_numpy(outputs: tuple) -> list[np.ndarray]:
    """Return all arrays as vectors of float64."""
    return [np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(outputs)]


def _compare(actual: list[np.ndarray], exact: list[np.ndarray]) -> Errors:
    """Return the errors of the outputs of one draw."""
    errors = [
        float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(actual, exact, strict=True)
    ]
    return Errors(max(errors[:4]), max(errors[4:], default=0.0))


def _describe(errors: list[Errors]) -> str:
    """Return the median and the largest of each error, such as "4e-03 5e-03 / 1e-02 2e-02"."""
    columns = zip(*errors, strict=True)
    return " / ".join(f"{np.median(column):.1e} {max(column):.1e}" for column in columns)


def main() -> None:
    """Print a row of errors for each shape and variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--implementation", choices=tuple(IMPLEMENTATIONS))
    implementation = parser.parse_args().implementation
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, {SEEDS} draws")
    print(f"{'':36}" + "".join(f"{precision!s:>36}" for precision in PRECISIONS))
    for shape in SHAPES:
        for name in VARIANTS:
            errors = measure_errors(shape, CASES[name], implementation)
            cells = "".join(f"{_describe(each):>36}" for each in errors.values())
            print(f"{shape!s:18}{name:18}{cells}", flush=True)


if __name__ == "__main__":
    main()
