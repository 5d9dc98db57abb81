"""Collect statistics and attention maps of the heads of guided models.

`collect_guided_heads` loads the checkpoints of finished runs. It computes attention maps of one
pair of texts, the principal components of these maps, and statistics of heads on validation pairs.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax.tasks import TrainedModels, read_split
from distattn_jax.train import Run
from distattn_jax.train.state import model_graph
from experiments.papers.da_transformer.head_statistics import load_trained

GUIDES = ("none", "mdg", "pdg", "ag")  # the guides of Figures 4 and 5 of the paper
MAX_PAIRS, MAX_TOKENS = 256, 64  # validation pairs that are measured, and their longest length
BATCH_SIZE = 16
STATISTICS = ("spread", "likeness", "special")
SPACE_MARK = "\u0120"  # RoBERTa's tokenizer writes a space before a word as this letter.


class Batch(NamedTuple):
    """Pairs of texts as model inputs: token ids (B, T), lengths (B,) and token types (B, T)."""

    tokens: Any
    lengths: Any
    types: Any


class EncodedPair(NamedTuple):
    """One pair of texts after tokenization.

    Attributes:
      tokens: Token strings.
      batch: Model inputs with batch size 1.
      special: Ids of the special tokens that occur in the pair.
    """

    tokens: list[str]
    batch: Batch
    special: np.ndarray


def collect_guided_heads(runs: Mapping[str, Run], pair: tuple[str, str]) -> dict[str, Any]:
    """Collect attention maps, principal components and head statistics of guided models.

    Args:
      runs: Dict from guide to its finished run.
      pair: Two texts that form one model input. The attention maps are of this input.

    Returns:
      {"guided": found}, or {} if no run has checkpoints. The dict `found` has the keys "tokens"
      (of the pair), "maps" (for each guide, the mean map over heads), "points" and "explained"
      (see `principal_components`), and "heads" (for each guide, the statistics of all seeds).
    """
    trained = load_trained(runs, GUIDES)
    if not trained:
        return {}
    maps, heads = {}, {}
    for guide, models in trained.items():
        encoded = _encode_pair(models, pair)
        attend = jax.jit(lambda params, batch, task=models.task: _attend(task, params, batch))
        maps[guide] = np.asarray(attend(_member_params(models, models.best), encoded.batch)[0])
        statistics = _measure_models(models, runs[guide], encoded.special)
        if statistics:
            heads[guide] = statistics
    points, explained = principal_components(maps)
    return {
        "guided": {
            "tokens": encoded.tokens,
            "maps": {guide: weights.mean((0, 1)) for guide, weights in maps.items()},
            "points": points,
            "explained": explained,
            "heads": heads,
        }
    }


def principal_components(
    maps: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Project the attention map of every head onto the first two principal components.

    The components are computed from the heads of all models together, so that models can be
    compared.

    Args:
      maps: Dict from model to its attention weights, shape (L, N, T, T).

    Returns:
      (points, explained). `points[model]` has the coordinates of the heads, shape (L, N, 2).
      `explained` is the share of the variance that each component explains, shape (2,).
    """
    rows = np.concatenate([weights.reshape(-1, weights[0, 0].size) for weights in maps.values()])
    left, strengths, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    points = left[:, :2] * strengths[:2]
    # A component has no sign of its own: make its largest coordinate positive.
    largest = np.abs(points).argmax(0)
    points *= np.where(points[largest, range(2)] < 0, -1, 1)
    ends = np.cumsum([weights.shape[0] * weights.shape[1] for weights in maps.values()])
    parts = np.split(points, ends[:-1])
    by_model = {
        model: part.reshape(*weights.shape[:2], 2)
        for (model, weights), part in zip(maps.items(), parts, strict=True)
    }
    return by_model, strengths[:2] ** 2 / max((strengths**2).sum(), 1e-30)


def compute_statistics(weights: Any, lengths: Any, special: Any) -> dict[str, Any]:
    """Compute how much the heads of a model differ, and how much they attend to special tokens.

    Every value of the returned dictionary has shape (B,):

    - spread: squared distance between the attention weights of a query in one head and the mean
      of these weights over heads, averaged over queries and heads. At most 2.
    - likeness: cosine similarity of the attention that keys receive in two heads, averaged over
      all pairs of heads.
    - special: share of all attention that special tokens receive.

    Args:
      weights: Attention weights, shape (B, L, N, T, T).
      lengths: Number of tokens of each example, shape (B,). Later positions are ignored.
      special: 1 for special tokens and 0 for all others, shape (B, T).
    """
    batch, layers, heads, tokens, _ = weights.shape
    maps = weights.reshape(batch, layers * heads, tokens, tokens)
    valid = jnp.arange(tokens)[None] < lengths[:, None]  # (B, T)
    maps = maps * (valid[:, None, :, None] & valid[:, None, None, :])
    spread = jnp.square(maps - maps.mean(1, keepdims=True)).sum((2, 3)).mean(1)
    received = maps.sum(2)  # (B, LN, T)
    unit = received / jnp.maximum(jnp.linalg.norm(received, axis=-1, keepdims=True), 1e-30)
    count = layers * heads
    # |sum of unit vectors|² is the sum of all cosines, with `count` ones from equal heads.
    likeness = (jnp.square(unit.sum(1)).sum(-1) - count) / max(count * (count - 1), 1)
    share = (received * (special * valid)[:, None]).sum(-1).mean(1)
    return {"spread": spread / lengths, "likeness": likeness, "special": share / lengths}


def _encode_pair(trained: TrainedModels, pair: tuple[str, str]) -> EncodedPair:
    """Tokenize two texts with the tokenizer of the models."""
    encoding = trained.task.tokenizer.encode(*pair)
    ids, types = (np.asarray(found, np.int32) for found in (encoding.ids, encoding.type_ids))
    special = np.unique(ids[np.asarray(encoding.special_tokens_mask) == 1])
    tokens = [token.removeprefix(SPACE_MARK) for token in encoding.tokens]
    batch = Batch(ids[None], np.asarray([len(ids)], np.int32), types[None])
    return EncodedPair(tokens, batch, special)


def _attend(task: Any, params: Any, batch: Batch) -> Any:
    """Return the attention weights of a model with parameters `params`, shape (B, L, N, T, T)."""
    return nnx.merge(model_graph(task), params)(*batch, weights=True).weights


def _member_params(trained: TrainedModels, member: int) -> Any:
    """Return the parameters of one model of a run. `member` is the index of the model."""
    return jax.tree.map(lambda leaf: leaf[member], trained.params)


def _measure_models(trained: TrainedModels, run: Run, special: np.ndarray) -> dict[str, Any]:
    """Compute the head statistics of each seed on validation pairs of at most MAX_TOKENS tokens.

    If the run trained a hyperparameter grid, only the models with the best hyperparameters are
    used.

    Args:
      trained: Models of the run.
      run: Finished run.
      special: Ids of the special tokens.

    Returns:
      A dict with "seeds", "pairs" (number of validation pairs), and for each statistic a list
      with one value per seed. The dict is empty if no pair is short enough.
    """
    task = trained.task
    table = read_split(task, "validation")
    batches = list(_short_batches(table))
    if not batches:
        return {}

    @jax.jit
    def measure(params: Any, batch: Batch) -> dict[str, Any]:
        weights = _attend(task, params, batch)
        return compute_statistics(weights, batch.lengths, jnp.isin(batch.tokens, special))

    members = (run.result or {})["members"]
    seeds = [members[i]["seed"] for i in trained.members]
    pairs = sum(len(batch.lengths) for batch in batches)
    collected: dict[str, Any] = {"seeds": seeds, "pairs": pairs}
    for member in trained.members:
        found = [measure(_member_params(trained, member), batch) for batch in batches]
        for name in STATISTICS:
            mean = np.concatenate([np.asarray(part[name]) for part in found]).mean()
            collected.setdefault(name, []).append(float(mean))
    return collected


def _short_batches(table: Any) -> Iterator[Batch]:
    """Yield batches of the first MAX_PAIRS pairs that have at most MAX_TOKENS tokens."""
    short = np.flatnonzero(table.lengths(("tokens",)) <= MAX_TOKENS)[:MAX_PAIRS]
    for start in range(0, len(short), BATCH_SIZE):
        columns = table.take(short[start : start + BATCH_SIZE], MAX_TOKENS)
        yield Batch(columns["tokens"], columns["tokens_length"], columns["types"])
