"""What is installed, and what importing it brings along."""

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import distattn_jax

ROOT = Path(__file__).parent.parent
HEAVY = ("tensorflow", "tensorflow_datasets", "grain", "orbax", "matplotlib", "tensorboard")


@pytest.mark.parametrize("module", ["distattn_jax", "distattn_jax.attention"])
def test_importing_brings_no_data_plotting_or_checkpoint_library(module):
    program = f"import sys, {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert module in loaded
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


def test_the_version_is_the_installed_one():
    assert importlib.metadata.version("distattn-jax") == distattn_jax.__version__


def test_the_wheel_holds_the_package_alone_and_is_typed(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert top == {"distattn_jax", f"distattn_jax-{distattn_jax.__version__}.dist-info"}
    assert "distattn_jax/py.typed" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "distattn_jax").rglob("*.py")}
    assert sources <= set(names)
