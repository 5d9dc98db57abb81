"""Collect the results of an experiment in one small JSON file, for the report on a paper."""

import argparse
from collections.abc import Sequence

from experiments.papers import stored_results
from experiments.papers.collecting import collect_results


def main(arguments: Sequence[str]) -> None:
    """Run `collect FOLDER ... [--output DIR]`: write the results of each experiment as JSON.

    Stored results of methods that FOLDER lacks are kept, unless --replace is given.
    """
    given = make_parser().parse_args(arguments)
    output = stored_results.FOLDER if given.update else given.output
    empty = []
    for folder in given.folders:
        try:
            content = collect_results(folder, earlier=None if given.replace else output)
            print(stored_results.write_results(content, output))
        except ValueError as error:
            print(f"nothing is kept of {folder}: {error}")
            empty.append(folder)
    if empty:
        raise SystemExit(f"error: nothing was collected from {', '.join(empty)}.")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m experiments collect", description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of runs, e.g. runs/ag")
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--output",
        default=stored_results.NEW_FOLDER,
        metavar="DIR",
        help="where to write (now: %(default)s)",
    )
    place.add_argument(
        "--update", action="store_true", help="write to experiments/results, which is kept in Git"
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="drop the stored runs of methods that FOLDER lacks (now: they are kept)",
    )
    return parser
