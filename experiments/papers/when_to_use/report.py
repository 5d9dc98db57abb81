"""Report on where distance helps: summary, details and figures.

Everything is computed from stored results, by default those in `experiments/results`. If an
experiment has no stored results, the report says "not run".
"""

from pathlib import Path
from typing import Any

from experiments.papers.pictures import save_pictures
from experiments.papers.shaw import report as shaw
from experiments.papers.stored_results import FOLDER, AnyPath, read_notes, read_results
from experiments.papers.when_to_use.advice import advice_table
from experiments.papers.when_to_use.details import write_details
from experiments.papers.when_to_use.figures import list_pictures
from experiments.papers.when_to_use.settings import EXPERIMENTS
from experiments.papers.when_to_use.summary import write_summary

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "when_to_use.md"


def read_contents(folder: AnyPath = FOLDER) -> dict[str, Any]:
    """Return the stored results by experiment. The value is None if the experiment was not run."""
    return {name: read_results(name, folder) for name in EXPERIMENTS}


def draw_figures(folder: AnyPath, output: AnyPath) -> None:
    """Draw all figures from the results in `folder`, and save them in `output/figures`."""
    save_pictures(list_pictures(read_contents(folder)), output)


def summarize(folder: AnyPath = FOLDER, *, figures: str = "results/figures") -> str:
    """Return a summary as Markdown: findings and the main tables.

    Args:
      folder: Folder of the stored results.
      figures: Path of the folder of figures, for links.
    """
    return write_summary(read_contents(folder), figures)


def detail(folder: AnyPath = FOLDER) -> str:
    """Return the full report as Markdown: how the runs were made, then all tables."""
    return read_notes("when_to_use", folder) + write_details(read_contents(folder), folder)


def list_pages(folder: AnyPath = FOLDER) -> dict[Path, str]:
    """Return the part of each page of the documentation that is made from stored results."""
    others = {name: read_results(name, folder) for name in ("ag", "sst")}
    others["multi30k_small"] = shaw.read_contents(folder)["multi30k_small"]
    return {PAGE: advice_table(read_contents(folder), others) + "\n"}
