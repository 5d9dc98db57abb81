"""The installed package: its dependencies, its imports, and the contents of the wheel."""

import functools
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import distattn_jax
from tests.test_layers import find_imports

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTIONS = importlib.metadata.packages_distributions()
# spaCy and PyTorch are used in separate environments, by one script and by one benchmark.
SEPARATELY_INSTALLED = {"spacy", "torch"}


def normalize(name: str) -> str:
    """Return the name of a distribution as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    """Return the distribution names of requirements such as "jax>=0.10; python_version < ..."."""
    return {normalize(re.match(r"[\w.-]+", requirement)[0]) for requirement in requirements}


def imported(folder: str) -> set[str]:
    """Return the third-party modules that the files of a folder import, without submodules."""
    paths = (ROOT / folder).rglob("*.py")
    names = {name.split(".")[0] for path in paths for name in find_imports(path)}
    return names - sys.stdlib_module_names - {"distattn_jax", "experiments"}


@functools.cache
def required(folder: str) -> set[str]:
    """Return the distributions that provide the third-party modules imported in a folder."""
    known, names = declared(PROJECT["dependencies"] + EXTRAS["hub"]), set()
    for module in imported(folder):
        found = {normalize(name) for name in DISTRIBUTIONS.get(module, [module])}
        # Several distributions may share a module name (orbax): a declared one is preferred.
        names |= found & known or found
    return names - {"jaxlib"}  # each version of JAX installs its own version of jaxlib


def test_the_dependencies_are_what_the_package_imports():
    assert required("distattn_jax") == declared(PROJECT["dependencies"] + EXTRAS["hub"])


def test_the_extra_experiments_is_what_only_experiments_import():
    only_experiments = required("experiments") - required("distattn_jax") - SEPARATELY_INSTALLED
    assert only_experiments == declared(EXTRAS["experiments"])
    assert "distattn-jax[experiments]" in EXTRAS["dev"]


def test_attention_can_be_imported_with_jax_jaxtyping_and_numpy_alone():
    others = declared(PROJECT["dependencies"]) - {"jax", "jaxtyping", "ml-dtypes", "numpy"}
    blocked = [name for name, found in DISTRIBUTIONS.items() if others & set(map(normalize, found))]
    assert {"chex", "flax", "optax", "orbax", "tensorflow_datasets"} <= set(blocked)
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked}))"
    program += "; import distattn_jax.attention"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_version_equals_the_installed_version():
    assert importlib.metadata.version("distattn-jax") == distattn_jax.__version__


def test_the_citation_names_this_version_and_license():
    citation = (ROOT / "CITATION.cff").read_text()
    found = dict(re.findall(r"^(version|license): (.+)$", citation, re.MULTILINE))
    assert found == {"version": distattn_jax.__version__, "license": PROJECT["license"]}


def test_the_wheel_contains_the_typed_package_alone(tmp_path):
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
    sources = {
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "page/*", "trained/*/*")
        for path in (ROOT / "distattn_jax").rglob(pattern)
    }
    assert "distattn_jax/plot/page/page.css" in sources
    assert "distattn_jax/trained/nearest/model.safetensors" in sources
    assert sources <= set(names)
