"""Properties of the machine that traces a program, used to choose an implementation of attention.

`assumed` replaces them, to find the choice that another machine would make.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import NamedTuple

import jax


class Machine(NamedTuple):
    """Properties of a machine.

    Attributes:
      platform: Platform of its devices: "cpu", "cuda", "rocm" or "tpu".
      cuda_capabilities: Compute capability of each CUDA device, such as 9.0 for Hopper.
      tpu_kinds: Kind of each TPU, such as "TPU v5e".
      jax_version: First two numbers of the version of JAX, such as (0, 11).
    """

    platform: str
    cuda_capabilities: list[float]
    tpu_kinds: list[str]
    jax_version: tuple[int, ...]

    @property
    def has_gpu(self) -> bool:
        """True if its devices are NVIDIA or AMD GPUs."""
        return self.platform in ("cuda", "rocm")


_assumed: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("assumed", default=None)


@contextlib.contextmanager
def assumed(machine: Machine) -> Iterator[None]:
    """Let `local_machine` return `machine` inside this `with` block."""
    token = _assumed.set(machine)
    try:
        yield
    finally:
        _assumed.reset(token)


def local_machine() -> Machine:
    """Return the properties of this machine and its local devices."""
    machine = _assumed.get()
    if machine is not None:
        return machine
    devices = jax.local_devices()
    platform = devices[0].platform
    try:
        cuda_devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        cuda_devices = []
    return Machine(
        platform="cuda" if platform == "gpu" else platform,
        cuda_capabilities=[float(device.compute_capability) for device in cuda_devices],
        tpu_kinds=[device.device_kind for device in devices if device.platform == "tpu"],
        jax_version=tuple(int(part) for part in jax.__version__.split(".")[:2]),
    )
