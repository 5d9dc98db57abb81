"""What finished runs have learned: their heads, what these look at, and how far they look."""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx

from distattn_jax.data import UNKNOWN_TOKEN
from distattn_jax.train.classification import TextClassification
from distattn_jax.train.metrics import score
from distattn_jax.train.run import load_best
from distattn_jax.train.state import graph_of
from distattn_jax.train.text_task import TextTask
from experiments.papers.results import Result, select_members

AnyPath = str | Path | epath.Path
CHUNK = 64  # texts whose attention is looked at together


class Trained(NamedTuple):
    """The models of a run.

    Attributes:
      task: makes the model.
      params: the best parameters of all members.
      members: those of the chosen setting.
      best: the one of them with the best validation.
    """

    task: TextTask
    params: Any
    members: list[int]
    best: int

    @property
    def model(self) -> Any:
        """The best one."""
        return nnx.merge(
            graph_of(self.task), jax.tree.map(lambda leaf: leaf[self.best], self.params)
        )

    @property
    def reads_one_text(self) -> bool:
        """Whether a sentence alone is something the models can be shown."""
        return isinstance(self.task, TextClassification)


def load(path: AnyPath, result: Result) -> Trained:
    """The models of a finished run, made so that they show their attention on any device."""
    task, params = load_best(path)
    task.config = dataclasses.replace(task.config, implementation="", dtype="float32")
    members, criterion = select_members(result), result["criterion"]
    scores = [score(criterion, member["validation"][criterion]) for member in result["members"]]
    return Trained(task, params, members, max(members, key=scores.__getitem__))


def heads_of(params: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """w and v of distance-aware heads, each (members, L, N), by the level they attend on.

    A level is what the model calls the encoder: "text", or "words" and "sentences", or "titles"
    and "user".
    """
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for path, leaf in sorted(nnx.traversals.flatten_mapping(params).items(), key=_by_layer):
        match path:
            case (*before, "encoder", "layers", _, "attention", "variant", "weight" | "shape"):
                level = [name for name in before if name != "sequence"][-1]
                found.setdefault(level, {}).setdefault(path[-1], []).append(np.asarray(leaf))
    return {
        level: (np.stack(leaves["weight"], axis=1), np.stack(leaves["shape"], axis=1))
        for level, leaves in found.items()
    }


class Seen(NamedTuple):
    """What the heads of a model do with a sentence.

    Attributes:
      tokens: T of them.
      weights: (L, N, T, T).
      distance_weight: w (L, N) of distance-aware heads, or None.
    """

    tokens: list[str]
    weights: np.ndarray
    distance_weight: np.ndarray | None = None


def attention_of(trained: Trained, sentence: str) -> Seen:
    """What the best member does with a sentence; a word it does not know is named as such."""
    task = trained.task
    encoding = task.tokenizer.encode(sentence)
    if not encoding.ids:
        raise ValueError(f"sentence must hold at least one token; got {sentence!r}.")
    tokens = [
        token if token == UNKNOWN_TOKEN else sentence[start:end].strip()
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
    ]
    look = jax.jit(functools.partial(trained.model, weights=True))
    said = look(jnp.asarray([encoding.ids]), jnp.asarray([len(tokens)]))
    distance_weight = None
    if task.method == "distance_aware":
        distance_weight = heads_of(trained.params)["text"][0][trained.best]
    return Seen(tokens, np.asarray(said.weights[0]), distance_weight)


class Profile(NamedTuple):
    """The share of attention that falls at each distance |i - j|, from 0 to K - 1.

    Attributes:
      heads: (L, N, K), means over the queries of many texts.
      uniform: (K,), the same if all words of a text were attended to alike.
    """

    heads: np.ndarray
    uniform: np.ndarray


def distances_of(trained: Trained, table: Any, *, texts: int, furthest: int) -> Profile:
    """How far the best member looks, in the first texts of a table."""
    model = trained.model

    @jax.jit
    def shares(tokens: Any, lengths: Any) -> tuple[Any, Any]:
        weights = model(tokens, lengths, weights=True).weights  # (B, L, N, T, T)
        place = np.arange(tokens.shape[1])
        at = np.abs(place[:, None] - place)[..., None] == np.arange(furthest + 1)  # (T, T, K)
        real = place[None] < lengths[:, None]  # (B, T)
        pairs = real[:, :, None] & real[:, None, :]
        alike = pairs / jnp.maximum(lengths, 1)[:, None, None]
        at = at.astype(weights.dtype)
        return jnp.einsum("blnij,ijk->lnk", weights, at), jnp.einsum("bij,ijk->k", alike, at)

    length = int(min(table.lengths(("text",))[:texts].max(), furthest + 1))
    totals = [shares(*part) for part in _chunks(table, texts, length)]
    heads, uniform = (np.asarray(sum(part)) for part in zip(*totals, strict=True))
    queries = uniform.sum()
    return Profile(heads / queries, uniform / queries)


def _chunks(table: Any, texts: int, length: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, min(texts, len(table)), CHUNK):
        rows = np.arange(start, min(start + CHUNK, texts, len(table)))
        padded = table.take(np.pad(rows, (0, CHUNK - len(rows)), constant_values=-1), length)
        yield padded["text"], padded["text_length"]


def _by_layer(entry: tuple[tuple[Any, ...], Any]) -> tuple[str, ...]:
    """Sorts the paths of parameters as layers come, the tenth after the ninth."""
    return tuple(f"{name:>9}" if isinstance(name, int) else name for name in entry[0])
