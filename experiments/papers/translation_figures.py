"""Figures of translators: position vectors, and attention between words."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distattn_jax import plot


def draw_relations(tables: Mapping[str, Mapping[str, Any]], field: str) -> Figure:
    """Draw the norms or the similarities of the position vectors of an encoder or decoder.

    Args:
      tables: Fields of `RelationTable` by name, for keys and for values.
      field: "norms" or "similarities".
    """
    draw = plot.relation_norms if field == "norms" else plot.relation_similarities
    positions = np.asarray(next(iter(tables.values()))["positions"])
    return draw({kind: np.asarray(table[field]) for kind, table in tables.items()}, positions)


def draw_alignment(alignment: Mapping[str, Any]) -> Figure:
    """Draw the attention from the words of a translation to those of its source, for each layer.

    Args:
      alignment: Fields of `Alignment` by name.
    """
    maps = {
        f"decoder layer {layer + 1}\nmean of heads": np.asarray(weights)
        for layer, weights in enumerate(alignment["weights"])
    }
    return plot.attention_maps(
        maps,
        alignment["source"],
        query_tokens=alignment["target"],
        axis_names=("target", "source"),
    )
