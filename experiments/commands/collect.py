"""Collect the results of an experiment in one small JSON file, for the report on a paper."""

import argparse
from collections.abc import Sequence

from experiments.papers import stored_results
from experiments.papers.collecting import collect_results


def main(arguments: Sequence[str]) -> None:
    """Run `collect FOLDER ... [--output DIR]`: write the results of each experiment as JSON."""
    parser = argparse.ArgumentParser(prog="python -m experiments collect", description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of runs, e.g. runs/ag")
    parser.add_argument(
        "--output", default=stored_results.FOLDER, metavar="DIR", help="where to write"
    )
    given = parser.parse_args(arguments)
    for folder in given.folders:
        try:
            print(stored_results.write_results(collect_results(folder), given.output))
        except ValueError as error:
            print(f"nothing is kept of {folder}: {error}")
