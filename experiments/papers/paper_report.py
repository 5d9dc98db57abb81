"""Reports made from stored results: summary, details and figures."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.papers.pictures import Picture, link_pictures, save_pictures
from experiments.papers.stored_results import FOLDER, AnyPath, read_notes

Contents = Mapping[str, Any]  # experiment -> stored results, or None if it was not run


@dataclasses.dataclass(frozen=True)
class Report:
    """Report on a paper or on a question, computed from stored results.

    If an experiment has no stored results, the report says "not run". Functions that return parts
    of the report receive the stored results by experiment, and the folder of the stored results.

    Attributes:
      paper: "da", "guiding", "shaw" or "when_to_use".
      read_contents: Function that returns the stored results in a folder, by experiment.
      list_findings: Function that returns sentences that state the main results.
      list_sections: Function that returns the headings, texts and tables of the summary.
      list_details: Function that returns the headings, texts and tables of the full report.
      list_pictures: Function that returns every figure for which results are stored.
      list_pages: Function that receives the folder of stored results. It returns the generated part
        of each page of the documentation, by the path of the page.
    """

    paper: str
    read_contents: Callable[[AnyPath], dict[str, Any]]
    list_findings: Callable[[Contents, AnyPath], list[str]]
    list_sections: Callable[[Contents, AnyPath], list[str]]
    list_details: Callable[[Contents, AnyPath], list[str]]
    list_pictures: Callable[[Contents], Iterable[Picture]]
    list_pages: Callable[[AnyPath], dict[Path, str]] = lambda folder: {}

    def draw_figures(self, folder: AnyPath, output: AnyPath) -> None:
        """Draw all figures from the results in `folder`, and save them in `output/figures`."""
        save_pictures(self.list_pictures(self.read_contents(folder)), output)

    def summarize(self, folder: AnyPath = FOLDER, *, figures: str = "results/figures") -> str:
        """Return a summary as Markdown: findings, the main tables, and links to figures.

        Args:
          folder: Folder of the stored results.
          figures: Path of the folder of figures, for links.
        """
        return self.write_summary(self.read_contents(folder), folder, figures)

    def write_summary(self, contents: Contents, folder: AnyPath, figures: str) -> str:
        """Return the summary of results that are already read, as Markdown.

        Args:
          contents: Stored results by experiment. The value is None if an experiment was not run.
          folder: Folder of the stored results.
          figures: Path of the folder of figures, for links.
        """
        findings = (f"- {finding}" for finding in self.list_findings(contents, folder))
        sections = self.list_sections(contents, folder)
        links = link_pictures(self.list_pictures(contents), figures)
        return _join(["### Findings", "\n".join(findings), *sections, links])

    def detail(self, folder: AnyPath = FOLDER) -> str:
        """Return the full report as Markdown: how the runs were made, then texts and tables."""
        notes = read_notes(self.paper, folder)
        return notes + self.write_details(self.read_contents(folder), folder)

    def write_details(self, contents: Contents, folder: AnyPath) -> str:
        """Return the details of results that are already read, as Markdown.

        Args:
          contents: Stored results by experiment. The value is None if an experiment was not run.
          folder: Folder of the stored results.
        """
        return _join(self.list_details(contents, folder))


def _join(parts: Iterable[str]) -> str:
    """Return one Markdown text with an empty line between parts. Empty parts are left out."""
    return "\n\n".join(part for part in parts if part) + "\n"
