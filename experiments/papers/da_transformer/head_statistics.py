"""Collect head parameters, attention maps and attention by distance from finished runs."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from distattn_jax.tasks import (
    SentenceAttention,
    TrainedModels,
    distance_parameters,
    distance_profile,
    load_models,
    read_split,
    sentence_attention,
)
from distattn_jax.train import Run

TEXTS = 512  # validation texts whose attention is averaged over distances
MAX_DISTANCE = 63
MAPS = 2  # local heads, and global heads, whose maps are kept


def collect_heads(runs: Mapping[str, Run], *, sentence: str | None) -> dict[str, Any]:
    """Collect head parameters, attention maps and shares of attention by distance.

    Only runs of the methods "vanilla" and "distance_aware" that have checkpoints are used. Maps and
    shares are collected only from models whose input is a single text.

    Args:
      runs: Dict from method to its finished run.
      sentence: Text whose attention maps are kept. None keeps no maps.

    Returns:
      A dict with up to three keys: "heads" (distance weights w and sigmoid shapes v of all seeds),
      "attention" (for each method, the maps of some heads) and "distances" (for each method, the
      share of attention at each distance).
    """
    collected: dict[str, Any] = {}
    trained = load_trained(runs, ("vanilla", "distance_aware"))
    if "distance_aware" in trained:
        _, params, members, _ = trained["distance_aware"]
        collected["heads"] = {
            level: {"weight": weight[members], "shape": shape[members]}
            for level, (weight, shape) in distance_parameters(params).items()
        }
    if not trained or not all(model.reads_single_texts for model in trained.values()):
        return collected
    if sentence is not None:
        collected["attention"] = {
            method: _select_maps(sentence_attention(model, sentence))
            for method, model in trained.items()
        }
    collected["distances"] = {
        method: _profile_distances(model) for method, model in trained.items()
    }
    return collected


def load_trained(runs: Mapping[str, Run], methods: Iterable[str]) -> dict[str, TrainedModels]:
    """Load the trained models of each method whose run has checkpoints."""
    return {
        method: load_models(runs[method].path, runs[method].result or {})
        for method in methods
        if method in runs and runs[method].checkpoints.exists()
    }


def _select_maps(attention: SentenceAttention) -> dict[str, Any]:
    """Return the attention maps of the most local and the most global heads, with their tokens.

    Local heads have a distance weight w < 0, global heads w > 0. If the model has no distance
    weights, the maps of its first heads are returned.
    """
    tokens, weights, distance_weight = attention
    maps = weights.reshape(-1, len(tokens), len(tokens))
    heads = np.arange(len(maps))[: 2 * MAPS]
    if distance_weight is None:
        return {"tokens": tokens, "heads": heads, "maps": maps[heads]}
    weight = distance_weight.reshape(-1)
    order = weight.argsort()
    local_heads, global_heads = order[weight[order] < 0][:MAPS], order[weight[order] > 0][-MAPS:]
    heads = np.concatenate([local_heads, global_heads])
    return {"tokens": tokens, "heads": heads, "maps": maps[heads], "weight": weight[heads]}


def _profile_distances(trained: TrainedModels) -> dict[str, Any]:
    """Compute the share of attention at each distance, averaged over queries of validation texts.

    Returns:
      A dict with the keys "heads" (shares of every head), "uniform" (shares if all keys had equal
      weights) and, for distance-aware models, "weight" (the distance weight w of every head).
    """
    task = trained.task
    table = read_split(task, "validation")
    profile = distance_profile(trained, table, texts=TEXTS, furthest=MAX_DISTANCE)
    collected = {"heads": profile.heads.reshape(-1, MAX_DISTANCE + 1), "uniform": profile.uniform}
    if task.config.method == "distance_aware":
        collected["weight"] = distance_parameters(trained.params)["text"][0][trained.best].reshape(
            -1
        )
    return collected
