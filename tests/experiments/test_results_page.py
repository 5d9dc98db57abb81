"""RESULTS.md holds what `report da` and `report guiding` print."""

import re
import subprocess
import sys

import pytest

from experiments.papers import stored_results
from experiments.papers.attention_guiding import report as guiding
from experiments.papers.da_transformer import report as da

PAGE = stored_results.RESULTS_PAGE.read_text()
ROOT = stored_results.RESULTS_PAGE.parent.parent
REPORTS = {"da": da, "guiding": guiding}


def decimals(text):
    """Return all numbers with a decimal point or an exponent."""
    return set(re.findall(r"\d+\.\d+(?:e-?\d+)?|\de-\d+", text))


@pytest.mark.parametrize("paper", REPORTS)
def test_the_page_holds_the_printed_summary(paper):
    text = REPORTS[paper].summarize()
    assert f"<!-- begin of report {paper} -->\n\n{text}\n<!-- end of report {paper} -->" in PAGE


def test_every_number_of_the_page_is_printed_by_the_commands():
    printed = "".join(report.summarize() + report.detail() for report in REPORTS.values())
    assert decimals(PAGE) <= decimals(printed)


def test_every_stored_figure_is_linked_and_every_link_is_stored():
    links = set(re.findall(r"\]\((results/figures/[^)]*)\)", PAGE))
    folder = stored_results.FOLDER / "figures"
    assert links == {f"results/figures/{path.name}" for path in folder.iterdir()}


def test_the_page_can_be_read_in_a_few_minutes():
    assert len(PAGE.splitlines()) < 200


def test_neither_help_nor_recipes_import_matplotlib():
    program = (
        "import sys\n"
        "from experiments.__main__ import main\n"
        "from experiments.recipes import list_recipes, load_recipe\n"
        "for arguments in (['list'], ['--help']):\n"
        "    try: main(arguments)\n"
        "    except SystemExit: pass\n"
        "for name in list_recipes(): load_recipe(name).get_config()\n"
        "assert not {'matplotlib', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT)
