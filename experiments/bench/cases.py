"""Shapes and cases of the benchmark, and random input arrays.

A case is one attention variant computed by one implementation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention import (
    IMPLEMENTATIONS,
    Attended,
    DistanceAware,
    DotProduct,
    Variant,
    early_multiply,
    learnable_sigmoid,
)

LOCAL, GLOBAL = -0.1, 0.1  # w of local heads and of global heads
V = 1.0
# Matrix products of the backward pass relative to the forward pass: five to two.
BACKWARD = 2.5


class Shape(NamedTuple):
    """Sizes of the inputs.

    Attributes:
      batch: Batch size B.
      heads: Number of heads N.
      length: Number of queries L, which is also the number of keys.
      width: Width of a head H.
      calls: Number of calls inside one timed program.
    """

    batch: int
    heads: int
    length: int
    width: int
    calls: int

    @property
    def flops(self) -> int:
        """Number of floating-point operations of a forward pass.

        A forward pass has two matrix products. A multiplication and an addition are two operations.
        All entries of the attention map are counted, so an implementation that skips entries
        appears to compute more operations per second.
        """
        return 4 * self.batch * self.heads * self.length**2 * self.width

    def __str__(self) -> str:
        return f"B{self.batch} N{self.heads} L{self.length} H{self.width}"


SHAPES = {
    "paper": Shape(64, 16, 512, 16, calls=50),
    "bert": Shape(64, 12, 256, 64, calls=50),
    "mid": Shape(8, 16, 2048, 64, calls=50),
    "long": Shape(4, 16, 8192, 64, calls=1),
    "xlong": Shape(1, 16, 32768, 64, calls=1),
}
CPU_SHAPES = {
    "paper": Shape(2, 4, 64, 16, calls=10),
    "bert": Shape(2, 4, 32, 64, calls=10),
    "mid": Shape(1, 4, 128, 64, calls=10),
    "long": Shape(1, 4, 192, 64, calls=1),
    "xlong": Shape(1, 2, 256, 64, calls=1),
}


def describe_shape(name: str, shape: Shape) -> tuple[str, str]:
    """Return a title and a subtitle for a shape, e.g. ("long", "B4 N16 L8192 H64").

    On a CPU, a smaller shape replaces the shape of this name. The title is then its sizes.
    """
    return (name, str(shape)) if shape == SHAPES[name] else (str(shape), f"instead of {name}")


class Case(NamedTuple):
    """An attention variant, and the implementation that computes it.

    Attributes:
      implementation: Name of the implementation.
      weights: Distance weight w for the first half of the heads, and w for the second half. None
        selects dot-product attention, which has no distance weights.
      tolerance: Argument `tolerance` of `DistanceAware`.
      received: If True, also compute the received attention and its gradient. Received attention
        is the attention that each key receives, summed over queries.
    """

    implementation: str
    weights: tuple[float, float] | None = None
    tolerance: float | None = None
    received: bool = False


REFERENCE_CASE = "vanilla_cudnn"  # Ratios are relative to the time of this case.
MIXED = (LOCAL, GLOBAL)
CASES = {
    REFERENCE_CASE: Case("cudnn"),
    "vanilla": Case("pallas"),
    "vanilla_received": Case("pallas", received=True),
    "vanilla_xla": Case("xla"),
    "distance_aware": Case("pallas", MIXED),
    "distance_aware_local": Case("pallas", (LOCAL, LOCAL)),
    "distance_aware_global": Case("pallas", (GLOBAL, GLOBAL)),
    "distance_aware_exact": Case("pallas", MIXED, tolerance=0.0),
    "distance_aware_received": Case("pallas", MIXED, received=True),
    "distance_aware_xla": Case("xla", MIXED),
}
DEVICES = {"pallas": "a Hopper GPU", "cudnn": "an NVIDIA GPU"}  # by implementation


class Operands(NamedTuple):
    """Inputs of an attention call and of its backward pass.

    Attributes:
      query: Queries.
      key: Keys.
      value: Values.
      variant: Attention variant with its parameters.
      cotangent: Gradient with respect to the outputs, the input of the backward pass.
    """

    query: Float[Array, "B L N H"]
    key: Float[Array, "B L N H"]
    value: Float[Array, "B L N H"]
    variant: Variant
    cotangent: Attended


def draw_operands(shape: Shape, case: Case, dtype: str) -> Operands:
    """Draw normally distributed inputs. All cases of a shape get the same arrays.

    Args:
      shape: Sizes of the arrays.
      case: Case to time. If it computes the received attention (the attention that each key
        receives, summed over queries), a cotangent of the received attention is drawn too.
      dtype: Name of the dtype of query, key, value and the cotangent of the output.
    """
    batch, heads, length, width, _ = shape
    *keys, last = jax.random.split(jax.random.key(0), 5)
    query, key, value, cotangent = (
        jax.random.normal(key, (batch, length, heads, width), dtype) for key in keys
    )
    received = jax.random.normal(last, (batch, heads, length)) if case.received else None
    return Operands(query, key, value, make_variant(case, heads), Attended(cotangent, received))


def make_variant(case: Case, heads: int) -> Variant:
    """Return the attention variant of a case, with parameters for `heads` heads."""
    if case.weights is None:
        return DotProduct()
    first, second = case.weights
    weight = jnp.where(jnp.arange(heads) < heads // 2, first, second)
    return DistanceAware(
        weight,
        jnp.full(heads, V),
        mapping=learnable_sigmoid,
        adjust=early_multiply,
        tolerance=case.tolerance,
    )


def missing_device(case: Case) -> str | None:
    """Return the device that a case needs and this machine lacks, or None if the case can run."""
    runs_anywhere = IMPLEMENTATIONS[case.implementation].platforms is None
    if runs_anywhere or jax.default_backend() == "gpu":
        return None
    return DEVICES[case.implementation]
