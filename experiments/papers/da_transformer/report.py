"""Report on the DA-Transformer paper (Wu et al. 2021): summary, details and figures."""

from typing import Any

from experiments.papers.da_transformer.details import list_details
from experiments.papers.da_transformer.figures import list_pictures
from experiments.papers.da_transformer.published import METRICS
from experiments.papers.da_transformer.summary import list_findings, list_sections
from experiments.papers.paper_report import Report
from experiments.papers.stored_results import AnyPath, read_results


def read_contents(folder: AnyPath) -> dict[str, Any]:
    """Return the stored results by experiment. The value is None if the experiment was not run."""
    return {name: read_results(name, folder) for name in METRICS}


REPORT = Report(
    paper="da",
    read_contents=read_contents,
    list_findings=list_findings,
    list_sections=list_sections,
    list_details=list_details,
    list_pictures=list_pictures,
)
