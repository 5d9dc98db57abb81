"""Artificial results of the experiments on where distance helps."""

from experiments.papers.when_to_use.language_models import NAMES
from experiments.papers.when_to_use.settings import LENGTHS, OURS, TRAINED_LENGTH
from experiments.papers.when_to_use.tables import CRITERIA

SEEDS = (0, 1, 2)


def content(name, methods, *, start=0.5, gain=0.1):
    """Return the results of one experiment. Each method is better than the one before it.

    Args:
      name: Name of the experiment.
      methods: Methods in the order of their scores.
      start: Test score of the first method with seed 0.
      gain: Difference of two neighbours.
    """
    runs = {}
    for rank, method in enumerate(methods):
        members = []
        for rate, bad in ((1e-3, 0.0), (2e-3, 0.05)):
            for seed in SEEDS:
                # Differences between methods vary with the seed, so that t-tests are possible.
                value = start + rank * gain * (1 + 0.1 * seed) + 0.01 * seed
                scores = {"loss": 1 - value, CRITERIA[name]: value}
                members.append(
                    {
                        "seed": seed,
                        "setting": {"learning_rate": rate},
                        "best_step": 1,
                        "validation": {key: score - bad for key, score in scores.items()}
                        | {"loss": 1 - value + bad},
                        "test": scores,
                    }
                )
        runs[method] = {
            "result": {
                "method": method,
                "task": "tagging",
                "criterion": "loss" if name in NAMES.values() else CRITERIA[name],
                "steps": 10,
                "parameters": 100,
                "baseline": {"test": {CRITERIA[name]: 0.25}},
                "members": members,
            },
            "config": {},
            "environment": None,
            "seconds": 0,
            "step_seconds": 0.1,
        }
    data = {"rows": {"train": 1, "validation": 1, "test": 1}, "messages": ["one message"]}
    return {"experiment": name, "data": data, "runs": runs}


def heads():
    """Return measures of DA-Transformer with 1 layer of 2 heads, one of which has w < 0."""
    pruned = {"smallest absolute w": 0.0, "largest absolute w": 0.2, "most even attention": 0.01}
    return {
        "weight": [[[-0.5, 0.25]]] * len(SEEDS),
        "shape": [[[0.5, 1.5]]] * len(SEEDS),
        "pruning": {
            "criterion": "accuracy",
            "counts": [0, 1, 2],
            "heads": 2,
            "whole": [0.9] * len(SEEDS),
            "orders": {
                "random": [[0.9, 0.8, 0.5]] * len(SEEDS),
                **{
                    name: [[0.9, 0.85 - cost * (1 + 0.1 * seed), 0.5] for seed in SEEDS]
                    for name, cost in pruned.items()
                },
            },
        },
    }


def language_models(growths, *, trained=TRAINED_LENGTH, start=100.0):
    """Return results of language models.

    Args:
      growths: Dict from the method to the factor of the perplexity when the length doubles.
      trained: Tokens of an example in training.
      start: Perplexity of seed 0 at the smallest length.
    """
    found = content(NAMES[trained], list(growths))
    found["perplexity"] = {
        method: {
            "lengths": {
                str(length): {
                    # The differences between lengths vary with the seed, as t-tests need it.
                    "perplexity": [start * growth**i + seed * (1 + 0.1 * i) for seed in SEEDS],
                    "starts": [0, 64],
                    "by_position": [[90.0, start * growth**i]] * len(SEEDS),
                }
                for i, length in enumerate(LENGTHS)
            }
        }
        for method, growth in growths.items()
    }
    far = {
        str(length): {"heads": [[[0.1 * i, 0.02 * i]]] * len(SEEDS), "uniform": 0.15 * i}
        for i, length in enumerate(LENGTHS)
    }
    found["heads"] = {method: {"far": far} for method in growths}
    if OURS in growths:
        found["heads"][OURS] |= heads()
    return found


def reviews(cut, accuracies):
    """Return results of classifiers of film reviews.

    Args:
      cut: Words of a review.
      accuracies: Dict from the method to the accuracy of each seed.
    """
    found = content(f"imdb_{cut}", list(accuracies))
    for method, values in accuracies.items():
        for member in found["runs"][method]["result"]["members"]:
            member["test"]["accuracy"] = values[member["seed"]]
    return found
