"""Table of implementations, and the choice among them.

The choice has two steps. In Python, `unsupported_reason` rules out implementations by shape, dtype
and requested outputs. When the program is lowered, the platform decides among the others, so that
one traced program can be lowered for any platform.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax

from distattn_jax.attention import cudnn, pallas, reference, xla
from distattn_jax.attention.arguments import Attended, AttentionCall


class Implementation(NamedTuple):
    """One way to compute a call.

    Attributes:
      run: Computes the outputs of a call.
      platforms: Platforms that `run` can be lowered for. None means all platforms.
      unsupported_reason: Returns why `run` cannot compute a call, or None if it can.
    """

    run: Callable[[AttentionCall], Attended]
    platforms: tuple[str, ...] | None
    unsupported_reason: Callable[[AttentionCall], str | None]


def _always_supported(call: AttentionCall) -> None:
    return None


IMPLEMENTATIONS = {
    "pallas": Implementation(pallas.run, ("cuda",), pallas.unsupported_reason),
    "cudnn": Implementation(cudnn.run, ("cuda",), cudnn.unsupported_reason),
    "xla": Implementation(xla.run, None, _always_supported),
    "reference": Implementation(reference.run, None, _always_supported),
}


def compute(call: AttentionCall, implementation: str | None) -> Attended:
    """Runs the call by the implementation named, or by the first that can serve it."""
    if implementation is None:
        return _compute_by_first(call)
    if implementation not in IMPLEMENTATIONS:
        names = ", ".join(repr(name) for name in IMPLEMENTATIONS)
        raise ValueError(f"implementation must be None or one of {names}; got {implementation!r}.")
    chosen = IMPLEMENTATIONS[implementation]
    reason = chosen.unsupported_reason(call)
    if reason is not None:
        raise ValueError(
            f"implementation={implementation!r} cannot serve this call: {reason}. "
            "Change that, or leave implementation=None."
        )
    return chosen.run(call)


def _compute_by_first(call: AttentionCall) -> Attended:
    """The first of the table that serves on the platform the program is lowered for."""
    serving = [way for way in IMPLEMENTATIONS.values() if way.unsupported_reason(call) is None]
    everywhere = next(way for way in serving if way.platforms is None)
    branches: dict[str, Callable[[], Attended]] = {}
    for way in serving[: serving.index(everywhere)]:
        for platform in way.platforms or ():
            branches.setdefault(platform, functools.partial(way.run, call))
    if not branches:
        return everywhere.run(call)
    # Recomputed, so that what it would keep for a backward pass is not kept for the others.
    default = jax.checkpoint(functools.partial(everywhere.run, call))
    return jax.lax.platform_dependent(default=default, **branches)
