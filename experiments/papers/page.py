"""Reports: Markdown templates that are filled with tables and numbers from the results.

A template is plain Markdown with calls in braces. For example, `{mean ag accuracy vanilla}` is
replaced by the result of `mean(results, "ag", "accuracy", "vanilla")`. The function is in the
module `report` in the folder of the template, or in the module `tables`.
"""

import csv
import dataclasses
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from etils import epath
from matplotlib.figure import Figure

from distattn_jax import plot
from experiments.papers import tables
from experiments.papers.results import Results
from experiments.papers.stored_results import FOLDER, AnyPath, read_notes

PAPERS = Path(__file__).parent
DOTS_PER_INCH = 120

Part = Callable[..., str]  # text of a template, from the results and words
Pictures = dict[str, Callable[[], Figure]]  # functions that draw, by the name of the file


@dataclasses.dataclass(frozen=True)
class Report:
    """Report on a paper or on a question, computed from stored results.

    If an experiment has no stored results, the report says "not run".

    Attributes:
      paper: "da", "guiding", "shaw" or "when_to_use".
      folder: Folder of the templates summary.md and details.md, in `experiments/papers`.
      experiments: Names of the experiments.
      list_pictures: Function that returns a dict from file name to a function that draws the plot.
        Plots without stored results are left out.
      pages: Dict from the path of each page of the documentation that has a generated part to the
        name of the template of this part.
    """

    paper: str
    folder: str
    experiments: tuple[str, ...]
    list_pictures: Callable[[Results], Pictures]
    pages: Mapping[Path, str] = dataclasses.field(default_factory=dict)

    def draw_figures(self, results: Results, output: AnyPath) -> None:
        """Draw all plots, and save them as PNG files in `output/figures`."""
        for name, draw in self.list_pictures(results).items():
            plot.save(draw(), epath.Path(output) / "figures" / f"{name}.png", dpi=DOTS_PER_INCH)

    def summarize(self, results: Results, *, figures: str = "results/figures") -> str:
        """Return a summary as Markdown: findings, the main tables, and links to plots.

        The links to the plots are in the line "Figures: ...". A plot without stored results is
        left out.

        Args:
          results: Stored results of all experiments.
          figures: Path of the folder of the plots, for the links.
        """
        drawn = self.list_pictures(results)

        def link(match: re.Match[str]) -> str:
            found = re.findall(r"\[([^]]*)\]\((\w+)\)", match[0])
            links = [f"[{text}]({figures}/{name}.png)" for text, name in found if name in drawn]
            return f"Figures: {', '.join(links)}." if links else ""

        return re.sub(r"^Figures: .*$", link, self.fill("summary.md", results), flags=re.M)

    def detail(self, results: Results, folder: AnyPath = FOLDER) -> str:
        """Return the full report as Markdown: notes on how the runs were made, and all tables."""
        return read_notes(self.paper, folder) + self.fill("details.md", results)

    def fill(self, template: str, results: Results) -> str:
        """Return the text of a template file, with each call in braces replaced by its result."""
        module = importlib.import_module(f"experiments.papers.{self.folder}.report")

        def replace(match: re.Match[str]) -> str:
            name, *words = match[1].split()
            part: Part = getattr(module, name, None) or getattr(tables, name)
            return part(results, *words)

        text = (PAPERS / self.folder / template).read_text()
        return re.sub(r"\n{3,}", "\n\n", re.sub(r"\{([^{}]+)\}", replace, text))


def read_published(folder: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the published numbers of a paper: `numbers[table][row][column]`, as printed.

    Args:
      folder: Folder of the file published.csv, in `experiments/papers`.
    """
    found: dict[str, dict[str, dict[str, str]]] = {}
    with (PAPERS / folder / "published.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            table, row = line.pop("table"), line.pop("row")
            numbers = {column: number for column, number in line.items() if number}
            found.setdefault(table, {})[row] = numbers
    return found
