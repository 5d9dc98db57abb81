"""Losses of predicted tokens, from the features of a language model and its embedding table.

z[v] = features · table[v]                                              logits of one token
loss = logsumexp(z) - (1 - smoothing) z[label] - smoothing mean(z)      label smoothing, eq. 1

Eq. 1 is the cross-entropy with a label that has the probability 1 - smoothing + smoothing / V, and
smoothing / V for all other tokens of the vocabulary (Szegedy et al. 2016).

The logits of all tokens, shape (B, T, V), are the largest array of a language model. If they need
more than `LARGEST_LOGITS` bytes, `score_tokens` computes them in chunks along T, one after another.
The backward pass computes the logits of each chunk again: a training step has four products with
the table instead of three. Its memory is that of the logits of one chunk and of their gradient.
Both limits are those of one model: M models side by side under `vmap` need M times the memory.

If the tokens of a text are sharded over devices, along the mesh axis `sequence`, each device splits
its own tokens into chunks, and the gradients of the table are summed over devices after the last
chunk. The limits are then those of one device.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jaxtyping import Array, Bool, Float, Int

LARGEST_LOGITS = 256 * 2**20  # bytes of float32 logits that may be computed at once
# Bytes of the logits of a chunk, if all logits together are larger. Many logits have larger chunks,
# at most `MOST_CHUNKS`, unless a chunk would be larger than `LARGEST_LOGITS`: on a GPU, a step on a
# million tokens is then 9 % faster.
CHUNK_LOGITS, MOST_CHUNKS = 64 * 2**20, 32


class TokenScores(NamedTuple):
    """Scores of every predicted token.

    Attributes:
      cross_entropy: logsumexp(z) - z[label].
      uniform: logsumexp(z) - mean(z), the cross-entropy with a uniform distribution.
      right: True if the label is the most probable token.
    """

    cross_entropy: Float[Array, "B T"]
    uniform: Float[Array, "B T"]
    right: Bool[Array, "B T"]

    def loss(self, smoothing: float = 0.0) -> Float[Array, "B T"]:
        """Return the loss of every token, eq. 1.

        Args:
          smoothing: Probability that is moved from the label to a uniform distribution over the
            vocabulary.
        """
        if not smoothing:
            return self.cross_entropy
        return (1 - smoothing) * self.cross_entropy + smoothing * self.uniform


def token_logits(
    features: Float[Array, "*M B T D"], table: Float[Array, "*M V D"]
) -> Float[Array, "*M B T V"]:
    """Return the dot products of every feature vector with all V embeddings, in float32.

    The table is rounded to the dtype of the features. The leading axes M are those of `vmap`.
    """
    return jnp.einsum(
        "...btd,...vd->...btv",
        features,
        table.astype(features.dtype),
        preferred_element_type=jnp.float32,
    )


def score_tokens(
    features: Float[Array, "B T D"], table: Float[Array, "V D"], labels: Int[Array, "B T"]
) -> TokenScores:
    """Return the scores of every token, in chunks if all logits are above `LARGEST_LOGITS`.

    The gradient of the table is the sum over all chunks, in float32.

    Args:
      features: Features that predict each token.
      table: Embeddings of the vocabulary.
      labels: Index of the correct token.
    """
    shards = _find_shards(features)
    batch, length = (
        size // shards.count(axes) for size, axes in zip(labels.shape, shards.axes, strict=True)
    )
    position_bytes = 4 * batch * len(table)
    if length * position_bytes <= LARGEST_LOGITS:
        return score_logits(token_logits(features, table), labels)
    chunk_bytes = max(CHUNK_LOGITS, min(LARGEST_LOGITS, length * position_bytes // MOST_CHUNKS))
    chunks = math.ceil(length / max(1, chunk_bytes // position_bytes))
    return TokenScores(*_score_chunks(features, table, labels, chunks, shards))


def score_logits(logits: Float[Array, "B T V"], labels: Int[Array, "B T"]) -> TokenScores:
    """Return the scores of every token, from its logits.

    The backward pass recomputes the softmax from the logits. The only new array of shape (B, T, V)
    in memory is the gradient of the logits.

    Args:
      logits: Logits of every token, z in eq. 1.
      labels: Index of the correct token.
    """
    return TokenScores(*_cross_entropies(logits, labels), _is_best(logits, labels))


@jax.custom_vjp
def _cross_entropies(logits: Array, labels: Array) -> tuple[Array, Array]:
    return _forward_cross_entropies(logits, labels)[0]


def _forward_cross_entropies(logits: Array, labels: Array) -> tuple[tuple[Array, Array], Any]:
    """Return `cross_entropy` and `uniform` of each token, and the residuals."""
    normalizer = jax.nn.logsumexp(logits, axis=-1)
    # A sum over a mask, unlike a gather, reads the logits in the same pass as the other sums.
    of_label = jnp.where(_label_mask(logits, labels), logits, 0).sum(axis=-1)
    scores = normalizer - of_label, normalizer - logits.mean(axis=-1)
    return scores, (logits, labels, normalizer)


def _backward_cross_entropies(residuals: Any, cotangents: Any) -> tuple[Array, None]:
    """Return the gradient of the logits: softmax(z) minus the target distribution."""
    logits, labels, normalizer = residuals
    of_label, of_uniform = (cotangent[..., None] for cotangent in cotangents)
    probabilities = jnp.exp(logits - normalizer[..., None])
    target = jnp.where(_label_mask(logits, labels), of_label, 0) + of_uniform / logits.shape[-1]
    return ((of_label + of_uniform) * probabilities - target).astype(logits.dtype), None


_cross_entropies.defvjp(_forward_cross_entropies, _backward_cross_entropies)


def _label_mask(logits: Array, labels: Array) -> Array:
    """Return a mask (B, T, V) that is True at the labels."""
    return jax.lax.broadcasted_iota(labels.dtype, logits.shape, 2) == labels[..., None]


def _is_best(logits: Array, labels: Array) -> Array:
    return logits.argmax(axis=-1) == labels


class _Shards(NamedTuple):
    """Mesh axes that shard the tokens of texts.

    Attributes:
      mesh: Mesh of the features.
      axes: Mesh axes of the examples, and mesh axes of the tokens. Both are empty if the tokens of
        a text are not sharded: the compiler then divides the examples between the devices.
    """

    mesh: AbstractMesh
    axes: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def count(self, axes: tuple[str, ...]) -> int:
        """Return the number of devices along mesh axes."""
        return math.prod(self.mesh.shape[name] for name in axes)

    def run(self, function: Any, tokens: Any, table: Array, *, sums_last: bool = False) -> Any:
        """Call a function of arrays (B, T, ...) and of the table, on each device with its tokens.

        Args:
          function: Function that returns a tuple of arrays (B, T, ...).
          tokens: Arrays (B, T, ...).
          table: Embeddings of the vocabulary, which every device has.
          sums_last: If True, the last result has the shape of the table, and is a sum over the
            tokens: the results of all devices are added.
        """
        if not self.axes[1]:
            return function(tokens, table)

        def run_shard(tokens: Any, table: Array) -> Any:
            results = function(tokens, table)
            if not sums_last:
                return results
            return *results[:-1], jax.lax.psum(results[-1], self.axes[0] + self.axes[1])

        place = jax.P(*self.axes)
        return jax.shard_map(
            run_shard,
            mesh=self.mesh,
            in_specs=(place, jax.P()),
            out_specs=(place, jax.P()) if sums_last else place,
            check_vma=False,
        )(tokens, table)


def _find_shards(features: Array) -> _Shards:
    """Return the mesh axes that shard the examples and tokens of features, if tokens are sharded.

    With Explicit axes, the sharding of the features names the axes. With Auto axes, the axis
    `sequence` shards the tokens, and the axis `data` the examples.
    """
    mesh, spec = jax.typeof(features).sharding.mesh, jax.typeof(features).sharding.spec
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    axes: list[tuple[str, ...]] = []
    for name, size, found in zip(("data", "sequence"), features.shape, spec, strict=False):
        if found is not None:
            axes.append((found,) if isinstance(found, str) else tuple(found))
        else:
            is_auto = types.get(name) == AxisType.Auto and size % mesh.shape[name] == 0
            axes.append((name,) if is_auto else ())
    shards = _Shards(mesh, (axes[0], axes[1]))
    return shards if shards.count(axes[1]) > 1 else _Shards(mesh)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _score_chunks(
    features: Array, table: Array, labels: Array, chunks: int, shards: _Shards
) -> Any:
    return _forward_chunks(features, table, labels, chunks, shards)[0]


def _forward_chunks(
    features: Array, table: Array, labels: Array, chunks: int, shards: _Shards
) -> tuple[Any, Any]:
    """Return the fields of `TokenScores`, and the residuals, which include no logits."""

    def score(tokens: tuple[Array, Array], table: Array) -> tuple[Array, ...]:
        def score_chunk(chunk: tuple[Array, Array]) -> tuple[Array, ...]:
            features, labels = chunk
            logits = token_logits(features, table)
            scores, (_, _, normalizer) = _forward_cross_entropies(logits, labels)
            return *scores, _is_best(logits, labels), normalizer

        return _join(jax.lax.map(score_chunk, _split(tokens, chunks)), tokens[1].shape[1])

    *scores, normalizer = shards.run(score, (features, labels), table)
    return tuple(scores), (features, table, labels, normalizer)


def _backward_chunks(
    chunks: int, shards: _Shards, residuals: Any, cotangents: Any
) -> tuple[Array, Array, None]:
    """Return the gradients of features and table. Each chunk computes its logits again."""
    features, table, labels, normalizer = residuals

    def add_chunk(table: Array, total: Array, chunk: Any) -> tuple[Array, Array]:
        features, labels, normalizer, cotangents = chunk
        logits = token_logits(features, table)
        gradient, _ = _backward_cross_entropies((logits, labels, normalizer), cotangents)
        # Each token has its own gradient of the features, of the dtype of the features. The table
        # has one gradient, a sum over all tokens: its terms are not rounded to 16 bits.
        of_features = jnp.einsum(
            "btv,vd->btd",
            gradient.astype(features.dtype),
            table.astype(features.dtype),
            preferred_element_type=jnp.float32,
        )
        product = functools.partial(token_logits, features.astype(jnp.float32))
        (of_table,) = jax.linear_transpose(product, total)(gradient)
        return total + of_table, of_features.astype(features.dtype)

    def differentiate(tokens: Any, table: Array) -> tuple[Array, Array]:
        total, of_features = jax.lax.scan(
            functools.partial(add_chunk, table),
            jnp.zeros_like(table, jnp.float32),
            _split(tokens, chunks),
        )
        return _join(of_features, tokens[0].shape[1]), total

    tokens = features, labels, normalizer, tuple(cotangents[:2])
    of_features, total = shards.run(differentiate, tokens, table, sums_last=True)
    return of_features, total.astype(table.dtype), None


_score_chunks.defvjp(_forward_chunks, _backward_chunks)


def _split(tree: Any, chunks: int) -> Any:
    """Split arrays (B, T, ...) along T into a stack (chunks, B, T / chunks, ...), padded with 0.

    A batch that is sharded over devices stays sharded: every device splits its own examples.
    """

    def split(x: Array) -> Array:
        size = math.ceil(x.shape[1] / chunks)
        padding = [(0, 0), (0, chunks * size - x.shape[1])] + [(0, 0)] * (x.ndim - 2)
        x = jnp.pad(x, padding).reshape(x.shape[0], chunks, size, *x.shape[2:])
        return jnp.moveaxis(x, 1, 0)

    return jax.tree.map(split, tree)


def _join(tree: Any, length: int) -> Any:
    """Join the chunks of arrays (chunks, B, T / chunks, ...) to (B, T, ...), without the padding.

    Args:
      tree: Stacks of chunks.
      length: Length T.
    """

    def join(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, 1)
        return x.reshape(x.shape[0], -1, *x.shape[3:])[:, :length]

    return jax.tree.map(join, tree)
