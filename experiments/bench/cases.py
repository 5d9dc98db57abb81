"""What is timed: named shapes, named cases, and the arrays they are timed on."""

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

LOCAL, GLOBAL = -0.1, 0.1  # w of local heads and of global ones
V = 1.0
BACKWARD = 2.5  # matrix products of a backward pass, to each of the forward pass: five to two


class Shape(NamedTuple):
    """Sizes of the inputs, and how many calls are timed inside one program."""

    batch: int
    heads: int
    length: int
    width: int
    calls: int

    @property
    def flops(self) -> int:
        """Of one forward pass: QKᵀ and the product with V, 2 for each multiply-add.

        The whole map is counted, whatever is skipped: to skip some shows as a higher rate.
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
TINY = {  # the same, for a CPU
    "paper": Shape(2, 4, 64, 16, calls=10),
    "bert": Shape(2, 4, 32, 64, calls=10),
    "mid": Shape(1, 4, 128, 64, calls=10),
    "long": Shape(1, 4, 192, 64, calls=1),
    "xlong": Shape(1, 2, 256, 64, calls=1),
}


class Case(NamedTuple):
    """One way to attend.

    Attributes:
      implementation: the one that is asked for.
      weights: w of the first half of the heads, and of the second; None: dot-product attention.
      tolerance: see `DistanceAware`.
      received: whether the attention that keys receive is asked for, and has a gradient.
    """

    implementation: str
    weights: tuple[float, float] | None = None
    tolerance: float | None = None
    received: bool = False


YARDSTICK = "vanilla_cudnn"  # what every time is divided by
MIXED = (LOCAL, GLOBAL)
CASES = {
    YARDSTICK: Case("cudnn"),
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
NEEDS = {"pallas": "a Hopper GPU", "cudnn": "an NVIDIA GPU"}


class Operands(NamedTuple):
    """All that goes into a call and its gradient."""

    query: Float[Array, "B L N H"]
    key: Float[Array, "B L N H"]
    value: Float[Array, "B L N H"]
    variant: Variant
    cotangent: Attended  # of what the call gives


def drawn(shape: Shape, case: Case, dtype: str) -> Operands:
    """Normal numbers, the same for every case."""
    batch, heads, length, width, _ = shape
    *keys, last = jax.random.split(jax.random.key(0), 5)
    query, key, value, change = (
        jax.random.normal(key, (batch, length, heads, width), dtype) for key in keys
    )
    received = jax.random.normal(last, (batch, heads, length)) if case.received else None
    return Operands(query, key, value, variant_of(case, heads), Attended(change, received))


def variant_of(case: Case, heads: int) -> Variant:
    """The variant, with w and v for so many heads."""
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


def lacks(case: Case) -> str | None:
    """The device that a case needs and that is not here, or None."""
    is_for_all = IMPLEMENTATIONS[case.implementation].platforms is None
    return None if is_for_all or jax.default_backend() == "gpu" else NEEDS[case.implementation]
