"""Base class `KernelView`, which translates an attention variant into the inputs of the kernels.

Each variant with kernels has one module in `fused.variants`. The module contains a subclass of
`KernelView`, which `register` adds to the table `KERNEL_VIEWS`. The method `make_form` of the
subclass returns a `KernelForm`: a scoring (the function from products q · k to scores) and the
arrays that the scoring needs.

These arrays depend on the offset: the position of the first query minus the position of the first
key. The offset may be traced, so that `make_form` can be called for any block of keys.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.fused.scoring import Scoring
from distattn_jax.attention.variants import Variant

LENGTH_MULTIPLE = 8  # of the padded queries and keys


class Block(NamedTuple):
    """Unpadded queries, keys and values of one attention call.

    The keys and values may also be one block of consecutive keys of a longer call.

    Attributes:
      query: Queries.
      key: Keys. The number of key heads K is N or a divisor of N.
      value: Values.
      offset: Position of query 0 minus the position of key 0: one number for each example, or one
        number for all examples.
      scale: Factor of the products q · k of queries and keys.
    """

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K E"]
    offset: Int[Array, "#B"]
    scale: float

    @property
    def padded_lengths(self) -> tuple[int, int]:
        """Number of queries and number of keys, rounded up to multiples of `LENGTH_MULTIPLE`."""
        queries, keys = (x.shape[1] + -x.shape[1] % LENGTH_MULTIPLE for x in (self.query, self.key))
        return queries, keys

    @property
    def relative_positions(self) -> Int[Array, " D"]:
        """Integers from -S to T, where S and T are the padded numbers of keys and queries.

        They contain i - j for every query index i and key index j. The relative position of query i
        and key j is i - j + `offset`. The caller adds `offset`, because it may be different for
        each example.
        """
        queries, keys = self.padded_lengths
        return jnp.arange(-keys, queries + 1, dtype=jnp.int32)

    def per_head(self, numbers: tuple[Float[Array, " #N"], ...]) -> Float[Array, "1 N C"]:
        """Stack C arrays with one number per head.

        Args:
          numbers: C arrays of shape (N,), or (1,) if all heads share the number.
        """
        stacked = jnp.stack(jnp.broadcast_arrays(*numbers), axis=-1)
        return jnp.broadcast_to(stacked[None], (1, self.query.shape[2], len(numbers)))


class KernelForm(NamedTuple):
    """Attention variant in the form that the kernels compute: a scoring, and its input arrays.

    The caller pads the arrays and copies them to `Operands`. A relation is a relative position,
    clipped at the distance k: see `relations`.

    Attributes:
      scoring: Function from products q · k to scores.
      query: Queries that are multiplied by keys.
      key: Keys.
      coefficients: C numbers for each head, which the scoring needs. None if it needs none.
      factor_table: Function by which q · k is multiplied: see `Operands.factor_table`.
      bias_table: Function that is added to the score: see `Operands.bias_table`.
      factor_bound: Bound of the factor and of its derivatives: see `Operands.factor_bound`.
      bias_bound: Bound of the bias and of its derivatives: see `Operands.bias_bound`.
      bias_change: Bound of the difference to the farthest bias: see `Operands.bias_change`.
      key_table: Vectors that are added to the keys, one for each relation, or None.
      value_table: Vectors that are added to the values, one for each relation, or None.
      position_query: Queries that are multiplied by position vectors, or None.
      positions: Position vectors, one for each of `Block.relative_positions`, or None.
      tolerance: Largest allowed error of a score. At large distances, kernels replace the distance
        function by a constant if the error of the scores stays below the tolerance. If None, they
        never replace it. With a `bias_bound`, it is the largest sum of the weights of all keys that
        a query skips: see `forgetting`.
      trained_key_width: Number of columns of `key` that need a gradient: the first ones. None means
        that all columns need one.
    """

    scoring: Scoring
    query: Float[Array, "B T N H"]
    key: Float[Array, "B S K H"]
    coefficients: Float[Array, "1 N C"] | None = None
    factor_table: Float[Array, "#B N D"] | None = None
    bias_table: Float[Array, "#B N D"] | None = None
    factor_bound: Float[Array, "#B N D"] | None = None
    bias_bound: Float[Array, "#B N D"] | None = None
    bias_change: Float[Array, "#B N D"] | None = None
    key_table: Float[Array, "#N R H"] | None = None
    value_table: Float[Array, "#N R E"] | None = None
    position_query: Float[Array, "B T N H"] | None = None
    positions: Float[Array, "#B D #N H"] | None = None
    tolerance: float | None = None
    trained_key_width: int | None = None


class KernelView(abc.ABC):
    """Translation of one type of variant into the operands of the kernels."""

    @abc.abstractmethod
    def make_form(self, variant: Any, block: Block) -> KernelForm:
        """Return the scoring of a variant, and the arrays that the scoring needs.

        Args:
          variant: Attention variant.
          block: Unpadded queries, keys and values of the call.
        """

    def unsupported_reason(self, variant: Any, block: Block, chip: str) -> str | None:
        """Return the reason why the kernels cannot compute a variant, or None if they can.

        Args:
          variant: Attention variant.
          block: Arrays of the call. Only their shapes and dtypes may be used.
          chip: "gpu", "small_gpu" or "tpu". A small GPU has 100 KiB of shared memory.
        """
        return None

    def may_be_local(self, variant: Any) -> bool:
        """Return True if the heads may treat all scores beyond some distance as 0.

        The distance must not depend on the number of keys: see `saturation.find_function_radius`.
        """
        return False

    def forgets(self, variant: Any) -> Bool[Array, ""] | None:
        """Return True if the weights of all heads fall with the distance, at all distances.

        Keys beyond the reach of a shard are then left out in all other shards, too: see
        `forgetting`. Return None if no heads of this variant forget.
        """
        return None

    def may_lose_digits(self, variant: Any) -> bool:
        """Return True if scores may be so large that the kernels lose too many digits.

        The kernels are then never chosen by default: the caller of `attention` must request them
        with `implementation="pallas"`.
        """
        return False


KERNEL_VIEWS: dict[type[Variant], KernelView] = {}


def register(variant: type[Variant]) -> Callable[[type[KernelView]], type[KernelView]]:
    """Return a class decorator that registers a `KernelView` for a type of variant.

    A later registration for the same type replaces the earlier one. A view is used for one exact
    type: a subclass of the variant may have other scores, and needs its own view.
    """

    def add(view: type[KernelView]) -> type[KernelView]:
        KERNEL_VIEWS[variant] = view()
        return view

    return add


def broadcast_heads(variant: Any, heads: int) -> Any:
    """Return a copy of a variant in which axis 0 of each array has the size `heads`.

    Axis 0 is the head axis. If all heads share an array, its axis 0 has size 1 and is repeated for
    each head.
    """
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (heads, *leaf.shape[1:])), variant)
