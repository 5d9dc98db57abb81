"""The address of the repository is written into every file that needs it."""

import importlib.util
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import jupytext
import nbformat
import pytest

from tests.test_notebooks import list_cells

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("set_repository", ROOT / "docs" / "set_repository.py")
set_repository = importlib.util.module_from_spec(spec)
spec.loader.exec_module(set_repository)


@pytest.fixture
def project(tmp_path):
    """Copy of the files that name the repository, with one notebook."""
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "notebooks").mkdir()
    for ending in ("py", "ipynb"):
        shutil.copy(ROOT / "notebooks" / f"one_sentence.{ending}", tmp_path / "notebooks")
    return tmp_path


def test_badges_and_the_colab_cell_name_the_repository(project, monkeypatch):
    before = nbformat.read(project / "notebooks" / "one_sentence.ipynb", as_version=4)
    for repository in ("someone/else", "owner/name.x"):  # The second run replaces the address.
        set_repository.main([repository], project)
    address = "https://github.com/owner/name.x"
    urls = tomllib.loads((project / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == address
    assert f"\nrepository-code: {address}\n" in (project / "CITATION.cff").read_text()
    link = "https://colab.research.google.com/github/owner/name.x/blob/main/notebooks"
    readme = (project / "README.md").read_text()
    assert readme.count("colab-badge.svg") == readme.count("(notebooks/")
    assert f"({link}/translate.ipynb) |" in readme
    file = project / "notebooks" / "one_sentence.ipynb"
    notebook = nbformat.read(file, as_version=4)
    assert f"({link}/one_sentence.ipynb)" in notebook.cells[0].source.splitlines()[2]
    texts = [path.read_text() for path in project.rglob("*") if path.is_file()]
    assert "someone" not in "".join(texts)
    assert notebook.cells[2:] == before.cells[2:]
    assert list_cells(notebook) == list_cells(jupytext.read(file.with_suffix(".py")))

    commands = []
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command[-1]))
    exec(notebook.cells[1].source, {})
    assert commands == [f"distattn-jax @ git+{address}"]


def test_a_wrong_name_is_refused(project):
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        set_repository.main(["https://github.com/owner/name"], project)
