"""Artificial results in the form that `collect` stores, and rows of Markdown tables."""

import numpy as np

from experiments.papers.results import split_results
from experiments.papers.stored_results import FOLDER, read_results

ENVIRONMENT = {
    "device": "a device",
    "commit": "0123456789abcdef-dirty",
    "packages": {"jax": "1.2", "flax": "3.4"},
}
DATA = {
    "rows": {"train": 1234, "validation": 56, "test": 78},
    "classes": 4,
    "average_length": 9.87,
    "sequence_lengths": {"text": 9.87},
    "said": ["a message"],
}


def members(values, metrics, *, setting=None, splits=("validation", "test")):
    """Return models with the value of each seed for all metrics of all splits."""
    return [
        {
            "seed": seed,
            "setting": setting or {"learning_rate": 0.001},
            "best_step": 10,
            **{split: dict.fromkeys(metrics, float(value)) for split in splits},
        }
        for seed, value in enumerate(values)
    ]


def run(method, models, *, criterion="accuracy", config=None, **result):
    """Return a stored run."""
    return {
        "result": {
            **{"method": method, "criterion": criterion, "steps": 120, "parameters": 7},
            "members": models,
            **result,
        },
        "config": config or {},
        "environment": ENVIRONMENT,
        "seconds": 60.0,
        "step_seconds": 0.5,
    }


def content(name, scores, metrics=("accuracy",), *, data=DATA, config=None, settings=None, **more):
    """Return the stored results of an experiment.

    Args:
      name: Name of the experiment.
      scores: Method -> value of each seed, for all metrics.
      metrics: Names of the metrics. The first one is the criterion.
      data: Description of the data.
      config: Options of all runs.
      settings: Settings of the grid. Each is 0.01 worse than the one before.
      **more: Further entries of the results of runs.
    """
    runs = {}
    for method, values in scores.items():
        models = []
        for i, setting in enumerate(settings or [None]):
            worse = np.asarray(values) - 0.01 * i
            models += members(worse, metrics, setting=setting, splits=more.get("splits", SPLITS))
        result = {key: value for key, value in more.items() if key != "splits"}
        runs[method] = run(method, models, criterion=metrics[0], config=config, **result)
    return {"experiment": name, "data": data, "runs": runs}


SPLITS = ("validation", "test")


def read(*patterns):
    """Return a copy of the stored results of this library, by experiment."""
    names = [path.stem for one in patterns for path in sorted(FOLDER.glob(f"{one}.json"))]
    return {name: read_results(name) for name in names}


def make_results(*contents):
    """Return the results of several experiments."""
    return split_results({one["experiment"]: one for one in contents})


def find_links(text):
    """Return the names of the linked files."""
    return {part.split(")")[0].split("/")[-1] for part in text.split("](")[1:]}


def find_row(text, name, heading=""):
    """Return the cells of the first row with this name after a heading."""
    lines = text[text.index(heading) :].splitlines()
    line = next(line for line in lines if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]
