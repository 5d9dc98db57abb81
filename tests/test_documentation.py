"""The examples of the README and of every page in docs/: Python runs, and commands are known."""

import importlib
import re
import shlex
import textwrap
from pathlib import Path

import pytest
from flax import nnx

from distattn_jax.attention import fused_kernels, xla
from distattn_jax.models import METHODS, Sizes
from distattn_jax.train.options import parse_options
from experiments.bench.speed_trainers import SpeedConfig
from experiments.commands.bench import Bench
from experiments.recipes import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(textwrap.dedent(code), id=f"{page.name}-{number}")
    for page in PAGES
    for number, (_, code) in enumerate(
        re.findall(r"^( *)```python\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]
VARIANTS = (ROOT / "docs" / "variants.md").read_text()
NOTES = (ROOT / "experiments" / "results").glob("notes_*.md")
# Commands of shell examples. Those with variables, braces or --help cannot be parsed alone.
COMMANDS = {
    line.replace("\\\n", " ")
    for page in [*PAGES, *NOTES]
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for line in re.findall(r"python -m experiments ((?:\\\n|[^\n|])+)", block)
    if not set("${") & set(line) and "--help" not in line
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_flag_of_a_command_is_known(command):
    name, *arguments = shlex.split(command, comments=True)
    module = importlib.import_module(f"experiments.commands.{name}")
    if name in ("train", "search"):
        parse_options(load_recipe(arguments[0]).get_config(), arguments[1:], program=name)
    elif name in ("bench", "speed"):
        parse_options(Bench() if name == "bench" else SpeedConfig(), arguments, program=name)
    elif name in ("collect", "explore", "report", "reproduce"):
        module.make_parser().parse_args(arguments)


def test_commands_are_found():
    assert {command.split()[0] for command in COMMANDS} >= {"train", "search", "collect", "report"}


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code, monkeypatch):
    # Two examples change settings.
    monkeypatch.setattr(fused_kernels, "CHOOSES_PORTABLE", fused_kernels.CHOOSES_PORTABLE)
    monkeypatch.setattr(xla, "LARGEST_GPU_MAP", xla.LARGEST_GPU_MAP)
    code = code.replace(
        "(3, 1, 512, 8, 64)", "(3, 1, 32, 8, 16)"
    )  # The timed length takes seconds.
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_a_bias_of_your_own_becomes_a_method(monkeypatch):
    monkeypatch.setitem(METHODS, "gaussian", None)  # The test removes what the example adds.
    (code,) = re.findall(r"^```py\n(.*?)^from experiments", VARIANTS, re.DOTALL | re.MULTILINE)
    exec(compile(code, "example", "exec"), {})
    module = METHODS["gaussian"].variant(Sizes(heads=4), rngs=nnx.Rngs(0))
    assert module.parameters["width"].shape == (4,)


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
