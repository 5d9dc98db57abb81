"""Use an installed distattn_jax as a new user would; `.ci/smoke` runs it in a fresh environment.

    python smoke.py public_names.txt

The program imports every public name, computes attention and a gradient, and asks the trained
models that the package contains. It needs nothing but the package and its dependencies.
"""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import distattn_jax
from distattn_jax.attention import DistanceAware, attention
from distattn_jax.tasks import TRAINED, attend_to_texts, load


def check_installation() -> None:
    """Check that the package is the installed one, of the version that pip knows."""
    folder = Path(distattn_jax.__file__).resolve()
    assert folder.is_relative_to(Path(sys.prefix).resolve()), f"{folder} is not installed"
    assert importlib.metadata.version("distattn-jax") == distattn_jax.__version__


def check_public_names(names: Path) -> int:
    """Import every public name of a list, and return their number."""
    lines = [line for line in names.read_text().splitlines() if "removed in" not in line]
    for line in lines:
        module, _, name = line.split()[0].rpartition(".")
        getattr(importlib.import_module(module), name)
    return len(lines)


def check_attention() -> None:
    """Compare distance-aware attention with its equation, and take a gradient."""
    query, key, value = np.random.default_rng(0).normal(size=(3, 1, 5, 1, 4)).astype(np.float32)
    w, v = 0.3, 0.5
    scores = np.maximum(np.einsum("qd,kd->qk", query[0, :, 0], key[0, :, 0]) / 2, 0)
    distances = np.abs(np.arange(5)[:, None] - np.arange(5))
    weights = np.exp(scores * (1 + np.exp(v)) / (1 + np.exp(v - w * distances)))
    expected = weights / weights.sum(axis=1, keepdims=True) @ value[0, :, 0]

    def attend(weight: jax.Array) -> jax.Array:
        return attention(query, key, value, DistanceAware(weight, jnp.array([v]))).values

    np.testing.assert_allclose(attend(jnp.array([w]))[0, :, 0], expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(jax.grad(lambda weight: attend(weight).sum())(jnp.array([w]))).all()


def check_models() -> None:
    """Load every trained model of the package, and look at its attention in one sentence."""
    for folder in TRAINED.values():
        loaded = load(folder)
        for part in attend_to_texts(loaded, ["the service was good"]).values():
            np.testing.assert_allclose(part.maps.sum(axis=-1), 1, rtol=1e-4)


if __name__ == "__main__":
    check_installation()
    count = check_public_names(Path(sys.argv[1]))
    check_attention()
    check_models()
    print(
        f"distattn_jax {distattn_jax.__version__}: {count} public names, attention and "
        f"{len(TRAINED)} trained models work."
    )
