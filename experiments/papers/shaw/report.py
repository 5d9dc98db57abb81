"""Report on relative positions (Shaw et al. 2018): summary, details and figures."""

from collections.abc import Mapping
from typing import Any

from etils import epath

from experiments.papers.paper_report import Report
from experiments.papers.shaw.details import list_details
from experiments.papers.shaw.figures import list_pictures
from experiments.papers.shaw.settings import (
    DATA_SETS,
    SIZES,
    TINY,
    experiment_name,
    list_experiments,
)
from experiments.papers.shaw.summary import list_findings, list_sections
from experiments.papers.shaw.switched import add_switched_runs
from experiments.papers.stored_results import (
    SEARCHED,
    AnyPath,
    read_results,
)


def read_contents(folder: AnyPath) -> dict[str, Any]:
    """Return the results by experiment. The value is None if the experiment was not run.

    Parts of runs that train several kinds of positions side by side are runs of their own.
    """
    contents = {name: read_results(name, folder) for name in list_experiments()}
    return add_switched_runs(contents, _read_stored(folder))


def _read_stored(folder: AnyPath) -> dict[str, Any]:
    """Return the stored results whose names begin with a data set and a size, without searches."""
    beginnings = (*(experiment_name(data, size) for data in DATA_SETS for size in SIZES), *TINY)
    found = {}
    for path in sorted(epath.Path(folder).glob("*.json")):
        name = path.stem
        if name.startswith(beginnings) and not name.endswith(SEARCHED):
            found[name] = read_results(name, folder)
    return found


def _list_details(contents: Mapping[str, Any], folder: AnyPath) -> list[str]:
    """Return the headings, texts and tables of the full report."""
    return list_details(contents, _read_stored(folder), folder)


REPORT = Report(
    paper="shaw",
    read_contents=read_contents,
    list_findings=list_findings,
    list_sections=list_sections,
    list_details=_list_details,
    list_pictures=list_pictures,
)
