"""Artificial results of the attention-guiding experiments, in the form that `collect` stores."""

import numpy as np

from distattn_jax.tasks.guides import GUIDES
from experiments.papers.attention_guiding import head_statistics
from experiments.papers.attention_guiding.published import CLASSIFICATION

ENVIRONMENT = {"device": "a device", "commit": None, "packages": {"jax": "1.2", "flax": "3.4"}}
NOISE = (0.0, 0.01, 0.05, 0.02)  # by seed
PRETRAINED = {
    "name": "tiny",
    "digest": "0123",
    "stored": ["BF16"],
    "config": {"family": "bert", "layers": 2, "heads": 3, "features": 12},
}
DATA = {
    "rows": {"train": 1234, "validation": 56, "test": 78},
    "classes": 3,
    "average_length": 9.87,
    "said": ["a message"],
    "pretrained": PRETRAINED,
}
CONFIG = {
    "epochs": 2.0,
    "guiding.scaling": "mean",
    "data.share": 1.0,
    "data.batch_size": 8,
    "data.longest": 16,
    "model.dtype": "bfloat16",
    "optimizer.name": "adam",
    "optimizer.learning_rate": [1e-5],
}


def run(method, metrics, *, best, seeds=3, grid=({},), split=("validation", "test"), **config):
    """Return a run in which seed i has best + NOISE[i] of every metric.

    A guide gains 0.02 more on every second seed. Each entry of `grid` replaces options of the
    setting; each setting is 0.01 worse than the one before.
    """
    setting = {"learning_rate": 1e-5, "alpha": 0.1, "beta": 0.1, "gamma": 1.0}
    members = [
        {
            "seed": seed,
            "setting": {**setting, **point},
            **{
                name: dict.fromkeys(
                    metrics, best + NOISE[seed] + 0.02 * (seed % 2) * (best > 0.7) - i / 100
                )
                for name in split
            },
        }
        for i, point in enumerate(grid)
        for seed in range(seeds)
    ]
    result = {"method": method, "criterion": metrics[0], "steps": 120, "parameters": 7}
    result["step_bytes"] = (8e9 if GUIDES[method].maps else 2e9) * len(members)
    if metrics == CLASSIFICATION and "test" in split:
        result["baseline"] = {"test": {"accuracy": 0.25}}
    return {
        "result": {**result, "members": members},
        "config": {**CONFIG, **config},
        "environment": ENVIRONMENT,
        "seconds": 90.0,
        "step_seconds": 0.5 if method == "none" else 0.525,
    }


def content(experiment, methods, metrics=CLASSIFICATION, *, data=DATA, **arguments):
    """Return the results of an experiment. Each method is 0.02 better than the one before."""
    runs = {
        method: run(method, metrics, best=0.7 + i / 50, **arguments)
        for i, method in enumerate(methods)
    }
    return {"experiment": experiment, "data": data, "runs": runs}


def search(experiment, methods, **grid):
    """Return a search over one option, given as name=values, for the methods that use it."""
    ((name, values),) = grid.items()
    points = [{name: value} for value in values]
    runs = {}
    for method in methods:
        uses_it = name == "learning_rate" or name in GUIDES[method].weights
        one = run(
            *(method, CLASSIFICATION),
            best=0.7,
            split=("validation",),
            grid=points if uses_it else points[:1],
        )
        if name == "learning_rate":
            one["config"]["optimizer.learning_rate"] = list(values)
        runs[method] = one
    return {"experiment": experiment, "data": DATA, "runs": runs}


def heads(layers=2, heads=3, tokens=4):
    """Return head statistics of all guides."""
    random = np.random.default_rng(0)
    maps = {
        method: random.dirichlet(np.ones(tokens), (layers, heads, tokens))
        for method in head_statistics.GUIDES
    }
    points, explained = head_statistics.principal_components(maps)
    statistics = {
        method: {
            "seeds": [0, 1],
            "pairs": 32,
            "spread": [0.5, 0.6],
            "likeness": [0.9, 0.9],
            "special": [0.25 + i / 4, 0.27 + i / 3],
        }
        for i, method in enumerate(maps)
    }
    return {
        "guided": {
            "tokens": ["[CLS]", "a", "##b", "[SEP]"],
            "maps": {method: weights.mean((0, 1)) for method, weights in maps.items()},
            "points": points,
            "explained": explained,
            "heads": statistics,
        }
    }


def speed():
    """Return times of training steps."""
    lines = [
        {"method": "none", "seeds": 1, "bare": 10.0, "peak_bytes": 4e9},
        {"method": "ag", "seeds": 1, "bare": 10.5, "peak_bytes": 4.1e9},
    ]
    sizes = {"model.layers": 6, "model.heads": 12, "model.features": 384, "model.dtype": "bfloat16"}
    config = {**sizes, "data.batch_size": 64, "length": 256, "repeats": 3, "steps": 20}
    about = {"experiment": "guiding_speed", "environment": ENVIRONMENT, "config": config}
    return {**about, "lines": lines}


def find_row(text, name, heading):
    """Return the cells of the first row with this name after a heading."""
    lines = text[text.index(heading) :].splitlines()
    line = next(line for line in lines if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]
