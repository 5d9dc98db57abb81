"""RESULTS.md holds what `report da`, `guiding`, `shaw` and `when_to_use` print."""

import functools
import json
import re
from pathlib import Path

import pytest

from distattn_jax.train import RunError
from experiments.commands import report as command
from experiments.commands.report import main
from experiments.papers import stored_results
from experiments.papers.attention_guiding.report import REPORT as GUIDING
from experiments.papers.da_transformer.report import REPORT as DA
from experiments.papers.page import Report
from experiments.papers.results import load_results
from experiments.papers.shaw.report import REPORT as SHAW
from experiments.papers.when_to_use.report import REPORT as WHEN_TO_USE

PAGE = stored_results.RESULTS_PAGE.read_text()
REPORTS = {"da": DA, "guiding": GUIDING, "shaw": SHAW, "when_to_use": WHEN_TO_USE}
load = functools.cache(load_results)


def decimals(text):
    """Return all numbers with a decimal point or an exponent."""
    return set(re.findall(r"\d+\.\d+(?:e-?\d+)?|\de-\d+", text))


@functools.cache
def summarize(paper):
    return REPORTS[paper].summarize(load(stored_results.FOLDER))


@functools.cache
def detail(paper):
    return REPORTS[paper].detail(load(stored_results.FOLDER))


@functools.cache
def advise():
    """Return the page of advice, and its table."""
    ((page, table),) = (
        (page, WHEN_TO_USE.fill(template, load(stored_results.FOLDER)))
        for page, template in WHEN_TO_USE.pages.items()
        if template == "advice.md"
    )
    return page, table


@pytest.mark.parametrize("paper", REPORTS)
def test_the_page_holds_the_printed_summary(paper):
    text = summarize(paper)
    assert f"<!-- begin of report {paper} -->\n\n{text}\n<!-- end of report {paper} -->" in PAGE


@pytest.mark.parametrize("page", WHEN_TO_USE.pages, ids=lambda page: page.stem)
def test_pages_of_the_documentation_hold_the_tables_of_the_stored_results(page):
    table = WHEN_TO_USE.fill(WHEN_TO_USE.pages[page], load(stored_results.FOLDER))
    begin, end = (f"<!-- {word} of report when_to_use -->" for word in ("begin", "end"))
    assert f"{begin}\n\n{table}\n{end}" in page.read_text()


def test_every_number_of_the_page_is_printed_by_the_commands():
    printed = "".join(summarize(paper) + detail(paper) for paper in REPORTS)
    assert decimals(PAGE) <= decimals(printed)


def test_every_number_of_the_page_of_advice_is_printed_or_measured():
    page, table = advise()
    speed = page.with_name("kernels.md").read_text()
    printed = summarize("when_to_use") + detail("when_to_use") + table + speed
    assert decimals(page.read_text()) <= decimals(printed)


def read_tracked_files():
    folder = stored_results.FOLDER
    paths = [stored_results.RESULTS_PAGE, *folder.iterdir(), *(folder / "figures").iterdir()]
    return {path: path.read_bytes() for path in paths if path.is_file()}


@pytest.fixture
def no_figures(monkeypatch):
    """Replace the drawing of figures, which is slow, by a file `figures/drawn.png`."""

    def draw(report, results, output):
        path = Path(output) / "figures" / "drawn.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{len(results.stored)} experiments")

    monkeypatch.setattr(Report, "draw_figures", draw)


@pytest.mark.parametrize(
    ("arguments", "folder"), [(["shaw"], "results"), (["shaw", "--output", "new"], "new")]
)
def test_a_report_reads_the_stored_results_and_writes_to_a_new_folder(
    arguments, folder, no_figures, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    before = read_tracked_files()
    main(arguments)
    assert read_tracked_files() == before
    summary = summarize(arguments[0]).replace("](results/figures/", "](figures/")
    assert capsys.readouterr().out == f"{summary}\n"
    assert (tmp_path / folder / f"report_{arguments[0]}.md").read_text() == summary
    count = len(load(stored_results.FOLDER).stored)
    assert (tmp_path / folder / "figures" / "drawn.png").read_text() == f"{count} experiments"


def test_a_report_of_other_results_reads_them(no_figures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    content = stored_results.read_results("sst")
    stored_results.write_results(content, tmp_path / "mine")
    main(["da", "--results", "mine"])
    printed = capsys.readouterr().out
    assert "82.39 ± 0.57" in printed  # DA-Transformer on SST
    assert "91.92" not in printed  # on AG's News
    main(["da", "--results", "mine", "--json"])
    assert json.loads(capsys.readouterr().out) == {
        "paper": "da",
        "report": "results/report_da.md",
        "experiments": {"sst": content},
    }
    main(["da", "--details", "--results", "mine"])
    assert "sst/vanilla" in capsys.readouterr().out
    with pytest.raises(RunError, match=r"--results must be a folder .*; nowhere holds none of"):
        main(["da", "--results", "nowhere"])


def test_an_update_writes_to_the_stored_results_and_the_page(no_figures, tmp_path, monkeypatch):
    folder, page = tmp_path / "results", tmp_path / "RESULTS.md"
    stored_results.write_results(stored_results.read_results("sst"), folder)
    page.write_text(PAGE)
    monkeypatch.setattr(command, "FOLDER", folder)
    monkeypatch.setattr(stored_results.update_results_page, "__defaults__", (page,))
    main(["da", "--update"])
    assert (folder / "figures" / "drawn.png").exists()
    assert DA.summarize(load_results(folder)) in page.read_text()
    assert page.read_text() != PAGE


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "--update"],
        ["runs", "--details"],
        ["runs", "--results", "x"],
        ["da", "--sentence", "x"],
        ["da", "--details", "--json"],
        ["da", "--update", "--output", "x"],
        ["da", "--update", "--results", "x"],
    ],
    ids=" ".join,
)
def test_flags_that_do_not_fit_together_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert arguments[1] in capsys.readouterr().err.splitlines()[-1]


def test_every_stored_figure_is_linked_and_every_link_is_stored():
    links = set(re.findall(r"\]\((results/figures/[^)]*)\)", PAGE))
    folder = stored_results.FOLDER / "figures"
    assert links == {f"results/figures/{path.name}" for path in folder.iterdir()}


def test_the_page_can_be_read_in_a_few_minutes():
    assert len(PAGE.split()) < 2150 * len(REPORTS)
