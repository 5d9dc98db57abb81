"""Eight CPU devices, shapes checked in every function of the package, nothing promoted silently."""

import os
import sys
from pathlib import Path

from tests import compiler

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {compiler.FLAGS}".strip()

import jax
import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

PACKAGE = Path(__file__).parent.parent / "distattn_jax"
# Functions of these give errors of their own about shapes: the checker must not come first.
SELF_CHECKED = {"distattn_jax.attention.call", "distattn_jax.modules.batch_axes"}

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_disable_most_optimizations", True)

# By file name: to walk the packages would import them, and the hook must come first.
modules = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
]
assert not any(name.startswith("distattn_jax") for name in sys.modules)
install_import_hook([name for name in modules if name not in SELF_CHECKED], "beartype.beartype")

settings.register_profile("default", deadline=None, derandomize=True, max_examples=8)
settings.load_profile("default")


@pytest.fixture
def eight_devices():
    """For tests of meshes: a machine with an accelerator has as many devices as it has."""
    if jax.device_count() < 8:
        pytest.skip(f"needs 8 devices, there are {jax.device_count()}")


@pytest.fixture
def optimised():
    """The compiler as users have it."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
