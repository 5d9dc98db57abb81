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
      jax_version: First two numbers of the version of JAX.
    """

    platform: str
    cuda_capabilities: list[float]
    tpu_kinds: list[str]
    jax_version: tuple[int, ...]


_assumed: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("assumed", default=None)


@contextlib.contextmanager
def assumed(machine: Machine) -> Iterator[None]:
    """Let the functions below return the properties of `machine` inside this `with` block."""
    token = _assumed.set(machine)
    try:
        yield
    finally:
        _assumed.reset(token)


def local_machine() -> Machine:
    """Return all properties of this machine."""
    return Machine(local_platform(), cuda_capabilities(), tpu_kinds(), jax_version())


def local_platform() -> str:
    """Return the platform of the local devices: "cpu", "cuda", "rocm" or "tpu"."""
    machine = _assumed.get()
    if machine is not None:
        return machine.platform
    devices = jax.local_devices()
    return "cuda" if devices[0].platform == "gpu" else devices[0].platform


def has_gpu() -> bool:
    """Return True if the local devices are NVIDIA or AMD GPUs."""
    return local_platform() in ("cuda", "rocm")


def cuda_capabilities() -> list[float]:
    """Return the compute capability of each local CUDA device, such as 9.0 for Hopper.

    The list is empty on a machine without CUDA devices.
    """
    machine = _assumed.get()
    if machine is not None:
        return machine.cuda_capabilities
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return []
    return [float(device.compute_capability) for device in devices]


def tpu_kinds() -> list[str]:
    """Return the kind of each local TPU, such as "TPU v5e", or an empty list without TPUs."""
    machine = _assumed.get()
    if machine is not None:
        return machine.tpu_kinds
    return [device.device_kind for device in jax.local_devices() if device.platform == "tpu"]


def jax_version() -> tuple[int, ...]:
    """Return the first two numbers of the version of JAX, such as (0, 11)."""
    machine = _assumed.get()
    if machine is not None:
        return machine.jax_version
    return tuple(int(part) for part in jax.__version__.split(".")[:2])
