"""Report on relative positions (Shaw et al. 2018): summary, details and figures.

Everything is computed from stored results, by default those in `experiments/results`. If an
experiment has no stored results, the report says "not run".
"""

from typing import Any

from etils import epath

from experiments.papers.pictures import save_pictures
from experiments.papers.shaw.details import write_details
from experiments.papers.shaw.figures import list_pictures
from experiments.papers.shaw.settings import (
    DATA_SETS,
    SIZES,
    TINY,
    experiment_name,
    list_experiments,
)
from experiments.papers.shaw.summary import write_summary
from experiments.papers.shaw.switched import add_switched_runs
from experiments.papers.stored_results import (
    FOLDER,
    SEARCHED,
    AnyPath,
    read_notes,
    read_results,
)


def read_contents(folder: AnyPath = FOLDER) -> dict[str, Any]:
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
    contents, stored = read_contents(folder), _read_stored(folder)
    return read_notes("shaw", folder) + write_details(contents, stored, folder)
