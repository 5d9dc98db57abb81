"""Write tables and figures of finished runs, or the report on a paper."""

import argparse
import importlib
import importlib.util
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from etils import epath

from distattn_jax.tasks import load_config
from distattn_jax.train import Config, OutputConfig, Run, RunError
from distattn_jax.train.journal import last_step
from distattn_jax.train.options import options_read_by, result_options
from distattn_jax.train.run import find_runs
from experiments.commands._json import add_json_flag, keep_output_for_json, print_json
from experiments.papers.formatting import method_title
from experiments.papers.stored_results import (
    FOLDER,
    NEW_FOLDER,
    RESULTS_PAGE,
    AnyPath,
    update_results_page,
)
from experiments.papers.translations import MissingPackageError, add_scores
from experiments.recipes import find_recipe

if TYPE_CHECKING:
    from experiments.papers.page import Report
    from experiments.papers.results import Results

GUIDE_WEIGHTS = ("guiding.alpha", "guiding.beta", "guiding.gamma")
# Folders of experiments/papers.
PAPERS = {
    "da": "da_transformer",
    "guiding": "attention_guiding",
    "shaw": "shaw",
    "when_to_use": "when_to_use",
}


def main(arguments: Sequence[str]) -> None:
    """Run `report [PATH ...] [--output DIR] [--sentence TEXT] [--json]` or `report PAPER [...]`.

    The first form writes tables and figures of runs, the second form the report on a paper.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    paper = options.paths[0] if len(options.paths) == 1 else ""
    if paper in PAPERS:
        if options.sentence:
            parser.error("--sentence needs runs, not a paper.")
        if options.update and (options.results or options.output):
            parser.error("--update reads and writes experiments/results: leave out other folders.")
        if options.details and options.json:
            parser.error("--json has the results of every run: leave out --details.")
        print_paper(paper, options)
        return
    if options.details or options.update or options.results:
        parser.error(f"--details, --results and --update need a paper: {', '.join(PAPERS)}.")
    paths = options.paths or [OutputConfig().directory]
    with keep_output_for_json(options.json):
        reports = write_reports(paths, output=options.output, sentence=options.sentence)
    if options.json:
        print_json({"experiments": [one.describe() for one in reports]})
    else:
        print("\n".join(one.text for one in reports))


def print_paper(paper: str, options: argparse.Namespace) -> None:
    """Write the report on a paper, and print it as Markdown, or its results as JSON.

    Args:
      paper: Name of the paper, a key of `PAPERS`.
      options: Options of the command line.
    """
    folder, output = options.results or FOLDER, options.output or NEW_FOLDER
    path = RESULTS_PAGE if options.update else epath.Path(output) / f"report_{paper}.md"
    with keep_output_for_json(options.json):
        if options.details:
            report, results = load_paper(paper, folder)
            text = report.detail(results, folder)
        elif options.update:
            text = update_paper(paper)
        else:
            text = report_on_paper(paper, folder, output)
    if options.json:
        report, results = load_paper(paper, folder)
        names = [name for name in report.experiments if name in results.stored]
        stored = {name: results.stored[name] for name in names}
        print_json({"paper": paper, "report": str(path), "experiments": stored})
    else:
        print(text)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments report", description=__doc__)
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help=f"runs, folders of runs, or a paper: {', '.join(PAPERS)}",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help=f"folder to write to (now: beside the runs; for a paper: {NEW_FOLDER})",
    )
    parser.add_argument("--sentence", metavar="TEXT", help="runs: text whose attention is drawn")
    add_json_flag(parser)
    parser.add_argument(
        "--results",
        metavar="DIR",
        help="paper: folder of collected results (now: experiments/results, those of this library)",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="paper: print all tables, searches, seeds and provenance instead of the summary",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="paper: write to experiments/results and RESULTS.md, which are kept in Git",
    )
    return parser


def require_pandas() -> None:
    """Raise MissingPackageError if pandas, which makes the tables, is not installed."""
    if importlib.util.find_spec("pandas") is None:
        raise MissingPackageError(
            "tables and figures need the package pandas: pip install '.[experiments]'."
        )


def load_paper(paper: str, folder: AnyPath) -> "tuple[Report, Results]":
    """Return the report on a paper, and the stored results.

    Raise `RunError` if `folder` is not `experiments/results` and has no results for this paper.

    Args:
      paper: Name of the paper, a key of `PAPERS`.
      folder: Folder of the stored results.
    """
    require_pandas()
    from experiments.papers.results import load_results  # --help needs neither pandas nor figures

    report: Report = importlib.import_module(f"experiments.papers.{PAPERS[paper]}.report").REPORT
    results = load_results(folder)
    if folder != FOLDER and not any(map(results.runs, report.experiments)):
        names = ", ".join(f"{name}.json" for name in report.experiments)
        raise RunError(
            f"--results must be a folder with collected results, such as {names}; {folder} holds "
            "none of them. `collect` writes them."
        )
    return report, results


def report_on_paper(paper: str, folder: AnyPath, output: AnyPath) -> str:
    """Write `report_{paper}.md` and the plots of a paper. Return the Markdown of the report.

    Args:
      paper: Name of the paper, a key of `PAPERS`.
      folder: Folder of the stored results.
      output: Folder to write to.
    """
    report, results = load_paper(paper, folder)
    epath.Path(output).mkdir(parents=True, exist_ok=True)
    report.draw_figures(results, output)
    text = report.summarize(results, figures="figures")
    (epath.Path(output) / f"report_{paper}.md").write_text(text)
    return text


def update_paper(paper: str) -> str:
    """Write the report on a paper to the files that are kept in Git.

    The plots are saved in `experiments/results/figures`. The Markdown text of the report replaces
    an earlier text in RESULTS.md. Some reports also replace parts of pages of the documentation.

    Args:
      paper: Name of the paper, a key of `PAPERS`.

    Returns:
      Markdown of the report.
    """
    report, results = load_paper(paper, FOLDER)
    report.draw_figures(results, FOLDER)
    text = report.summarize(results)
    update_results_page(paper, text)
    for page, template in report.pages.items():
        update_results_page(paper, report.fill(template, results), page)
    return text


def report(
    paths: Iterable[AnyPath], *, output: AnyPath | None = None, sentence: str | None = None
) -> str:
    """Write report.md and figures for each experiment, and return the Markdown of all reports.

    `write_reports` describes the arguments.
    """
    return "\n".join(one.text for one in write_reports(paths, output=output, sentence=sentence))


class FoundRun(NamedTuple):
    """Folder, configuration and result of a run. The result of an unfinished run is None."""

    path: epath.Path
    config: Config
    result: dict[str, Any] | None

    @property
    def title(self) -> str:
        """Printed name of the method (attention variant or guide) of this run."""
        return method_title(self.config.methods[0])


class WrittenReport(NamedTuple):
    """Report on the runs of one experiment: its Markdown, and the files that hold it."""

    text: str
    path: epath.Path
    figures: list[epath.Path]
    runs: list[FoundRun]

    def describe(self) -> dict[str, Any]:
        """Return the paths of the files and the results of all runs, for a JSON document."""
        return {
            "experiment": self.runs[0].config.name,
            "report": str(self.path),
            "figures": [str(figure) for figure in self.figures],
            "runs": [
                {
                    "run": str(run.path),
                    "method": run.config.methods[0],
                    "step": last_step(run.path),
                    "steps": Run(run.path).steps,
                    "result": run.result,
                }
                for run in self.runs
            ],
        }


def write_reports(
    paths: Iterable[AnyPath], *, output: AnyPath | None = None, sentence: str | None = None
) -> list[WrittenReport]:
    """Write report.md and figures for each experiment.

    Args:
      paths: Folders. Each is the folder of one run, of one experiment (with a subfolder for each
        run), or of several experiments (with a subfolder for each experiment).
      output: Folder to write to. If there are several experiments, each has its own subfolder. None
        writes each report to the folder of its experiment.
      sentence: Text whose attention maps are drawn. None uses the sentence of the recipe.
    """
    experiments = _group_runs(paths)
    directories = list(experiments)
    if output is not None:
        several = len(experiments) > 1
        directories = [
            epath.Path(output) / (folder.name if several else "") for folder in experiments
        ]
        if len(set(directories)) < len(directories):
            same = ", ".join(sorted(map(str, experiments)))
            raise RunError(
                f"paths must hold experiments of different names to be written to {output}; got "
                f"{same}. Report on them one by one."
            )
    return [
        _report_experiment(runs, directory, sentence)
        for runs, directory in zip(experiments.values(), directories, strict=True)
    ]


def _report_experiment(
    runs: list[FoundRun], directory: epath.Path, sentence: str | None
) -> WrittenReport:
    """Write report.md and the figures of an experiment."""
    require_pandas()
    from experiments.papers.page import read_published
    from experiments.papers.results import Results
    from experiments.papers.run_figures import draw_run_figures
    from experiments.papers.tables import experiment_tables

    name, recipe = runs[0].config.name, find_recipe(runs[0].config)
    finished = {run.config.methods[0]: {"result": run.result} for run in runs if run.result}
    parts = [f"# {name}"]
    if finished:
        results = Results({name: {"experiment": name, "runs": finished}})
        published = read_published("da_transformer").get(name, {})
        parts.append(experiment_tables(results, name, published))
    parts += _list_data_warnings(runs)
    parts += _list_unfinished(runs)
    parts += _warn_of_differences(runs)
    directory.mkdir(parents=True, exist_ok=True)
    sentence = sentence or getattr(recipe, "SENTENCE", None)
    figures = draw_run_figures([run.path for run in runs], directory, sentence=sentence)
    for path in figures:
        parts.append(f"![{path.stem.replace('_', ' ')}](figures/{path.name})")
    text = "\n\n".join(parts) + "\n"
    (directory / "report.md").write_text(text)
    return WrittenReport(text, directory / "report.md", list(figures), runs)


def _list_data_warnings(runs: Sequence[FoundRun]) -> list[str]:
    """Return the warnings about the data of the runs, each of them once."""
    warnings = (line for run in runs for line in Run(run.path).data.get("warnings", []))
    return list(dict.fromkeys(warnings))


def _group_runs(paths: Iterable[AnyPath]) -> dict[epath.Path, list[FoundRun]]:
    """Return all runs under the paths, grouped by the folder of their experiment."""
    groups: dict[epath.Path, dict[epath.Path, FoundRun]] = {}
    for path in map(epath.Path, paths):
        here = list(find_runs(path.resolve() if "://" not in str(path) else path, depth=2))
        if not here:
            problem = "holds none" if path.exists() else "does not exist"
            raise RunError(
                "paths must be runs (a run holds a config.json) or folders of runs; got "
                f"{path}, which {problem}."
            )
        for run in here:
            found = FoundRun(run, load_config(run), add_scores(Run(run))[0])
            groups.setdefault(run.parent, {})[run] = found
    return {folder: list(runs.values()) for folder, runs in groups.items()}


def _list_unfinished(runs: Sequence[FoundRun]) -> list[str]:
    """Return a Markdown list of the unfinished runs and their progress, as one string in a list.

    Return [] if all runs are finished.
    """
    lines = []
    for run in runs:
        if run.result is None:
            steps = Run(run.path).steps or "an unknown number"
            lines.append(f"{run.title}: not finished: step {last_step(run.path)} of {steps}")
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _warn_of_differences(runs: Sequence[FoundRun]) -> list[str]:
    """Return a Markdown list of the options that differ between runs, as one string in a list.

    Return [] if the runs differ only in the method.
    """
    pairs = itertools.combinations(runs, 2)
    names = {name for first, second in pairs for name in _differing_options(first, second)}
    if not names:
        return []
    options = {run.title: _select_options(run) for run in runs}
    lines = []
    for name in sorted(names):
        values = (f"{of[name]} ({title})" for title, of in options.items() if name in of)
        lines.append(f"- {name}: " + ", ".join(values))
    return ["\n".join(["These runs differ in more than their method:", "", *lines])]


def _differing_options(first: FoundRun, second: FoundRun) -> set[str]:
    """Return the names of the options whose values differ between two runs.

    Only options that the methods of both runs use are compared. If both runs took their loss
    weights from the same hyperparameter search, the loss weights are not compared.
    """
    one, other = _select_options(first), _select_options(second)
    same_search = first.config.search and first.config.search == second.config.search
    compared = (one.keys() & other.keys()) - set(GUIDE_WEIGHTS if same_search else ())
    return {name for name in compared if one[name] != other[name]}


def _select_options(run: FoundRun) -> dict[str, Any]:
    """Return the options that the method of a run uses, with their values."""
    used = options_read_by(run.config, run.config.method)
    options = result_options(run.config)
    return {name: value for name, value in options.items() if name in used}
