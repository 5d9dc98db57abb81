"""Error of float32 attention with each precision: within the limits of docs/kernels.md."""

import numpy as np
import pytest

from experiments.bench.cases import CASES
from experiments.bench.precision_errors import PRECISIONS, measure_errors
from experiments.bench.shapes import Shape

# Largest error of values and gradients of the inputs, and largest median error of the gradients of
# w and v. The median is tested, because a sum of random terms is sometimes almost 0.
LIMITS = {"BF16_BF16_F32": (0.01, 0.03), "F16_F16_F32": (0.0025, 0.01), None: (2e-6, 1e-4)}


@pytest.fixture(scope="module")
def errors():
    return measure_errors(Shape(1, 2, 64, 16), CASES["distance_aware"], "xla", seeds=10)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_errors_are_within_the_documented_limits(precision, errors):
    inputs, parameters = zip(*errors[precision], strict=True)
    assert max(inputs) < LIMITS[precision][0]
    assert np.median(parameters) < LIMITS[precision][1]


def test_a_cpu_rounds_the_inputs_too(errors):
    """A matrix product of JAX with BF16_BF16_F32 would not round on a CPU."""
    bfloat16, float16, float32 = (np.median(errors[each], axis=0)[0] for each in PRECISIONS)
    assert bfloat16 > 3 * float16 > 300 * float32
