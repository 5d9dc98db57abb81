"""Report on where distance helps: summary, details and figures."""

from pathlib import Path
from typing import Any

from experiments.papers.paper_report import Report
from experiments.papers.shaw import report as shaw
from experiments.papers.stored_results import AnyPath, read_results
from experiments.papers.when_to_use.advice import advice_table
from experiments.papers.when_to_use.details import list_details
from experiments.papers.when_to_use.figures import list_pictures
from experiments.papers.when_to_use.settings import EXPERIMENTS
from experiments.papers.when_to_use.summary import list_findings, list_sections

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "when_to_use.md"


def read_contents(folder: AnyPath) -> dict[str, Any]:
    """Return the stored results by experiment. The value is None if the experiment was not run."""
    return {name: read_results(name, folder) for name in EXPERIMENTS}


def list_pages(folder: AnyPath) -> dict[Path, str]:
    """Return the part of each page of the documentation that is made from stored results."""
    others = {name: read_results(name, folder) for name in ("ag", "sst")}
    others["multi30k_small"] = shaw.read_contents(folder)["multi30k_small"]
    return {PAGE: advice_table(read_contents(folder), others) + "\n"}


REPORT = Report(
    paper="when_to_use",
    read_contents=read_contents,
    list_findings=list_findings,
    list_sections=list_sections,
    list_details=list_details,
    list_pictures=list_pictures,
    list_pages=list_pages,
)
