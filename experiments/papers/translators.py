"""Collect the position vectors of trained translators, and their attention between words."""

from collections.abc import Mapping
from typing import Any

from distattn_jax.data import encode
from distattn_jax.tasks import TrainedModels, load_models, relation_tables
from distattn_jax.tasks.alignment import Alignment, align_words
from distattn_jax.tasks.decoding import translate_tokens
from distattn_jax.train import Run
from distattn_jax.train.results import best_member
from experiments.papers.shaw.settings import RELATIVE
from experiments.papers.shaw.switched import SWITCHED, find_kind

MAX_DISTANCE = 16  # largest relative position whose vectors are shown


def align_sentence(trained: TrainedModels, sentence: str) -> Alignment:
    """Translate a sentence with the best model of a run. Return the attention between the words."""
    model, tokenizer = trained.model, trained.task.tokenizer
    sources = encode(tokenizer, [sentence])
    (alignment,) = align_words(model, tokenizer, sources, translate_tokens(model, sources))
    return alignment


def collect_relations(
    trained: TrainedModels, max_distance: int = MAX_DISTANCE
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the norms and similarities of the position vectors of the best model.

    For example, `result["decoder"]["values"]` is a dict with the fields of `RelationTable`, for the
    vectors that the decoder adds to the values. The other keys are "encoder" and "keys". The result
    is {} if the attention has no position vectors.

    Args:
      trained: Models of a run.
      max_distance: Largest relative position whose vectors are compared.
    """
    found = relation_tables(trained.params, trained.best, max_distance=max_distance)
    return {
        level: {kind: table._asdict() for kind, table in tables.items()}
        for level, tables in found.items()
    }


def collect_translator(runs: Mapping[str, Run], *, sentence: str) -> dict[str, Any]:
    """Collect position vectors and attention between words from a run with relative positions.

    Args:
      runs: Dict from method to its finished run.
      sentence: Source sentence.

    Returns:
      A dict with the keys "relations" (see `collect_relations`) and "alignment" (fields of
      `Alignment`). They describe the run of the method `relative_position`, or, if there is none,
      the run of `switched_positions`. The dict is empty if there is no such run with checkpoints.
    """
    run = runs.get(RELATIVE, runs.get(SWITCHED))
    if run is None or run.result is None or not run.checkpoints.exists():
        return {}
    trained, distance = load_models(run.path, run.result), MAX_DISTANCE
    if RELATIVE not in runs:
        kinds = {i: find_kind(one["setting"]) for i, one in enumerate(run.result["members"])}
        distances = {
            i: kind.distance
            for i, kind in kinds.items()
            if kind is not None and kind.method == RELATIVE
        }
        if not distances:
            return {}
        best = best_member(run.result, list(distances))
        trained, distance = trained._replace(best=best), min(distance, distances[best])
    alignment = align_sentence(trained, sentence)
    return {"relations": collect_relations(trained, distance), "alignment": alignment._asdict()}
