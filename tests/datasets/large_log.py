"""Prepare and read a log of 50,000 synthetic impressions, and print the memory used.

Run it as `python -m tests.datasets.large_log FOLDER`. A separate process is necessary, because the
peak memory is measured per process.
"""

import itertools
import json
import resource
import sys
from pathlib import Path

from distattn_jax.data import Batches, train_word_level
from distattn_jax.datasets import Mind, OnDiskImpressions
from tests.datasets.synthetic_mind import write_mind

IMPRESSIONS = 50_000
CLICKED = 10  # Every tenth impression has a click. The others are left out, which saves time.
USER = "U" * 1000  # Long user names make a large log quickly.


def prepare_and_read(folder: Path, data: Path) -> int:
    """Return the number of impressions in the batches of all splits."""
    builder = Mind(manual_dir=folder, data_dir=data)
    tokenizer = train_word_level(builder.titles)
    count = 0
    for split in ("train", "validation", "test"):
        batches = Batches(
            OnDiskImpressions.from_builder(builder, split, tokenizer),
            batch_size=64,
            buckets=(10,),
            length_columns="candidates",
            shuffle=True,
        )
        for i in range(batches.batches_per_epoch):
            count += int(batches[i]["weight"].sum())
    return count


def enlarge(path: Path, lines: int) -> None:
    """Repeat the lines of a log, with long user names, until it has this many lines."""
    original = path.read_text().splitlines()
    with path.open("w") as file:
        for number, line in enumerate(itertools.islice(itertools.cycle(original), lines)):
            line = line.replace("\tU", f"\t{USER}")
            file.write((line if number % CLICKED == 0 else line.replace("-1", "-0")) + "\n")


def main(folder: Path) -> None:
    write_mind(folder / "raw", users=50, news=64, impressions=200, seed=0, days=3)
    prepare_and_read(folder / "raw", folder / "small")  # Imports are not measured.
    for part, share in (("train", 0.9), ("dev", 0.1)):
        enlarge(folder / "raw" / part / "behaviors.tsv", int(share * IMPRESSIONS))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = prepare_and_read(folder / "raw", folder / "large")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    log = sum(path.stat().st_size for path in folder.rglob("behaviors.tsv"))
    kilobyte = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({"read": count, "log": log, "growth": (after - before) * kilobyte}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
