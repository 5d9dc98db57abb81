"""Perplexity of a language model on examples that are longer or shorter than in training.

The perplexity is measured over all tokens, and for each range of positions in an example.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from distattn_jax import sharding
from distattn_jax.data import Table
from distattn_jax.tasks.language_modeling import COLUMN, LanguageModeling
from distattn_jax.tasks.load import load_parameters, load_task
from distattn_jax.tasks.registry import read_split
from distattn_jax.token_scores import TokenScores
from distattn_jax.train import Batch, RunError, evaluate
from distattn_jax.train.run import AnyPath

FIRST_EDGE = 64  # Ranges of positions are 0 to 63, 64 to 127, 128 to 255, 256 to 511, and so on.


class LengthResult(NamedTuple):
    """Perplexity of the M models of a run on examples of one length.

    Attributes:
      perplexity: Perplexity of all predicted tokens.
      starts: First position of each range of positions in an example, e.g. (0, 64, 128) for the
        ranges 0 to 63, 64 to 127, and 128 to the end.
      by_position: Perplexity of the predicted tokens in each range of positions.
    """

    perplexity: Float[np.ndarray, " M"]
    starts: tuple[int, ...]
    by_position: Float[np.ndarray, "M ranges"]


def measure_perplexity(
    path: AnyPath, lengths: Sequence[int], *, split: str = "test", tokens: int | None = None
) -> dict[int, LengthResult]:
    """Measure the perplexity of the models of a run on examples of several lengths.

    For each length, all texts of the split are joined and cut into examples, as in training. If
    every length divides the largest length, the same tokens are predicted at every length, but from
    contexts of different lengths.

    Args:
      path: Folder of a run on language modeling.
      lengths: Lengths of the examples to measure, in tokens.
      split: Name of the split.
      tokens: Largest number of predicted tokens; None for all tokens of the split. The number is
        rounded down to a multiple of the largest length.

    Returns:
      Dict from each length to its result.

    Raises:
      RunError: The run has another task, or the split has fewer tokens than an example.
    """
    if min(lengths) < 1:
        raise ValueError(f"lengths must be at least 1; got {min(lengths)}.")
    task = load_language_modeling(path)
    params = load_parameters(path, task)
    largest = max(lengths)
    available = count_tokens(task, split)
    predicted = available if tokens is None else min(tokens, available)
    predicted -= predicted % largest
    if predicted < 1:
        asked = "" if tokens is None else f", and tokens (--tokens) is {tokens}"
        raise RunError(
            f"lengths must be at most the number of predicted tokens; got {largest}, but {split} "
            f"has {available} tokens{asked}."
        )
    results = {}
    for length in lengths:
        resized_task = resize(task, length)
        examples = read_split(resized_task, split)
        is_predicted = np.arange(len(examples)) < predicted // length
        table = Table({name: x.select(is_predicted) for name, x in examples.columns.items()})
        metrics = evaluate(resized_task, params, table, sharding.make_mesh(1, 1))
        results[length] = LengthResult(
            metrics["perplexity"],
            _range_starts(length),
            np.stack([metrics[_name_range(start)] for start in _range_starts(length)], axis=-1),
        )
    return results


def count_tokens(task: LanguageModeling, split: str) -> int:
    """Return the number of tokens of a split."""
    return int(read_split(task, split).lengths((COLUMN,)).sum())


def load_language_modeling(path: AnyPath) -> LanguageModeling:
    """Return the task of a run. Raise `RunError` if the task is not language modeling."""
    task = load_task(path)
    if not isinstance(task, LanguageModeling):
        raise RunError(
            f"{path} must be a run on language modeling; got the task {task.config.task}."
        )
    return task


class _PredictionByPosition(LanguageModeling):
    """Language modeling whose metrics include the perplexity of each range of positions."""

    def count_scores(self, scores: TokenScores, batch: Batch) -> dict[str, Array]:
        counts = super().count_scores(scores, batch)
        counted = self.find_counted(batch)
        losses = jnp.where(counted, scores.cross_entropy, 0)
        starts = _range_starts(self.config.data.longest)
        for start, end in zip(starts, (*starts[1:], None), strict=True):
            counts[f"log_loss_{start}"] = losses[:, start:end].sum()
            counts[f"tokens_{start}"] = counted[:, start:end].sum().astype(jnp.float32)
        return counts

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        by_position = {
            _name_range(start): float(
                np.exp(counts[f"log_loss_{start}"] / counts[f"tokens_{start}"])
            )
            for start in _range_starts(self.config.data.longest)
        }
        return {**super().metrics(counts), **by_position}


def resize(task: LanguageModeling, length: int) -> LanguageModeling:
    """Return a copy of the task with examples of another length.

    The number of tokens in a batch stays about the same. The metrics of the returned task include
    the perplexity of each range of positions.
    """
    data = task.config.data
    batch_size = max(1, data.batch_size * data.longest // length)
    changed = dataclasses.replace(data, longest=length, batch_size=batch_size, buckets=1)
    config = dataclasses.replace(task.config, data=changed)
    return _PredictionByPosition(
        config, tokenizer=task.tokenizer, labels=task.labels, data=task.data
    )


def _range_starts(length: int) -> tuple[int, ...]:
    """Return the first position of each range of positions, e.g. (0, 64, 128) for length 200."""
    starts, start = [0], FIRST_EDGE
    while start < length:
        starts.append(start)
        start *= 2
    return tuple(starts)


def _name_range(start: int) -> str:
    return f"perplexity_from_{start}"


def results_to_json(results: Mapping[int, LengthResult]) -> dict[str, Any]:
    """Return results as numbers and lists, for a JSON file."""
    return {
        str(length): {name: np.asarray(value).tolist() for name, value in result._asdict().items()}
        for length, result in results.items()
    }
