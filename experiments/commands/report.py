"""Writes the tables and the pictures of runs that were made."""

import argparse
import importlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from etils import epath

from distattn_jax.train import Config, RunError, load_config
from distattn_jax.train.config import WEIGHTS, unread
from distattn_jax.train.flags import differences, to_dict
from distattn_jax.train.journal import read
from distattn_jax.train.run import MAY_CHANGE, Run
from experiments.papers import stored_results
from experiments.papers.comparison_tables import tables
from experiments.papers.da_transformer.published import FIGURES
from experiments.papers.formatting import title
from experiments.recipes import recipes

AnyPath = str | Path | epath.Path
PAPERS = {"da": "da_transformer", "guiding": "attention_guiding"}


def main(arguments: Sequence[str]) -> None:
    """`report [PATH ...] [--output DIR] [--sentence TEXT]`, or `report PAPER`, da or guiding."""
    parser = argparse.ArgumentParser(prog="python -m experiments report", description=__doc__)
    runs = Config().output.directory
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="runs, folders of runs, or a paper: da, guiding"
    )
    parser.add_argument("--output", metavar="DIR", help="where to write (now: beside the runs)")
    parser.add_argument("--sentence", metavar="TEXT", help="the text whose attention is drawn")
    given = parser.parse_args(arguments)
    paper = given.paths[0] if len(given.paths) == 1 else ""
    if paper in PAPERS:
        module = importlib.import_module(f"experiments.papers.{PAPERS[paper]}.report")
        text = module.report(given.output or stored_results.FOLDER)
        if given.output is None:
            stored_results.put_into_results_md(paper, text)
        print(text)
        return
    print(report(given.paths or [runs], output=given.output, sentence=given.sentence))


def report(
    paths: Iterable[AnyPath], *, output: AnyPath | None = None, sentence: str | None = None
) -> str:
    """Writes report.md and figures/ for each experiment, and returns the Markdown of all.

    Args:
      paths: runs, or folders of runs, or folders of those.
      output: where to write, a folder of its own for each of several experiments; None: beside
        the runs.
      sentence: the text whose attention is drawn; None: that of the recipe, if it has one.
    """
    experiments = _experiments(paths)
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
    return "\n".join(
        _report(runs, directory, sentence)
        for runs, directory in zip(experiments.values(), directories, strict=True)
    )


class Found(NamedTuple):
    """A run, and what is known of it."""

    path: epath.Path
    config: Config
    result: dict[str, Any] | None

    @property
    def title(self) -> str:
        """The method, as it is called in print."""
        return title(self.config.methods[0])


def _report(runs: list[Found], directory: epath.Path, sentence: str | None) -> str:
    name = runs[0].config.name
    recipe = dict(recipes()).get(name)
    results = [run.result for run in runs if run.result is not None]
    parts = [f"# {name}"]
    if results:
        parts.append(tables(results, paper=FIGURES.get(name)))
    parts += _unfinished(runs)
    parts += _unlike(runs)
    directory.mkdir(parents=True, exist_ok=True)
    from experiments.papers import run_figures  # imports Matplotlib, which --help does not need

    sentence = sentence or getattr(recipe, "SENTENCE", None)
    for path in run_figures.draw([run.path for run in runs], directory, sentence=sentence):
        parts.append(f"![{path.stem.replace('_', ' ')}](figures/{path.name})")
    text = "\n\n".join(parts) + "\n"
    (directory / "report.md").write_text(text)
    return text


def _experiments(paths: Iterable[AnyPath]) -> dict[epath.Path, list[Found]]:
    """The runs under the paths, by the folder they lie in."""
    groups: dict[epath.Path, dict[epath.Path, Found]] = {}
    for path in map(epath.Path, paths):
        here = list(_runs_under(path.resolve() if "://" not in str(path) else path, depth=2))
        if not here:
            raise RunError(
                "paths must be runs (a run holds a config.json) or folders of runs; got "
                f"{path}, which {'holds none' if path.exists() else 'does not exist'}."
            )
        for run in here:
            found = Found(run, load_config(run), Run(run).result)
            groups.setdefault(run.parent, {})[run] = found
    return {folder: list(runs.values()) for folder, runs in groups.items()}


def _runs_under(path: epath.Path, *, depth: int) -> Iterator[epath.Path]:
    if (path / "config.json").exists():
        yield path
    elif depth and path.is_dir():
        for inside in sorted(path.iterdir()):
            yield from _runs_under(inside, depth=depth - 1)


def _unfinished(runs: Sequence[Found]) -> list[str]:
    """A line for each run without a result: how far it has come, and how far it has to go."""
    lines = []
    for run in runs:
        if run.result is None:
            step = max((line["step"] for line in read(run.path)), default=0)
            steps = Run(run.path).steps or "a number that is not known"
            lines.append(f"{run.title}: not finished: step {step} of {steps}")
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _unlike(runs: Sequence[Found]) -> list[str]:
    """A warning about runs that differ in more than their method."""
    pairs = itertools.combinations(runs, 2)
    names = {name for one, other in pairs for name in _differences(one, other)}
    if not names:
        return []
    configs = {run.title: _own(run) for run in runs}
    lines = []
    for name in sorted(names):
        values = (f"{own[name]} ({of})" for of, own in configs.items() if name in own)
        lines.append(f"- {name}: " + ", ".join(values))
    return ["\n".join(["These runs differ in more than their method:", "", *lines])]


def _differences(one: Found, other: Found) -> list[str]:
    """The names of the fields in which two runs differ, where it matters and both have them.

    Weights of guides do not count where each run took the best that the same search found for it.
    """
    first, second = _own(one), _own(other)
    both = first.keys() & second.keys()
    searched = one.config.search and one.config.search == other.config.search
    ignoring = (*MAY_CHANGE, *(f"guiding.{name}" for name in WEIGHTS if searched))
    lines = differences(
        *({name: own[name] for name in both} for own in (first, second)), ignoring=ignoring
    )
    return [line.partition(":")[0] for line in lines]


def _own(run: Found) -> dict[str, Any]:
    """What its method has of its configuration."""
    absent = unread(run.config.methods[0])
    return {name: value for name, value in to_dict(run.config).items() if name not in absent}
