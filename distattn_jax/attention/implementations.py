"""Table of the implementations of attention, and the functions that choose one of them.

The choice has two steps. While the program is traced, `unsupported_reason` excludes implementations
that do not support the arguments of the call. When the program is lowered, the first remaining
implementation for the platform is chosen. The same traced program can therefore be lowered for any
platform.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax

from distattn_jax.attention import cudnn, pallas, reference, xla
from distattn_jax.attention.arguments import Attended, AttentionCall

Run = Callable[[AttentionCall], Attended]


class Implementation(NamedTuple):
    """One way to compute attention.

    Attributes:
      run: Computes attention for the arguments of a call.
      platforms: Platforms that `run` can be lowered for. None means all platforms.
      unsupported_reason: Returns the reason why `run` does not support a call. It returns None if
        `run` supports the call.
    """

    run: Run
    platforms: tuple[str, ...] | None
    unsupported_reason: Callable[[AttentionCall], str | None]


def _always_supported(call: AttentionCall) -> None:
    """Return None, which means that the implementation supports every call."""


# In the order of preference. The choice ends at "xla", which supports every call.
IMPLEMENTATIONS = {
    "pallas": Implementation(pallas.run, ("cuda",), pallas.unsupported_reason),
    "cudnn": Implementation(cudnn.run, ("cuda",), cudnn.unsupported_reason),
    "xla": Implementation(xla.run, None, _always_supported),
    "reference": Implementation(reference.run, None, _always_supported),
}


def compute(call: AttentionCall, name: str | None) -> Attended:
    """Compute attention with the named implementation, or with the first that supports the call.

    Args:
      call: Arguments of `attention`.
      name: Name of the implementation. None selects the first implementation that supports the call
        and the platform.
    """
    if name is None:
        return _compute_by_first_supported(call)
    if name not in IMPLEMENTATIONS:
        names = ", ".join(repr(name) for name in IMPLEMENTATIONS)
        raise ValueError(f"implementation must be None or one of {names}; got {name!r}.")
    implementation = IMPLEMENTATIONS[name]
    reason = implementation.unsupported_reason(call)
    if reason is not None:
        raise ValueError(
            f"implementation={name!r} does not support this call: {reason}. "
            "Change that, or use implementation=None."
        )
    return implementation.run(call)


def _compute_by_first_supported(call: AttentionCall) -> Attended:
    """Compute attention with the first implementation that supports the call and the platform."""
    supported = [
        implementation
        for implementation in IMPLEMENTATIONS.values()
        if implementation.unsupported_reason(call) is None
    ]
    fallback = next(
        implementation for implementation in supported if implementation.platforms is None
    )
    branches: dict[str, Run] = {}
    for implementation in supported[: supported.index(fallback)]:
        for platform in implementation.platforms or ():
            branches.setdefault(platform, implementation.run)
    if not branches:
        return fallback.run(call)
    return _run_on_platform(call, tuple(branches.items()), fallback.run)


# Under jit, repeated calls outside of any other jit share one compilation.
@functools.partial(jax.jit, static_argnames=("branches", "fallback"), inline=True)
def _run_on_platform(
    call: AttentionCall, branches: tuple[tuple[str, Run], ...], fallback: Run
) -> Attended:
    """Compute attention with the implementation for the platform of the lowered program.

    Args:
      call: Arguments of `attention`.
      branches: Names of platforms, each with the implementation for this platform.
      fallback: Implementation for all other platforms.
    """
    # Checkpoint the fallback, so that its residuals are not stored when another branch runs.
    return jax.lax.platform_dependent(call, default=jax.checkpoint(fallback), **dict(branches))
