"""What guides make of heads: the maps of one pair, heads as points, and how alike they are.

`collect` calls `learned`, which needs the checkpoints of finished runs and leaves numbers small
enough to keep; the tables and pictures are made of these.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from distattn_jax.train.run import Run, load_config
from distattn_jax.train.state import graph_of
from distattn_jax.train.tasks import table_of
from experiments.papers.comparison_tables import pairs_of, tested
from experiments.papers.formatting import NOT_RUN, NOTHING, counts, markdown, mean_and_spread, title
from experiments.trained import Trained, load

SHOWN = ("none", "mdg", "pdg", "ag")  # as in Figures 4 and 5 of the paper
PAIRS, LONGEST = 256, 64  # of the validation set that are looked at, and their most tokens
CHUNK = 16
MEASURES = {
    "spread": "spread of maps",
    "likeness": "likeness of heads",
    "special": "attention on special tokens",
}


def learned(runs: Mapping[str, Run], pair: tuple[str, str]) -> dict[str, Any]:
    """What is kept of the runs of an experiment on pairs; nothing, if they have no checkpoints.

    Args:
      runs: by guide.
      pair: the texts whose maps are kept.
    """
    trained = {
        method: load(runs[method].path, runs[method].result or {})
        for method in SHOWN
        if method in runs and runs[method].checkpoints.exists()
    }
    if not trained:
        return {}
    maps, heads = {}, {}
    for method, models in trained.items():
        shown = _encoded(models, pair)
        look = jax.jit(lambda params, batch, task=models.task: _weights(task, params, batch))
        maps[method] = np.asarray(look(_member(models, models.best), shown.batch)[0])
        measured = _measured(models, runs[method], shown.special)
        if measured:
            heads[method] = measured
    points, explained = components(maps)
    return {
        "guided": {
            "tokens": shown.tokens,
            "maps": {method: weights.mean((0, 1)) for method, weights in maps.items()},
            "points": points,
            "explained": explained,
            "heads": heads,
        }
    }


def components(maps: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every head's map (T, T) as a point: the first two principal components of all of them.

    The heads of all models are put into one space, so that models can be compared in it.

    Args:
      maps: model -> (L, N, T, T).

    Returns:
      model -> (L, N, 2), and the shares of the variance that the two have.
    """
    rows = np.concatenate([weights.reshape(-1, weights[0, 0].size) for weights in maps.values()])
    left, strengths, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    points = left[:, :2] * strengths[:2]
    furthest = np.abs(points).argmax(0)
    points *= np.where(points[furthest, range(2)] < 0, -1, 1)  # a sign of its own it has not
    ends = np.cumsum([weights.shape[0] * weights.shape[1] for weights in maps.values()])
    parts = np.split(points, ends[:-1])
    by_model = {
        model: part.reshape(*weights.shape[:2], 2)
        for (model, weights), part in zip(maps.items(), parts, strict=True)
    }
    return by_model, strengths[:2] ** 2 / max((strengths**2).sum(), 1e-30)


def measures(weights: Any, lengths: Any, special: Any) -> dict[str, Any]:
    """How different the maps of one example after another are, and what they look at.

    - spread: |A - mean of all A|² of a query, a mean over queries and heads; at most 2.
    - likeness: the cosine of the received attention of two heads, a mean over pairs of heads.
    - special: the share of all attention that special tokens receive.

    Args:
      weights: (B, L, N, T, T).
      lengths: (B,).
      special: (B, T), 1 where a token is special.
    """
    batch, layers, heads, tokens, _ = weights.shape
    maps = weights.reshape(batch, layers * heads, tokens, tokens)
    real = jnp.arange(tokens)[None] < lengths[:, None]  # (B, T)
    maps = maps * (real[:, None, :, None] & real[:, None, None, :])
    away = jnp.square(maps - maps.mean(1, keepdims=True)).sum((2, 3)).mean(1)
    received = maps.sum(2)  # (B, LN, T)
    unit = received / jnp.maximum(jnp.linalg.norm(received, axis=-1, keepdims=True), 1e-30)
    count = layers * heads
    pairs = (jnp.square(unit.sum(1)).sum(-1) - count) / max(count * (count - 1), 1)
    share = (received * (special * real)[:, None]).sum(-1).mean(1)
    return {"spread": away / lengths, "likeness": pairs, "special": share / lengths}


def table(content: Mapping[str, Any] | None) -> str:
    """The measures of every guide, and whether they differ from those without a guide."""
    heads = ((content or {}).get("guided") or {}).get("heads")
    if not heads:
        return NOT_RUN
    by_seed = {
        method: {name: dict(zip(found["seeds"], found[name], strict=True)) for name in MEASURES}
        for method, found in heads.items()
    }
    header, rows, paired = ["guide", "models"], [], []
    for name in MEASURES.values():
        header += [name, "minus no guide", "p"]
    for method, found in by_seed.items():
        row = [title(method), str(len(heads[method]["seeds"]))]
        for name in MEASURES:
            against = [NOTHING] * 2
            if method != "none" and "none" in by_seed:
                plain = by_seed["none"][name]
                against = tested(found[name], plain, name)[:2]
                paired += [pairs_of(found[name], plain)] * (against[1] != NOTHING)
            row += [mean_and_spread(name, found[name].values()), *against]
        rows.append(row)
    pairs = next(iter(heads.values()))["pairs"]
    note = (
        f"The first {pairs} pairs of the validation set with at most {LONGEST} tokens. Spread: the "
        "squared distance of a query's weights from their mean over heads. Likeness: the cosine of "
        "what two heads have keys receive. Special tokens: the first one and the separators."
    )
    if paired:
        note += (
            f" {len(paired)} paired t-tests, of {counts(paired)} seeds, two-sided; p is not "
            "corrected for their number."
        )
    return "\n\n".join([note, markdown(header, rows)])


class Batch(NamedTuple):
    """Pairs as a model reads them: tokens (B, T), lengths (B,), types (B, T)."""

    tokens: Any
    lengths: Any
    types: Any


class Shown(NamedTuple):
    """One pair: its tokens, a batch of it alone, and the ids of its special tokens."""

    tokens: list[str]
    batch: Batch
    special: np.ndarray


def _encoded(trained: Trained, pair: tuple[str, str]) -> Shown:
    encoding = trained.task.tokenizer.encode(*pair)
    ids, types = (np.asarray(found, np.int32) for found in (encoding.ids, encoding.type_ids))
    special = np.unique(ids[np.asarray(encoding.special_tokens_mask) == 1])
    tokens = [
        token.removeprefix("\u0120") for token in encoding.tokens
    ]  # RoBERTa's mark of a space
    return Shown(tokens, Batch(ids[None], np.asarray([len(ids)], np.int32), types[None]), special)


def _weights(task: Any, params: Any, batch: Batch) -> Any:
    return nnx.merge(graph_of(task), params)(*batch, weights=True).weights


def _member(trained: Trained, member: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[member], trained.params)


def _measured(trained: Trained, run: Run, special: np.ndarray) -> dict[str, Any]:
    """Of every model of the chosen setting, by its seed; nothing, if no pair is short enough."""
    task, config = trained.task, load_config(run.path)
    rows = table_of(config, "validation", tokenizer=task.tokenizer, labels=task.labels)
    batches = list(_batches(rows))
    if not batches:
        return {}

    @jax.jit
    def look(params: Any, batch: Batch) -> dict[str, Any]:
        weights = _weights(task, params, batch)
        return measures(weights, batch.lengths, jnp.isin(batch.tokens, special))

    members = (run.result or {})["members"]
    seeds = [members[i]["seed"] for i in trained.members]
    kept: dict[str, Any] = {"seeds": seeds, "pairs": sum(len(batch.lengths) for batch in batches)}
    for member in trained.members:
        found = [look(_member(trained, member), batch) for batch in batches]
        for name in MEASURES:
            mean = np.concatenate([np.asarray(part[name]) for part in found]).mean()
            kept.setdefault(name, []).append(float(mean))
    return kept


def _batches(table: Any) -> Iterator[Batch]:
    """The first pairs that are short enough, in batches; the last one may be smaller."""
    short = np.flatnonzero(table.lengths(("tokens",)) <= LONGEST)[:PAIRS]
    for start in range(0, len(short), CHUNK):
        columns = table.take(short[start : start + CHUNK], LONGEST)
        yield Batch(columns["tokens"], columns["tokens_length"], columns["types"])
