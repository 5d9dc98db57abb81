"""How a variant is computed: one table, first come, first served; what follows `xla` must be named.

What can serve a call is decided twice: in Python, by shape, dtype and outputs (`refuses`), and when
the program is lowered, by platform. So one traced program lowers for any platform, one at a time.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from distattn_jax.attention import cudnn, pallas
from distattn_jax.attention.head import Attended, as_printed, in_blocks
from distattn_jax.attention.lift import Call, lift
from distattn_jax.attention.variant import wide

LARGEST_MAP = 256 * 2**20  # bytes of the (B, N, T, S) map that may be kept for a backward pass
LARGEST_BLOCK = 64 * 2**20  # bytes of it that are computed at once,
FEWEST_ROWS = 16  # but never fewer queries than this

# Where the outputs of one example have their heads.
HEAD_AXES = Attended(values=1, received=0, weights=0)  # type: ignore[arg-type]


class Implementation(NamedTuple):
    """A way to compute a call, the platforms it is for (None: all), and what it refuses."""

    run: Callable[[Call], Attended]
    platforms: tuple[str, ...] | None
    refuses: Callable[[Call], str | None]


def reference(call: Call) -> Attended:
    """The equations as printed; for checking, not for speed."""
    return lift(functools.partial(as_printed, options=call.options), call, HEAD_AXES)


def xla(call: Call) -> Attended:
    """The algebraic forms, left to the compiler; a large map in blocks of queries."""
    batch, queries, heads, _ = call.query.shape
    row = batch * heads * call.key.shape[1] * wide(call.query.dtype).itemsize
    rows = max(FEWEST_ROWS, 2 ** math.floor(math.log2(max(1, LARGEST_BLOCK / row))))
    one_head = functools.partial(
        in_blocks, options=call.options, rows=rows, recompute=row * queries > LARGEST_MAP
    )
    return lift(one_head, call, HEAD_AXES)


def _nothing(call: Call) -> None:
    return None


IMPLEMENTATIONS = {
    "pallas": Implementation(pallas.run, ("cuda",), pallas.refuses),
    "cudnn": Implementation(cudnn.run, ("cuda",), cudnn.refuses),
    "xla": Implementation(xla, None, _nothing),
    "reference": Implementation(reference, None, _nothing),
}


def compute(call: Call, implementation: str | None) -> Attended:
    """Runs the call by the implementation named, or by the first that can serve it."""
    if implementation is None:
        return _compute_by_first(call)
    if implementation not in IMPLEMENTATIONS:
        names = ", ".join(repr(name) for name in IMPLEMENTATIONS)
        raise ValueError(f"implementation must be None or one of {names}; got {implementation!r}.")
    chosen = IMPLEMENTATIONS[implementation]
    reason = chosen.refuses(call)
    if reason is not None:
        raise ValueError(
            f"implementation={implementation!r} cannot serve this call: {reason}. "
            "Change that, or leave implementation=None."
        )
    return chosen.run(call)


def _compute_by_first(call: Call) -> Attended:
    """The first of the table that serves on the platform the program is lowered for."""
    serving = [way for way in IMPLEMENTATIONS.values() if way.refuses(call) is None]
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
