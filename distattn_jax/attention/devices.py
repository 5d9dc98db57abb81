"""Properties of the local devices, used to choose an implementation of attention."""

import jax


def local_platform() -> str:
    """Return the platform of the local devices: "cpu", "cuda", "rocm" or "tpu"."""
    devices = jax.local_devices()
    return "cuda" if devices[0].platform == "gpu" else devices[0].platform


def has_gpu() -> bool:
    """Return True if the local devices are NVIDIA or AMD GPUs."""
    return local_platform() in ("cuda", "rocm")


def cuda_capabilities() -> list[float]:
    """Return the compute capability of each local CUDA device, such as 9.0 for Hopper.

    The list is empty on a machine without CUDA devices.
    """
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return []
    return [float(device.compute_capability) for device in devices]


def tpu_kinds() -> list[str]:
    """Return the kind of each local TPU, such as "TPU v5e", or an empty list without TPUs."""
    return [device.device_kind for device in jax.local_devices() if device.platform == "tpu"]
