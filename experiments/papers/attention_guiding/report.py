"""Report on the attention-guiding paper (Wang et al. 2022): summary, details and figures."""

from typing import Any

from experiments.papers.attention_guiding.details import DATA_TITLES, list_details
from experiments.papers.attention_guiding.figures import list_pictures
from experiments.papers.attention_guiding.repeated_runs import repetition_names
from experiments.papers.attention_guiding.summary import list_findings, list_sections
from experiments.papers.attention_guiding.sweeps import SWEEPS
from experiments.papers.paper_report import Report
from experiments.papers.stored_results import AnyPath, read_results


def read_contents(folder: AnyPath) -> dict[str, Any]:
    """Return the stored results by experiment.

    The main experiment of a data set is named after the data set. Its value is None if it was not
    run. Repetitions and sweeps that were not run are left out.
    """
    names = [name for data in DATA_TITLES for name in repetition_names(data)]
    found = {name: read_results(name, folder) for name in (*names, *SWEEPS)}
    others = {name: content for name, content in found.items() if content is not None}
    return {name: read_results(name, folder) for name in DATA_TITLES} | others


REPORT = Report(
    paper="guiding",
    read_contents=read_contents,
    list_findings=list_findings,
    list_sections=list_sections,
    list_details=list_details,
    list_pictures=list_pictures,
)
