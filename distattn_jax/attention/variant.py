"""What a variant is: the equation of one head, and its arrays as a pytree.

A variant is a small frozen dataclass. Its arrays lead with the head axis, of size N or 1 (1: shared
by all heads), and are ordinary leaves to `jit`, `grad`, `vmap` and `shard_map`; its functions and
numbers are static. Inside the methods below that axis is gone: they see one head of one example,
and the variant's arrays in float32 or wider.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from distattn_jax.tree import frozen_tree as variant  # noqa: F401  the decorator of every variant
from distattn_jax.tree import static  # noqa: F401

Plain = Callable[[Any, Array, Array, Array], tuple[Array, Array]]


class Variant(abc.ABC):
    """One way of turning query, key and value into weights and values, for one head.

    The first three methods are the equation as printed (`reference`): a new variant needs
    `scores`, and nothing else. The next three say the same with fewer bytes (`xla`), for one block
    of consecutive queries; by default they call the first three. A variant that is dot-product
    attention in disguise says so by a method `plain(query, key, offset)` that gives (query', key')
    of width W with scores = query' . key' / sqrt(W): every kernel made for that then serves it.

    `gap[i, j]` is the position of query i minus that of key j; `offset` is `gap[0, 0]`.
    """

    plain: ClassVar[Plain | None] = None

    @abc.abstractmethod
    def scores(
        self, query: Float[Array, "T H"], key: Float[Array, "S H"], gap: Int[Array, "T S"]
    ) -> Float[Array, "T S"]:
        """What the softmax sees, in float32 or wider."""

    def reweigh(self, weights: Float[Array, "T S"], gap: Int[Array, "T S"]) -> Float[Array, "T S"]:
        """What is done to the weights after the softmax; masked keys are put back to 0."""
        return weights

    def mix(
        self, weights: Float[Array, "T S"], value: Float[Array, "S E"], gap: Int[Array, "T S"]
    ) -> Float[Array, "T E"]:
        """The values each query takes home."""
        return weights @ value.astype(weights.dtype)

    def prepare(
        self, query: Float[Array, "T H"], key: Float[Array, "S H"], offset: Int[Array, ""]
    ) -> tuple[Float[Array, "T _"], Any]:
        """What the blocks need, computed once: an array with a row per query, and the rest."""
        return query, key

    def block_scores(
        self,
        query: Float[Array, "T _"],
        prepared: Any,
        offset: Int[Array, ""],
        start: Int[Array, ""],
    ) -> Float[Array, "T S"]:
        """Scores of the block that begins at query `start`; `offset` is that of the block."""
        return self.scores(query, prepared, gaps((query.shape[0], prepared.shape[0]), offset))

    def block_mix(
        self, weights: Float[Array, "T S"], value: Float[Array, "S E"], offset: Int[Array, ""]
    ) -> Float[Array, "T E"]:
        """Values of a block."""
        return self.mix(weights, value, gaps(weights.shape, offset))

    def check(self, heads: int, width: int, value_width: int) -> None:
        """Raises ValueError if the arrays do not fit N heads of width H, values of width E."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(self):
            if leaf.ndim == 0 or leaf.shape[0] not in (1, heads):
                raise ValueError(
                    f"{type(self).__name__}{jax.tree_util.keystr(path)} must lead with the head "
                    f"axis, of size {heads} (the heads of query) or 1 (shared); "
                    f"got shape {leaf.shape}."
                )


def gaps(shape: tuple[int, ...], offset: int | Int[Array, ""]) -> Int[Array, "T S"]:
    """Position of query i minus position of key j, for a map of `shape` (T, S)."""
    queries, keys = shape
    return offset + counted(queries)[:, None] - counted(keys)[None, :]


def counted(length: int) -> Int32[Array, " length"]:
    """Positions 0 .. length - 1; int32 whatever the default integer is."""
    return jnp.arange(length, dtype=jnp.int32)


def wide(dtype: Any) -> Any:
    """The dtype for distances, scores and softmax: float32, or float64 if that is what came."""
    return jnp.promote_types(dtype, jnp.float32)


def product(query: Float[Array, "T W"], key: Float[Array, "S W"]) -> Float[Array, "T S"]:
    """query . key for all pairs, summed in float32 or wider."""
    dtype = wide(jnp.promote_types(query.dtype, key.dtype))
    return jnp.einsum("tw,sw->ts", query, key, preferred_element_type=dtype)
