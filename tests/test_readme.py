"""The README's examples run, and its sections come in their order."""

import re
import textwrap
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
EXAMPLES = re.findall(r"^( *)```python\n(.*?)^\1```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", [textwrap.dedent(text) for _, text in EXAMPLES])
def test_examples_run(example):
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})


def test_sections_come_in_order():
    assert re.findall(r"^## (.*)", README, re.MULTILINE) == [
        "The picture",
        "An example",
        "The variants",
        "Install",
        "Train",
        "Benchmark",
        "Many devices",
        "Add a variant in three steps",
        "Notebooks",
        "Citation",
    ]


def test_every_notebook_is_listed():
    notebooks = (Path(__file__).parent.parent / "notebooks").glob("*.ipynb")
    assert {path.name for path in notebooks} == set(re.findall(r"notebooks/(\w+\.ipynb)", README))
