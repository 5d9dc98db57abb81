"""Inspection of trained models: parameters of heads, attention maps, attention by distance."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float, Int

from distattn_jax.data import UNKNOWN_TOKEN
from distattn_jax.tasks.load import (
    load_config,
    load_parameters,
    load_task,
    portable_config,
    select_model,
)
from distattn_jax.tasks.text_classification import TextClassification
from distattn_jax.tasks.text_task import TextTask
from distattn_jax.train.results import Result, best_member, select_members
from distattn_jax.train.run import AnyPath

CHUNK = 64  # texts whose attention is computed together


class TrainedModels(NamedTuple):
    """All models of a finished run.

    Attributes:
      task: Task of the run.
      params: Best parameters of all models. Each array has a leading axis over models.
      members: Indices of the models with the best hyperparameters, one index for each seed.
      best: Index of the model with the best validation score, one of the indices in `members`.
    """

    task: TextTask
    params: Any
    members: list[int]
    best: int

    @property
    def model(self) -> Any:
        """Model with the index `best`."""
        return select_model(self.task, self.params, self.best)

    @property
    def reads_single_texts(self) -> bool:
        """True if the input of the models is a single text, as in text classification."""
        return isinstance(self.task, TextClassification) and len(self.task.fields) == 1


def load_models(path: AnyPath, result: Result) -> TrainedModels:
    """Load all models of a finished run for inspection.

    The models compute in float32 with the default implementation of attention, which runs on any
    device.

    Args:
      path: Folder of the run.
      result: Result of the run.
    """
    task = load_task(path, portable_config(load_config(path)))
    members = select_members(result)
    return TrainedModels(task, load_parameters(path, task), members, best_member(result, members))


def distance_parameters(params: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the distance weights w and the sigmoid shapes v of all distance-aware heads.

    Args:
      params: Parameters of all models of a run, with a leading axis over models.

    Returns:
      Dict from the name of an encoder to the arrays (w, v). Each array has shape (M, L, N), for M
      models with L layers of N heads. Depending on the task, the names are "text"; "words" and
      "sentences"; "titles" and "user"; or "encoder" and "decoder".
    """
    found = variant_parameters(params)
    return {
        level: (leaves["weight"], leaves["shape"])
        for level, leaves in found.items()
        if "weight" in leaves
    }


def variant_parameters(params: Any) -> dict[str, dict[str, np.ndarray]]:
    """Return the parameters of the attention variants, stacked over layers.

    Args:
      params: Parameters of all models of a run, with a leading axis over models.

    Returns:
      Dict from the name of an encoder or decoder (see `distance_parameters`) to a dict from the
      name of a parameter to an array of shape (M, L, ...), for M models with L layers. Names of
      nested parameters are joined by dots, e.g. "parameters.before.weight".
    """
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for path, leaf in sorted(nnx.traversals.flatten_mapping(params).items(), key=_layer_order):
        if "variant" not in path:
            continue
        end = path.index("variant") + 1
        level = _find_level(path[:end])
        if level is not None:
            name = ".".join(map(str, path[end:]))
            found.setdefault(level, {}).setdefault(name, []).append(np.asarray(leaf))
    return {
        level: {name: np.stack(layers, axis=1) for name, layers in leaves.items()}
        for level, leaves in found.items()
    }


def layer_variants(model: Any) -> dict[str, list[Any]]:
    """Return the attention variants of the layers of a model, for self-attention.

    Args:
      model: Model whose layers have attention with trained parameters.

    Returns:
      Dict from the name of an encoder or decoder (see `distance_parameters`) to the variant of each
      of its layers. It is empty if the model has dot-product attention.
    """
    found: dict[str, list[Any]] = {}
    modules = [(path, module) for path, module in nnx.iter_modules(model) if "layers" in path]
    for path, module in sorted(modules, key=_layer_order):
        level = _find_level(path)
        if level is not None:
            found.setdefault(level, []).append(module())
    return found


class RelationTable(NamedTuple):
    """Norms and similarities of the position vectors of relative position attention (Shaw et al.).

    Each head has one position vector for each relative position. The mean over relative positions
    is subtracted from the vectors first, because adding the same vector to all keys does not change
    the attention weights.

    Attributes:
      positions: Relative positions j - i of query i and key j.
      norms: Norm of the vector of every layer, head and relative position.
      similarities: Cosine similarity of the vectors of every two relative positions, for every
        layer, averaged over heads.
    """

    positions: Int[np.ndarray, " R"]
    norms: Float[np.ndarray, "L N R"]
    similarities: Float[np.ndarray, "L R R"]


def relation_tables(
    params: Any, member: int, *, max_distance: int | None = None
) -> dict[str, dict[str, RelationTable]]:
    """Compare the learned position vectors of relative position attention.

    Args:
      params: Parameters of all models of a run, with a leading axis over models.
      member: Index of the model.
      max_distance: Largest |j - i| to compare; None for all.

    Returns:
      Dict from the name of an encoder or decoder (see `distance_parameters`) to a dict with the
      entries "keys" (for the vectors that are added to keys) and "values" (for the vectors that are
      added to values). Entries and levels without such vectors are missing. A decoder does not
      attend to later tokens, so the relative positions of a decoder end at 0.
    """
    found = {
        level: {
            kind: _compare_vectors(table[member], level == "decoder", max_distance)
            for kind, table in tables.items()
            if kind in ("keys", "values")
        }
        for level, tables in variant_parameters(params).items()
    }
    return {level: tables for level, tables in found.items() if tables}


def _compare_vectors(
    table: Float[np.ndarray, "L N rows H"], causal: bool, max_distance: int | None
) -> RelationTable:
    """Return the norms and similarities of the position vectors in one parameter array.

    Args:
      table: Position vectors. The axis `rows` has the relative positions -k to k.
      causal: True leaves out the positive relative positions.
      max_distance: Largest |j - i| to compare; None for all.
    """
    k = table.shape[2] // 2
    farthest = k if max_distance is None else min(k, max_distance)
    positions = np.arange(-farthest, (0 if causal else farthest) + 1)
    vectors = table[:, :, positions + k].astype(np.float64)
    vectors -= vectors.mean(axis=2, keepdims=True)
    norms = np.linalg.norm(vectors, axis=-1)
    unit = vectors / np.maximum(norms, np.finfo(np.float64).tiny)[..., None]
    similarities = np.einsum("lnrh,lnsh->lrs", unit, unit) / unit.shape[1]
    return RelationTable(positions, norms, similarities)


def _find_level(path: tuple[Any, ...]) -> str | None:
    """Return the name of the encoder or decoder that contains an attention variant.

    Return None if the path is not that of a variant of self-attention.
    """
    match path:
        case (*before, ("encoder" | "decoder") as stack, "layers", _, "attention", "variant"):
            return next((part for part in reversed(before) if part != "sequence"), stack)
    return None


class SentenceAttention(NamedTuple):
    """Attention of a model with L layers of N heads on a sentence of T tokens.

    Attributes:
      tokens: Tokens of the sentence.
      weights: Attention maps, shape (L, N, T, T).
      distance_weight: Distance weight w of each head, shape (L, N). None if the attention variant
        is not `distance_aware`.
    """

    tokens: list[str]
    weights: np.ndarray
    distance_weight: np.ndarray | None = None


def sentence_attention(trained: TrainedModels, sentence: str) -> SentenceAttention:
    """Return the attention of the best model on a sentence.

    A word outside the vocabulary is shown as the unknown token.
    """
    task = trained.task
    encoding = task.tokenizer.encode(sentence)
    if not encoding.ids:
        raise ValueError(f"sentence must hold at least one token; got {sentence!r}.")
    tokens = [
        token if token == UNKNOWN_TOKEN else sentence[start:end].strip()
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True)
    ]
    attend = jax.jit(functools.partial(trained.model, weights=True))
    outputs = attend(jnp.asarray([encoding.ids]), jnp.asarray([len(tokens)]))
    distance_weight = None
    if task.config.method == "distance_aware":
        distance_weight = distance_parameters(trained.params)["text"][0][trained.best]
    return SentenceAttention(tokens, np.asarray(outputs.weights[0]), distance_weight)


class DistanceProfile(NamedTuple):
    """Share of the attention that queries give to keys at each distance.

    The distance between query i and key j is |i - j|. Distances range from 0 to K - 1.

    Attributes:
      heads: Share for each layer and head, averaged over queries and texts, shape (L, N, K).
      uniform: Share if every query attended equally to all keys, shape (K,).
    """

    heads: np.ndarray
    uniform: np.ndarray


def distance_profile(
    trained: TrainedModels, table: Any, *, texts: int, furthest: int
) -> DistanceProfile:
    """Compute how the attention of the best model is distributed over token distances.

    Args:
      trained: Models of a run.
      table: Examples with the column `text`.
      texts: Number of texts to use, from the start of the table.
      furthest: Largest distance in tokens. Texts are truncated to `furthest` + 1 tokens.
    """
    model = trained.model

    @jax.jit
    def sum_by_distance(tokens: Any, lengths: Any) -> tuple[Any, Any]:
        weights = model(tokens, lengths, weights=True).weights  # (B, L, N, T, T)
        position = np.arange(tokens.shape[1])
        distance = np.abs(position[:, None] - position)
        one_hot = (distance[..., None] == np.arange(furthest + 1)).astype(weights.dtype)
        valid = position[None] < lengths[:, None]  # (B, T)
        pairs = valid[:, :, None] & valid[:, None, :]
        uniform = pairs / jnp.maximum(lengths, 1)[:, None, None]
        return (
            jnp.einsum("blnij,ijk->lnk", weights, one_hot),
            jnp.einsum("bij,ijk->k", uniform, one_hot),
        )

    length = int(min(table.lengths(("text",))[:texts].max(), furthest + 1))
    sums = [sum_by_distance(*chunk) for chunk in _chunks(table, texts, length)]
    heads, uniform = (np.asarray(sum(part)) for part in zip(*sums, strict=True))
    queries = uniform.sum()
    return DistanceProfile(heads / queries, uniform / queries)


def _chunks(table: Any, texts: int, length: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the token ids and lengths of the first texts of a table, `CHUNK` texts at a time.

    Each text is padded or truncated to `length` tokens.
    """
    for start in range(0, min(texts, len(table)), CHUNK):
        rows = np.arange(start, min(start + CHUNK, texts, len(table)))
        padded = table.take(np.pad(rows, (0, CHUNK - len(rows)), constant_values=-1), length)
        yield padded["text"], padded["text_length"]


def _layer_order(entry: tuple[tuple[Any, ...], Any]) -> tuple[str, ...]:
    """Return a sort key for a pair (parameter path, value), so that layer 10 is after layer 9."""
    return tuple(f"{name:>9}" if isinstance(name, int) else name for name in entry[0])
