"""Attention of language models to far tokens, in texts of several lengths.

If the distance weight w of a distance-aware head is negative, the scores of far keys are about 0.
Each far key then has the weight e⁰ = 1 before normalization. A longer text has more far keys, so
the share of the attention on far keys grows with the length of the text.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.tasks.language_modeling import COLUMN, LanguageModeling
from distattn_jax.tasks.load import load_parameters
from distattn_jax.tasks.registry import read_split
from distattn_jax.tasks.text_lengths import load_language_modeling, resize
from distattn_jax.train import RunError
from distattn_jax.train.run import AnyPath
from distattn_jax.train.state import model_graph


class FarAttention(NamedTuple):
    """Share of the attention on far keys, for examples of one length.

    Attributes:
      heads: Share for every head of M models with L layers of N heads.
      uniform: Share if all visible keys had equal weights.
    """

    heads: Float[np.ndarray, "M L N"]
    uniform: float


def measure_far_attention(
    path: AnyPath,
    lengths: Sequence[int],
    *,
    distance: int | None = None,
    split: str = "test",
    examples: int = 4,
) -> dict[int, FarAttention]:
    """Measure the share of the attention that each head of a language model gives to far tokens.

    A key is far if it is more than `distance` tokens before the query. The shares are means over
    the queries in the second half of every example. The attention weights of one example need
    4 L N T² bytes of memory, for T tokens and L layers of N heads.

    Args:
      path: Folder of a run on language modeling.
      lengths: Lengths of the examples to measure, in tokens.
      distance: Largest distance of a key that is not far, in tokens. If None, the length of the
        training examples.
      split: Name of the split.
      examples: Number of examples of each length, from the start of the split.

    Returns:
      Dict from each length to the shares of the attention on far keys.
    """
    task = load_language_modeling(path)
    params = load_parameters(path, task)
    if distance is None:
        distance = task.config.data.longest
    results = {}
    for length in lengths:
        resized = resize(task, length)
        table = read_split(resized, split)
        rows = np.flatnonzero(table.lengths((COLUMN,)) == length)[:examples]
        if not len(rows):
            raise RunError(
                f"lengths must be at most the number of tokens of {split}; got {length}."
            )
        share = jax.jit(functools.partial(_far_share, resized, distance=distance))
        shares = [share(params, table.take(row[None], length)) for row in rows]
        results[length] = FarAttention(np.mean(shares, axis=0), _uniform_share(length, distance))
    return results


def _far_share(
    task: LanguageModeling, params: Any, batch: Any, *, distance: int
) -> Float[Array, "M L N"]:
    """Return the share of the attention on far keys for every head of every model.

    The batch has one example without padding. A key is far if its distance is above `distance`.
    """

    def measure_model(own: Any) -> Float[Array, "L N"]:
        model = nnx.merge(model_graph(task), own)
        weights = task.call_model(model, batch, weights=True).weights[0]  # (L, N, T, T)
        length = weights.shape[-1]
        late = weights[:, :, length // 2 :]
        query = jnp.arange(length // 2, length)[:, None]
        is_far = query - jnp.arange(length)[None] > distance
        far = jnp.where(is_far[None, None], late, 0).sum(axis=-1)
        return (far / late.sum(axis=-1)).mean(axis=-1)

    return jax.lax.map(measure_model, params)


def _uniform_share(length: int, distance: int) -> float:
    """Return the share of far keys if all visible keys had equal weights."""
    query = np.arange(length // 2, length)  # Query i sees the keys 0 to i.
    return float((np.maximum(query - distance, 0) / (query + 1)).mean())
