"""Gathers what the runs of an experiment came to in one small file, for a paper's report."""

import argparse
from collections.abc import Sequence

from experiments import archive


def main(arguments: Sequence[str]) -> None:
    """`collect FOLDER ... [--output DIR]`."""
    parser = argparse.ArgumentParser(prog="python -m experiments collect", description=__doc__)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="of runs, e.g. runs/ag")
    parser.add_argument("--output", default=archive.FOLDER, metavar="DIR", help="where to write")
    given = parser.parse_args(arguments)
    for folder in given.folders:
        try:
            print(archive.write(archive.collected(folder), given.output))
        except ValueError as error:
            print(f"nothing is kept of {folder}: {error}")
