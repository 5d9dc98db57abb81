"""Artificial results of translators, for tests of the report on relative positions."""

import numpy as np

from experiments.papers.shaw.settings import DISTANCES, experiment_name

ENVIRONMENT = {
    "device": "a device",
    "commit": "0123456789abcdef",
    "packages": {"jax": "1.2", "flax": "3.4"},
}
SIGNATURES = {
    "bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    "bleu_lowercase": "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0",
    "chrf": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
}
TABLE_BLEU = {  # seed 0; each further seed has one point more
    "no_positions": 15.0,
    "vanilla": 36.0,
    "relative_position": 37.0,
    "relative_position_keys": 37.0,
    "relative_position_values": 35.0,
    "relative_and_absolute": 36.5,
}


def run(method, bleu, *, seeds=3, scored=True, distance=16):
    """Return a run in which seed i has bleu + i, and a validation loss of 1 / bleu."""
    members = []
    for seed in range(seeds):
        scores = {"bleu": bleu + seed, "bleu_lowercase": bleu + seed + 1, "chrf": bleu + seed + 20}
        members.append(
            {
                "seed": seed,
                "setting": {"learning_rate": 0.001},
                "best_step": 10,
                "validation": {"loss": 1 / bleu, "perplexity": 9.0},
                "test": {"loss": 1.5, **(scores if scored else {})},
            }
        )
    about = {"beam": 4, "length_penalty": 0.6, "average": None, "signatures": SIGNATURES}
    return {
        "result": {
            "method": method,
            "criterion": "loss",
            "steps": 60,
            "parameters": 7,
            "members": members,
        },
        "translations": {"test": about},
        "config": {"model.layers": 3, "model.features": 256, "model.max_distance": distance},
        "environment": ENVIRONMENT,
        "seconds": 60.0,
    }


def content(name, methods=tuple(TABLE_BLEU), *, gain=0.0, **arguments):
    """Return the results of an experiment. `gain` is added to BLEU."""
    runs = {method: run(method, TABLE_BLEU[method] + gain, **arguments) for method in methods}
    about = {"rows": {"train": 1234, "validation": 56, "test": 78}, "messages": ["a message"]}
    return {"experiment": name, "data": about, "runs": runs}


def tiny(name, rates):
    """Return the results of a run with several dropout rates.

    Args:
      name: Name of the experiment.
      rates: Dropout rate -> BLEU of seed 0.
    """
    whole = content(name, ("vanilla",))
    members = []
    for rate, bleu in rates.items():
        for member in run("vanilla", bleu)["result"]["members"]:
            members.append({**member, "setting": {"learning_rate": 5e-3, "dropout_rate": rate}})
    whole["runs"]["vanilla"]["result"]["members"] = members
    return whole


def sweep(data, distances=DISTANCES):
    """Return the results of Table 2: BLEU 15 without positions, then 30, then 36 to 36.5."""
    found = []
    for i, k in enumerate(distances):
        bleu = {0: 15.0, 1: 30.0}.get(k, 36.0 + i / 10)
        name = experiment_name(data, "small", k)
        runs = {"relative_position": run("relative_position", bleu, seeds=2, distance=k)}
        found.append({"experiment": name, "data": {"rows": {}}, "runs": runs})
    return found


def learned(layers=1, heads=4, distance=3):
    """Return what `collect` keeps of a translator."""
    random = np.random.default_rng(0)
    relations = {}
    for level, count in (("encoder", 2 * distance + 1), ("decoder", distance + 1)):
        relations[level] = {
            kind: {
                "positions": np.arange(-distance, count - distance),
                "norms": random.uniform(0, 1, (layers, heads, count)),
                "similarities": random.uniform(-1, 1, (layers, count, count)),
            }
            for kind in ("keys", "values")
        }
    source, target = ["a", "dog", "[END]"], ["ein", "Hund", "!", "[END]"]
    weights = random.dirichlet(np.ones(len(source)), (layers, len(target)))
    return {
        "relations": relations,
        "alignment": {"source": source, "target": target, "weights": weights},
    }


def switched(name, kinds, *, seeds=2):
    """Return the results of a run that trains several kinds of positions side by side.

    Args:
      name: Name of the experiment.
      kinds: (key_distance, value_distance, sinusoids) -> BLEU of seed 0.
      seeds: Number of seeds.
    """
    members = []
    for (keys, values, sinusoids), bleu in kinds.items():
        setting = {"key_distance": keys, "value_distance": values, "sinusoids": sinusoids}
        for member in run("switched_positions", bleu, seeds=seeds)["result"]["members"]:
            members.append({**member, "setting": setting})
    whole = run("switched_positions", 1.0)
    whole["result"]["members"] = members
    about = {"rows": {"train": 1234, "validation": 56, "test": 78}, "messages": []}
    return {"experiment": name, "data": about, "runs": {"switched_positions": whole}}
