"""Save one trained model of a run as a small folder, to keep or to send."""

import argparse
from collections.abc import Sequence

from etils import epath

from distattn_jax.tasks import save
from experiments.commands.evaluate import add_average_flag


def main(arguments: Sequence[str]) -> None:
    """Run `save RUN FOLDER [--member I] [--average N]`: write the folder, and print its size."""
    parser = argparse.ArgumentParser(prog="python -m experiments save", description=__doc__)
    parser.add_argument("run", help="folder of a run, e.g. runs/nearest/distance_aware")
    parser.add_argument("folder", help="new folder; every command takes it instead of a run")
    parser.add_argument("--member", type=int, help="index of a model of the run (now: the best)")
    add_average_flag(parser)
    parsed = parser.parse_args(arguments)
    save(parsed.run, parsed.folder, member=parsed.member, average=parsed.average)
    files = [path for path in epath.Path(parsed.folder).iterdir() if path.is_file()]
    size = sum(len(path.read_bytes()) for path in files)
    print(f"{parsed.folder}: {len(files)} files, {size / 1e6:.1f} MB.")
    print(f"Write into {parsed.folder}/README.md where the texts come from, and their licence.")
