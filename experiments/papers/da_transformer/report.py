"""Report on the DA-Transformer paper (Wu et al. 2021): summary, details and figures.

Everything is computed from the stored results of `experiments/results`. An experiment without
stored results is reported as not run.
"""

from typing import Any

from experiments.papers.da_transformer.details import write_details
from experiments.papers.da_transformer.figures import list_pictures
from experiments.papers.da_transformer.published import METRICS
from experiments.papers.da_transformer.summary import write_summary
from experiments.papers.pictures import save_pictures
from experiments.papers.stored_results import FOLDER, AnyPath, read_notes, read_results


def read_contents(folder: AnyPath = FOLDER) -> dict[str, Any]:
    """Return experiment -> stored results, or None if the experiment was not run."""
    return {name: read_results(name, folder) for name in METRICS}


def draw_figures(folder: AnyPath = FOLDER) -> None:
    """Draw all figures of the paper into `folder/figures`."""
    save_pictures(list_pictures(read_contents(folder)), folder)


def summarize(folder: AnyPath = FOLDER) -> str:
    """Return the summary of the stored results as Markdown."""
    return write_summary(read_contents(folder), folder)


def detail(folder: AnyPath = FOLDER) -> str:
    """Return all tables of the stored results as Markdown, after the notes on how they were run."""
    return read_notes("da", folder) + write_details(read_contents(folder), folder)
