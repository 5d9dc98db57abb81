"""Every notebook runs from its first cell to its last, stays small, and equals its text version."""

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import jupytext
import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
COLAB_CELL = nbformat.read(NOTEBOOKS[0], as_version=4).cells[1].source
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@every_notebook
def test_it_runs_and_shows_its_figures(path, monkeypatch):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


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


@pytest.mark.parametrize("uploaded", [["distattn_jax-1.whl"], ["notes.txt"], []])
def test_the_colab_cell_installs_an_uploaded_wheel_or_asks_for_it(uploaded, monkeypatch):
    colab = types.ModuleType("google.colab")
    colab.files = types.SimpleNamespace(upload=lambda: dict.fromkeys(uploaded, b""))
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    if uploaded == ["distattn_jax-1.whl"]:
        exec(COLAB_CELL, {})
        assert commands[0][-2:] == ["--quiet", "distattn_jax-1.whl"]
    else:
        with pytest.raises(FileNotFoundError, match="make dist"):
            exec(COLAB_CELL, {})
        assert not commands


@every_notebook
def test_its_stored_outputs_are_small_and_complete(path):
    assert path.stat().st_size < 300_000
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [
        output for cell in cells for output in cell.outputs if output.output_type == "error"
    ]
