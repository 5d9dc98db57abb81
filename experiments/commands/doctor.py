"""Describe this installation for a bug report: versions, devices, kernels and caches."""

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

import distattn_jax
from distattn_jax.attention import explain_implementation
from distattn_jax.attention.devices import local_machine
from distattn_jax.train import DataConfig, OutputConfig
from distattn_jax.train.run import environment
from experiments.bench import variants
from experiments.bench.shapes import Shape
from experiments.commands.train import enable_compilation_cache

SHAPE = Shape(batch=8, length=2048, heads=16, width=64)  # of the explained calls
DTYPES = ("bfloat16", "float32")
VARIANTS: dict[str, Callable[..., Any]] = {
    "DotProduct": variants.dot_product,
    "DistanceAware": variants.distance_aware,
    "TwoSided": variants.two_sided,
    "RelativePosition": variants.relative_position,
    "TransformerXL": variants.transformer_xl,
    "DistanceBias (ALiBi)": functools.partial(variants.distance_bias, function="alibi"),
    "Adapted": variants.adapted,
}
# Only these environment variables are shown, because others may hold secrets.
SHOWN_VARIABLES = re.compile(r"(CUDA|JAX|LIBTPU|NVIDIA|TF_CPP|TPU|XLA)_\w*")
# Extras whose packages can change results; those of developers cannot.
EXTRAS = re.compile(r"extra == ['\"](cuda|experiments|hub|tpu)['\"]")
SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_disable_jit", "jax_debug_nans")


class Kernels(NamedTuple):
    """Implementations of one variant on this machine, for one dtype of the inputs.

    Attributes:
      variant: Name of the variant.
      dtype: Name of the dtype of query, key and value.
      chosen: Implementation that `attention` chooses.
      passed_over: Reason against each other implementation.
    """

    variant: str
    dtype: str
    chosen: str | None
    passed_over: dict[str, str]


def main(arguments: Sequence[str]) -> None:
    """Run `doctor [--json]`: print the description as text or as JSON."""
    parser = argparse.ArgumentParser(prog="python -m experiments doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parsed = parser.parse_args(arguments)
    enable_compilation_cache()  # as the other commands do, so that the folder is theirs
    found = examine()
    print(json.dumps(found, indent=2) if parsed.json else "\n".join(format_report(found)))


def examine() -> dict[str, Any]:
    """Return the description of this installation. All values can be written as JSON."""
    kernels = [explain_kernels(name, dtype) for name in VARIANTS for dtype in DTYPES]
    return {
        "version": distattn_jax.__version__,
        "commit": environment()["commit"],
        "source": str(Path(distattn_jax.__file__).parent),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "packages": list_packages(),
        "devices": list_devices(),
        "settings": {name: getattr(jax.config, name) for name in SETTINGS},
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if SHOWN_VARIABLES.fullmatch(name)
        },
        "kernels": [kernel._asdict() for kernel in kernels],
        "folders": list_folders(),
    }


def list_packages() -> dict[str, str | None]:
    """Return the versions of packages that ours requires, and of the GPU and TPU plugins of JAX.

    The version of a required package that is not installed is None. Optional packages are listed
    only if they are installed.
    """
    installed = {
        name.lower().replace("_", "-"): distribution.version
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"])
    }
    try:
        requirements = importlib.metadata.requires("distattn-jax") or []
    except importlib.metadata.PackageNotFoundError:  # imported from a folder, not installed
        requirements = ["flax", "jax", "numpy", "optax", "orbax-checkpoint"]
    found: dict[str, str | None] = {"jaxlib": installed.get("jaxlib")}
    for requirement in requirements:
        match = re.match(r"[\w.-]+", requirement)
        name = match[0].lower().replace("_", "-") if match else ""
        is_optional = "extra ==" in requirement
        if not is_optional or (name in installed and EXTRAS.search(requirement)):
            found[name] = installed.get(name)
    found |= {
        name: version
        for name, version in installed.items()
        if name.startswith(("jax-cuda", "libtpu", "nvidia-cudnn"))
    }
    found.pop("distattn-jax", None)  # The extras of our package require each other.
    return dict(sorted(found.items()))


def list_devices() -> list[dict[str, Any]]:
    """Return the platform and the kind of this process's devices, and the number of each kind."""
    kinds = [(device.platform, device.device_kind) for device in jax.local_devices()]
    return [
        {"platform": name, "kind": kind, "count": kinds.count((name, kind))}
        for name, kind in dict.fromkeys(kinds)
    ]


def explain_kernels(variant: str, dtype: str) -> Kernels:
    """Return the implementation of a variant on this machine, and the reasons against others.

    Args:
      variant: Name of the variant, a key of `VARIANTS`.
      dtype: Name of the dtype of query, key and value.
    """
    make = functools.partial(VARIANTS[variant], SHAPE)
    x = jax.ShapeDtypeStruct((SHAPE.batch, SHAPE.length, SHAPE.heads, SHAPE.width), dtype)
    explanation = explain_implementation(x, x, x, jax.eval_shape(make, jax.random.key(0)))
    by_platform = {"cpu": explanation.cpu, "tpu": explanation.tpu}
    choice = by_platform.get(local_machine().platform, explanation.gpu)
    return Kernels(variant, dtype, choice.implementation, choice.passed_over)


def list_folders() -> dict[str, dict[str, Any]]:
    """Return the folders of caches and runs: their path, number of files and size in bytes.

    The number of files is None if the folder does not exist. The path is None if the cache is
    disabled.
    """
    values: Any = jax.config.values  # Attributes of the config are not typed.
    places = {
        "compiled programs (JAX_COMPILATION_CACHE_DIR)": values["jax_compilation_cache_dir"],
        "prepared data (--data.directory)": DataConfig().directory,
        "runs (--output.directory)": OutputConfig().directory,
    }
    return {name: _measure(place) for name, place in places.items()}


def _measure(place: str | None) -> dict[str, Any]:
    """Return the absolute path of a folder, its number of files and their size in bytes."""
    if not place or "://" in place:
        return {"path": place or None, "files": None, "bytes": None}
    folder = Path(place).resolve()
    if not folder.is_dir():
        return {"path": str(folder), "files": None, "bytes": None}
    sizes = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # Another process may have deleted the file.
            if path.is_file():
                sizes.append(path.stat().st_size)
    return {"path": str(folder), "files": len(sizes), "bytes": sum(sizes)}


def format_report(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the text that describes an installation.

    Args:
      found: Result of `examine`.
    """
    commit = f", commit {found['commit']}" if found["commit"] else ""
    yield f"distattn_jax {found['version']}{commit}"
    yield f"  {found['source']}"
    yield f"Python {found['python']}, {found['system']}, {found['processor']}"
    yield "\nPackages"
    packages = {name: version or "MISSING" for name, version in found["packages"].items()}
    yield from _align(packages.items())
    yield "\nDevices"
    yield from _align(
        (f"{each['count']} x {each['platform']}", each["kind"]) for each in found["devices"]
    )
    yield "\nSettings"
    settings = {**found["settings"], **found["variables"]}
    yield from _align((name, str(value)) for name, value in settings.items())
    yield from _format_kernels([Kernels(**kernel) for kernel in found["kernels"]])
    yield "\nFolders"
    yield from _align(
        (name, folder["path"] or "disabled", _describe_size(folder))
        for name, folder in found["folders"].items()
    )


def _format_kernels(kernels: Sequence[Kernels]) -> Iterator[str]:
    """Yield a table of the chosen implementations, and the reasons against the fused kernels."""
    size = f"B {SHAPE.batch}, T {SHAPE.length}, N {SHAPE.heads}, H {SHAPE.width}"
    yield f"\nImplementation of attention on this machine ({size})"
    chosen = {(kernel.variant, kernel.dtype): str(kernel.chosen) for kernel in kernels}
    rows = [(name, *(chosen[name, dtype] for dtype in DTYPES)) for name in VARIANTS]
    yield from _align([("variant", *DTYPES), *rows])
    reasons: dict[tuple[str, str], list[str]] = {}
    for kernel in kernels:
        for name in ("pallas", "cudnn"):
            if name in kernel.passed_over:
                call = f"{kernel.variant} in {kernel.dtype}"
                reasons.setdefault((name, kernel.passed_over[name]), []).append(call)
    if reasons:
        yield "\nReasons against the fused kernels"
    for (name, reason), calls in reasons.items():
        served = "all calls above" if len(calls) == len(kernels) else ", ".join(calls)
        yield f"  {name}: {reason} ({served})"


def _describe_size(folder: Mapping[str, Any]) -> str:
    """Return the number of files in a folder and their size, as text."""
    if folder["files"] is None:
        return "" if folder["path"] is None else "does not exist"
    return f"{folder['files']:,} files, {folder['bytes'] / 1e6:.1f} MB"


def _align(rows: Any) -> Iterator[str]:
    """Yield indented lines of rows of texts, with aligned columns."""
    rows = [tuple(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
