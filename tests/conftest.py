"""Set-up of all tests: eight CPU devices, shape checks, no silent promotion; shared fixtures."""

import fcntl
import gc
import os
import sys
from pathlib import Path

from tests import compiler

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {compiler.FLAGS}".strip()

import jax
import jaxtyping
import pytest
from hypothesis import settings

from tests import annotations

PACKAGE = Path(__file__).parent.parent / "distattn_jax"
# These modules raise their own errors about shapes, so the shape checker must not check them.
SELF_CHECKED = {"distattn_jax.attention.call", "distattn_jax.modules.batch_axes"}

compiler.share_contexts()
annotations.skip_shapes_without_annotations()
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_disable_most_optimizations", True)

# The list comes from file names, because importing a module before the hook would skip its checks.
modules = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in PACKAGE.rglob("*.py")
]
assert not any(name.startswith("distattn_jax") for name in sys.modules)
jaxtyping.install_import_hook(
    [name for name in modules if name not in SELF_CHECKED], "beartype.beartype"
)

# Tracing makes many objects that stay alive. Looking for garbage among them less often saves a
# tenth of the time.
gc.set_threshold(200_000, 50, 50)

settings.register_profile("default", deadline=None, derandomize=True, max_examples=8)
settings.load_profile("default")


LONG_TESTS = (
    "test_da_recipes.py",
    "test_five_minutes.py",
    "test_loop.py",
    "test_members.py",
    "test_translate.py",
    "test_notebooks.py",
    "test_killed.py",
)


def pytest_collection_modifyitems(items):
    """Run the files with the longest tests first, so that no worker waits for them at the end."""
    items.sort(key=lambda item: item.path.name not in LONG_TESTS)


@pytest.fixture
def eight_devices():
    """Skip the test on a machine with fewer than eight devices, such as one with a GPU."""
    if jax.device_count() < 8:
        pytest.skip(f"needs 8 devices, there are {jax.device_count()}")


@pytest.fixture
def without_shape_checker(monkeypatch):
    """Turn off the checks of annotations, which users do not have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def optimised():
    """Compile with all optimizations, as users do."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Return `made_once(name, make)`, which calls `make(folder)` in only one of the workers.

    Its result is the folder of that name, which all workers of this session share.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent

    def find_or_make(name, make):
        folder = base / "made_once" / name
        folder.parent.mkdir(exist_ok=True)
        with (folder.parent / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                folder.mkdir()
                make(folder)
        return folder

    return find_or_make


@pytest.fixture(scope="session")
def compiled(made_once):
    """Folder of compiled programs, shared by runs and by processes."""
    return made_once("compiled", lambda folder: None)


@pytest.fixture(scope="session", autouse=True)
def _own_compilation_cache(compiled):
    """Keep the folder of compiled programs of the user out of the tests.

    JAX has read the environment already, so that only programs that tests start use the folder.
    """
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled)


@pytest.fixture(scope="session")
def texts(made_once):
    """Folder of the data set of `short_config`, prepared for training."""
    from distattn_jax.tasks import prepare
    from tests.train.runs import short_config

    return made_once("texts", lambda folder: prepare(short_config(folder, folder)))


@pytest.fixture(scope="session")
def translation_run(made_once, compiled):
    """Folder of a finished run of a tiny translator: two seeds, three checkpoints."""
    from experiments.commands.train import train
    from tests.tasks.parallel_texts import make_config
    from tests.train.runs import keep_compiled, run_directory

    arguments = {"name": "multi30k_small", "seeds": 2}

    def make(folder):
        with keep_compiled(compiled):
            train(make_config(folder, **arguments))

    return run_directory(make_config(made_once("translation_run", make), **arguments))


@pytest.fixture(scope="session")
def finished_run(texts, made_once, compiled):
    """Folder of a finished run of `short_config` on one device, with a profile."""
    from tests.train.runs import finish, keep_compiled, run_directory, short_config, start

    def make(folder):
        with keep_compiled(compiled):
            finish(*start(short_config(texts, folder, **{"output.profile": True})))

    return run_directory(short_config(texts, made_once("finished_run", make)))
