"""Every notebook runs from its first cell to its last, stays small, and equals its text version."""

import contextlib
import importlib.util
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import jupytext
import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib_inline.config import InlineBackend
from traitlets.config import Config

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
COLAB_CELL = nbformat.read(NOTEBOOKS[0], as_version=4).cells[1].source
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


# Texts of the notebooks with numbers that take time, and smaller numbers for the test.
SMALLER = {
    "guiding": {"steps=150": "steps=5", "range(12000)": "range(600)"},
    "kernels": {
        "[256, 1024, 4096, 16384]": "[256, 16384]",
        "1024": "64",
        "repeats=3": "repeats=1",
    },
    "translate": {"(120, 64)": "(5, 64)", "range(2048)": "range(128)"},
    "what_a_head_sees": {
        "length, width, small = 1024": "length, width, small = 256",
        "[64, 128, 256, 512, 1024]": "[64, 128]",
    },
    "your_own_model": {"steps=120": "steps=5"},
}


@pytest.fixture(scope="module")
def ipython():
    """An IPython in this process. Its figures appear in the outputs."""
    backend, main = matplotlib.get_backend(), sys.modules["__main__"]
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    shell.enable_gui = lambda gui=None: None  # There are no windows.
    InlineBackend.instance(parent=shell).print_figure_kwargs = {"bbox_inches": None, "dpi": 20}
    with matplotlib.rc_context():
        yield shell
    plt.switch_backend(backend)
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main  # IPython replaces it, but new processes read its file.


@pytest.fixture
def shell(ipython, monkeypatch, without_shape_checker):
    """An IPython without variables, and with the settings of JAX that users have."""
    # One notebook asks for eight CPU devices, which this process has already.
    monkeypatch.setattr(
        jax.config, "update", {"jax_platforms": "cpu", "jax_num_cpu_devices": 8}.get
    )
    names = set(ipython.user_ns)
    with jax.numpy_rank_promotion("allow"), jax.default_matmul_precision(None):
        yield ipython
    # The method `reset` would also look for garbage, which is slow.
    for name in set(ipython.user_ns) - names:
        del ipython.user_ns[name]


@pytest.mark.filterwarnings("ignore")
@every_notebook
def test_it_runs_and_shows_its_figures(path, shell):
    sources, outputs = [cell.source for cell in list_code_cells(path)], []
    for text, smaller in SMALLER.get(path.stem, {}).items():
        assert any(text in source for source in sources)
        sources = [source.replace(text, smaller) for source in sources]
    for source in sources:
        with capture_output() as captured:
            result = shell.run_cell(source)
        result.raise_error()
        outputs += captured.outputs
    assert any("image/png" in output.data for output in outputs)


def list_code_cells(path):
    cells = nbformat.read(path, as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def list_cells(notebook):
    return [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in notebook.cells]


@every_notebook
def test_it_equals_its_text_version(path):
    text = path.with_suffix(".py").read_text(encoding="utf-8")
    assert list_cells(nbformat.read(path, as_version=4)) == list_cells(
        jupytext.reads(text, fmt="py:percent")
    ), f"Run python docs/execute_notebooks.py {path.stem}."


@every_notebook
def test_it_begins_with_question_answer_and_picture_and_installs_in_colab(path):
    first, second = nbformat.read(path, as_version=4).cells[:2]
    assert first.source.splitlines()[0].endswith("?")
    assert "**Answer.**" in first.source
    assert "](attachment:answer.png)" in first.source
    assert first.attachments["answer.png"].keys() == {"image/png"}
    assert second.source == COLAB_CELL


@every_notebook
def test_it_ends_with_a_link_to_what_comes_next(path):
    _, following = nbformat.read(path, as_version=4).cells[-1].source.split("**Next:**")
    targets = re.findall(r"\]\(([^)]+)\)", following)
    assert targets
    assert all((path.parent / target).is_file() for target in targets)


@pytest.mark.skipif("git+" in COLAB_CELL, reason="it installs from the repository instead")
@pytest.mark.parametrize("uploaded", [["distattn_jax-1.whl"], ["notes.txt"], []])
def test_the_colab_cell_installs_an_uploaded_wheel_or_asks_for_it(uploaded, monkeypatch):
    colab = types.ModuleType("google.colab")
    colab.files = types.SimpleNamespace(upload=lambda: dict.fromkeys(uploaded, b""))
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    commands, is_wheel = [], uploaded == ["distattn_jax-1.whl"]
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command[-2:]))
    missing = pytest.raises(FileNotFoundError, match="make dist")
    with contextlib.nullcontext() if is_wheel else missing:
        exec(COLAB_CELL, {})
    assert commands == [["--quiet", "distattn_jax-1.whl"]] * is_wheel


@every_notebook
def test_its_stored_outputs_are_small_and_complete(path):
    assert path.stat().st_size < 300_000
    cells = list_code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert "error" not in {output.output_type for cell in cells for output in cell.outputs}
