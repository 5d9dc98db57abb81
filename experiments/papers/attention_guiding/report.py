"""Report on the attention-guiding paper (Wang et al. 2022): summary, details and figures.

Everything is computed from stored results, by default those in `experiments/results`. If an
experiment has no stored results, the report says "not run".
"""

from typing import Any

from experiments.papers.attention_guiding.details import DATA_TITLES, write_details
from experiments.papers.attention_guiding.figures import list_pictures
from experiments.papers.attention_guiding.repeated_runs import repetition_names
from experiments.papers.attention_guiding.summary import write_summary
from experiments.papers.attention_guiding.sweeps import SWEEPS
from experiments.papers.pictures import save_pictures
from experiments.papers.stored_results import FOLDER, AnyPath, read_notes, read_results


def read_contents(folder: AnyPath = FOLDER) -> dict[str, Any]:
    """Return the stored results by experiment.

    The main experiment of a data set is named after the data set. Its value is None if it was not
    run. Repetitions and sweeps that were not run are left out.
    """
    names = [name for data in DATA_TITLES for name in repetition_names(data)]
    found = {name: read_results(name, folder) for name in (*names, *SWEEPS)}
    others = {name: content for name, content in found.items() if content is not None}
    return {name: read_results(name, folder) for name in DATA_TITLES} | others


def draw_figures(folder: AnyPath, output: AnyPath) -> None:
    """Draw all figures from the results in `folder`, and save them in `output/figures`."""
    save_pictures(list_pictures(read_contents(folder)), output)


def summarize(folder: AnyPath = FOLDER, *, figures: str = "results/figures") -> str:
    """Return a summary as Markdown: findings and the main tables.

    Args:
      folder: Folder of the stored results.
      figures: Path of the folder of figures, for links.
    """
    return write_summary(read_contents(folder), folder, figures)


def detail(folder: AnyPath = FOLDER) -> str:
    """Return the full report as Markdown: how the runs were made, then all tables."""
    return read_notes("guiding", folder) + write_details(read_contents(folder), folder)
