"""Switch between compiled kernels and the Pallas interpreters, which run kernels on a CPU."""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

from distattn_jax.attention.fused.kernels import KernelFactory, Kernels, Plan
from distattn_jax.attention.fused.operands import Operands

_interpreted = contextvars.ContextVar("interpreted", default=False)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Run kernels in a Pallas interpreter on a CPU, if they are traced inside this `with` block.

    The interpreter for GPUs also detects races. Both interpreters, for GPUs and for TPUs, are slow:
    use them for tests only.
    """
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def is_interpreted() -> bool:
    """Return True inside a `with interpreted():` block."""
    return _interpreted.get()


def select_kernels(make_kernels: KernelFactory) -> KernelFactory:
    """Return a function that makes compiled kernels, or interpreted kernels.

    Inside a `with interpreted():` block, the kernels of the result run in an interpreter. Otherwise
    the result is `make_kernels` itself.

    Args:
      make_kernels: Function that makes compiled kernels.
    """
    return _interpret(make_kernels) if is_interpreted() else make_kernels


@functools.cache  # Equal factories are equal static arguments, so that their programs are shared.
def _interpret(make_kernels: KernelFactory) -> KernelFactory:
    """Return a function that makes the same kernels as `make_kernels`, but interpreted.

    The kernels always run in a Pallas interpreter, on a CPU.
    """

    def interpret_kernel(kernel: Any) -> Any:
        if not callable(kernel):
            return kernel

        def run(*arguments):
            with interpreted():
                return kernel(*arguments)

        return run

    def make_interpreted_kernels(plan: Plan, operands: Operands) -> Kernels:
        with interpreted():
            return Kernels(*[interpret_kernel(kernel) for kernel in make_kernels(plan, operands)])

    return make_interpreted_kernels
