"""Table of the implementations of attention, and the functions that choose one of them.

The choice has two steps. When JAX traces the program, `unsupported_reason` excludes implementations
that do not support the arguments of the call. When JAX lowers the program for a platform, it takes
the first remaining implementation for this platform. The same traced program can therefore be
lowered for any platform.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from distattn_jax.attention import cudnn, devices, fused_kernels, reference, xla
from distattn_jax.attention.arguments import Attended, AttentionCall

FUSED, PORTABLE = "pallas", "pallas_portable"
Compute = Callable[[AttentionCall], Attended]


class Implementation(NamedTuple):
    """Implementation of attention for one platform, or for all platforms.

    Attributes:
      run: Function that computes attention.
      platform: Platform that `run` can be lowered for: "cuda" or "tpu". None means all platforms.
      unsupported_reason: Function that returns an error text if `run` does not support a call,
        otherwise None.
    """

    run: Compute
    platform: str | None
    unsupported_reason: Callable[[AttentionCall], str | None]


def _always_supported(call: AttentionCall) -> None:
    """Return None, which means that the implementation supports the call."""


# By name, in the order of preference: one for each platform, or one for all platforms. The choice
# ends at "xla", which supports every call. "cudnn" comes first where it is faster. "pallas" and its
# portable form are not chosen where they may lose too many digits.
IMPLEMENTATIONS = {
    FUSED: (
        Implementation(fused_kernels.run_on_gpu, "cuda", fused_kernels.unsupported_reason_on_gpu),
        Implementation(fused_kernels.run_on_tpu, "tpu", fused_kernels.unsupported_reason_on_tpu),
    ),
    "cudnn": (Implementation(cudnn.run, "cuda", cudnn.unsupported_reason),),
    PORTABLE: (
        Implementation(
            fused_kernels.run_portably, "cuda", fused_kernels.unsupported_portable_reason
        ),
    ),
    "xla": (
        Implementation(xla.run_on_gpu, None, xla.unsupported_reason_on_gpu),
        Implementation(xla.run, None, _always_supported),
    ),
    "reference": (Implementation(reference.run, None, _always_supported),),
}


def check_name(name: Any) -> None:
    """Raise ValueError unless `name` is None or the name of an implementation."""
    if name is None or (isinstance(name, str) and name in IMPLEMENTATIONS):
        return
    names = ", ".join(repr(name) for name in IMPLEMENTATIONS)
    raise ValueError(f"implementation must be None or one of {names}; got {name!r}.")


def compute(call: AttentionCall, name: str | None) -> Attended:
    """Compute attention with the named implementation.

    Args:
      call: Arguments of `attention`.
      name: Name of the implementation. None selects the first implementation, in the order of
        preference, that supports the call and the platform.
    """
    check_name(name)
    if name is None:
        return _compute_by_first_supported(call)
    return _select_by_device(name, call).run(call)


def _select_by_device(name: str, call: AttentionCall) -> Implementation:
    """Return the implementation of this name for the platform of the local devices.

    For example, "pallas" has one implementation for CUDA and one for TPUs. If none is for the local
    platform, choose among all of this name: the program may be lowered for another machine, or a
    test may interpret the kernels. Raise ValueError if no candidate supports the call.
    """
    platform = devices.local_machine().platform
    named = IMPLEMENTATIONS[name]
    if name == FUSED:  # The portable form serves it on other GPUs than Hopper.
        named += IMPLEMENTATIONS[PORTABLE]
    candidates = [each for each in named if each.platform in (None, platform)] or named
    reasons = [each.unsupported_reason(call) for each in candidates]
    if None not in reasons:
        raise ValueError(
            f"implementation={name!r} does not support this call: {reasons[0]}. "
            "Change that, or use implementation=None."
        )
    return candidates[reasons.index(None)]


def list_candidates(call: AttentionCall) -> Iterator[tuple[str, Implementation, str | None]]:
    """Yield all implementations in the order of preference.

    Yields:
      Tuples (name, implementation, reason). The reason says why the implementation must not be
      chosen. It is None if the implementation supports the call.
    """
    names = ["cudnn", *IMPLEMENTATIONS] if cudnn.is_faster(call) else IMPLEMENTATIONS
    for name in dict.fromkeys(names):
        for implementation in IMPLEMENTATIONS[name]:
            if name in (FUSED, PORTABLE) and fused_kernels.may_lose_digits(call):
                yield name, implementation, "its scores may be so large that it loses many digits"
            elif name == PORTABLE and not fused_kernels.CHOOSES_PORTABLE:
                yield name, implementation, "fused_kernels.CHOOSES_PORTABLE is False"
            else:
                yield name, implementation, implementation.unsupported_reason(call)


def _compute_by_first_supported(call: AttentionCall) -> Attended:
    """Compute attention with the first implementation that supports the call and the platform."""
    branches: dict[str, Compute] = {}
    for _, implementation, reason in list_candidates(call):
        if reason is not None:
            continue
        if implementation.platform is None:
            fallback = implementation.run
            break
        branches.setdefault(implementation.platform, implementation.run)
    if not branches:
        return fallback(call)
    return _run_on_platform(call, tuple(branches.items()), fallback)


# Under jit, repeated calls outside of any other jit share one compilation.
@functools.partial(jax.jit, static_argnames=("branches", "fallback"), inline=True)
def _run_on_platform(
    call: AttentionCall, branches: tuple[tuple[str, Compute], ...], fallback: Compute
) -> Attended:
    """Compute attention with the implementation for the platform that the program is lowered for.

    Args:
      call: Arguments of `attention`.
      branches: Pairs (platform, implementation).
      fallback: Implementation for all other platforms.
    """
    # Checkpoint the fallback, so that its residuals are not stored when another branch runs.
    return jax.lax.platform_dependent(call, default=jax.checkpoint(fallback), **dict(branches))
