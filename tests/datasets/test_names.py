"""Tests of the public names of `distattn_jax.data` and `distattn_jax.datasets`."""

import subprocess
import sys
from pathlib import Path

import pytest

from distattn_jax import data, datasets
from distattn_jax.data import TextBuilder

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("package", [data, datasets], ids=["data", "datasets"])
def test_every_public_name_is_defined_and_others_raise_attribute_error(package):
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match=r"no attribute 'Unknown'"):
        _ = package.Unknown


@pytest.mark.parametrize(("name", "class_name"), datasets.DATASETS.items())
def test_each_data_set_has_a_builder_of_its_name(name, class_name):
    assert class_name.lower() == name.replace("_", "")
    assert issubclass(getattr(datasets, class_name), TextBuilder)


@pytest.mark.parametrize("package", ["distattn_jax.data", "distattn_jax.datasets"])
def test_importing_a_package_imports_neither_jax_nor_tensorflow_datasets(package):
    program = f"import sys, {package}; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert package in modules
    assert not {"jax", "tensorflow_datasets"} & set(modules)
