"""The Python examples of the README and of every page in docs/ run."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(textwrap.dedent(code), id=f"{page.name}-{number}")
    for page in PAGES
    for number, (_, code) in enumerate(
        re.findall(r"^( *)```python\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code):
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_readme_lists_every_page_and_notebook():
    linked = set(re.findall(r"\]\(([\w/.]+\.(?:md|ipynb))\)", (ROOT / "README.md").read_text()))
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    notebooks = {f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert pages | notebooks | {"CONTRIBUTING.md"} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_are_not_broken(page):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


def test_readme_fits_on_three_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
