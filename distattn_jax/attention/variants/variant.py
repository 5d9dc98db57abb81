"""Base class of the attention variants.

A variant is a small frozen dataclass and a pytree. Its arrays are the leaves of the pytree, and its
functions and Python numbers are static. The first axis of every array is the head axis, which has
size N, or size 1 if all heads share the array.

The methods from `scores` to `block_weighted_values` compute one head of one example. When they are
called, the arrays of the variant have no head axis and are float32 or wider.
"""

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Int

from distattn_jax.tree import frozen_tree as variant  # noqa: F401  decorator of every variant
from distattn_jax.tree import static  # noqa: F401

AsDotProduct = Callable[[Any, Array, Array, Array], tuple[Array, Array]]


class Variant(abc.ABC):
    """Base class of attention variants. Its methods compute one head of one example.

    A new variant must define `scores`. It may also define `adjust_weights` and `weighted_values`,
    which compute the two steps after the softmax. These three methods compute all queries at once.

    `prepare`, `block_scores` and `block_weighted_values` compute the same outputs for a block of
    consecutive queries. By default they call the three methods above. A variant may define them to
    save memory.

    `relative_positions[i, j]` is the position of query i minus the position of key j. `offset` is
    `relative_positions[0, 0]`. `scale` is the argument of `attention`, or `default_scale(H)`.

    Attributes:
      as_dot_product: Method with the arguments (query, key, offset). It returns a new query and a
        new key, of any width, such that scores = scale * query @ key.T. Kernels for dot-product
        attention can then compute the variant. None if the variant cannot be written in this way.
      appends_constants: True if `as_dot_product` returns the given key with constant columns
        appended, which need no gradient.
      uses_positions: True if the scores depend on the positions of queries and keys.
      adds_bias: True if the scores are dot products plus a bias that all examples share.
    """

    as_dot_product: ClassVar[AsDotProduct | None] = None
    appends_constants: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = True
    adds_bias: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any):
        super().__init_subclass__(**arguments)
        # A subclass with other scores must say again how it is written as a dot product.
        if "scores" in vars(cls) and "as_dot_product" not in vars(cls):
            cls.as_dot_product = None

    def default_scale(self, width: int) -> float:
        """Return the factor for the dot products of queries and keys of this width, 1/√width."""
        return 1 / math.sqrt(width)

    @abc.abstractmethod
    def scores(
        self,
        query: Float[Array, "T H"],
        key: Float[Array, "S H"],
        relative_positions: Int[Array, "T S"],
        scale: float,
    ) -> Float[Array, "T S"]:
        """Return the logits of the softmax for every pair of query and key, in float32 or wider.

        Args:
          query: Queries.
          key: Keys.
          relative_positions: Position of query i minus the position of key j.
          scale: Factor that multiplies the dot products of queries and keys.
        """

    def adjust_weights(
        self, weights: Float[Array, "T S"], relative_positions: Int[Array, "T S"]
    ) -> Float[Array, "T S"]:
        """Return the attention weights, given the softmax of the scores.

        By default, both are the same. The caller sets the weights of masked keys to 0 afterwards.

        Args:
          weights: Softmax of the scores.
          relative_positions: Position of query i minus the position of key j.
        """
        return weights

    def weighted_values(
        self,
        weights: Float[Array, "T S"],
        value: Float[Array, "S E"],
        relative_positions: Int[Array, "T S"],
    ) -> Float[Array, "T E"]:
        """Return the weighted sum of values for each query.

        Args:
          weights: Attention weights after dropout.
          value: Values.
          relative_positions: Position of query i minus the position of key j.
        """
        return weigh(weights, value)

    def prepare(
        self, query: Float[Array, "T H"], key: Float[Array, "S H"], offset: Int[Array, ""]
    ) -> tuple[Float[Array, "T _"], Any]:
        """Compute the inputs of `block_scores`, once for all blocks of queries.

        Args:
          query: Queries of all blocks.
          key: Keys.
          offset: Position of the first query minus the position of the first key.

        Returns:
          Array with one row per query, and a pytree. `block_scores` receives the rows of its block
          and the whole pytree.
        """
        return query, key

    def block_scores(
        self,
        query: Float[Array, "T _"],
        prepared: Any,
        offset: Int[Array, ""],
        start: Int[Array, ""],
        scale: float,
    ) -> Float[Array, "T S"]:
        """Return the scores of a block of consecutive queries.

        Args:
          query: Rows of the block in the first output of `prepare`.
          prepared: Second output of `prepare`.
          offset: Position of the first query of the block minus the position of the first key.
          start: Index of the first query of the block.
          scale: Factor that multiplies the dot products of queries and keys.
        """
        shape = (query.shape[0], prepared.shape[0])
        return self.scores(query, prepared, compute_relative_positions(shape, offset), scale)

    def block_weighted_values(
        self, weights: Float[Array, "T S"], value: Float[Array, "S E"], offset: Int[Array, ""]
    ) -> Float[Array, "T E"]:
        """Return the weighted sum of values for each query of a block.

        Args:
          weights: Attention weights of the block after dropout.
          value: Values.
          offset: Position of the first query of the block minus the position of the first key.
        """
        return self.weighted_values(
            weights, value, compute_relative_positions(weights.shape, offset)
        )

    @property
    def adjusts_weights(self) -> bool:
        """True if `adjust_weights` changes the weights, so that they need not sum to 1."""
        return type(self).adjust_weights is not Variant.adjust_weights

    def with_plain_values(self) -> "Variant":
        """Return a variant with the same weights whose outputs are sums of the values alone.

        A variant that adds something else to the values must define this method. It is needed for
        the attention that keys receive if the sequence is sharded over devices.
        """
        methods = ("weighted_values", "block_weighted_values")
        if any(getattr(type(self), name) is not getattr(Variant, name) for name in methods):
            raise NotImplementedError(
                f"{type(self).__name__} must define with_plain_values, because it defines "
                "weighted_values, and received=True of a sharded sequence needs it."
            )
        return self

    def check(self, heads: int, width: int, value_width: int) -> None:
        """Raise ValueError if the shapes of the variant's arrays do not fit the attention call.

        Args:
          heads: Number of heads of the query.
          width: Width of a head of the query and key.
          value_width: Width of a head of the value.
        """
        for path, leaf in jax.tree_util.tree_leaves_with_path(self):
            shape = getattr(leaf, "shape", None)
            if not shape or shape[0] not in (1, heads):
                raise ValueError(
                    f"{type(self).__name__}{jax.tree_util.keystr(path)} must be an array that "
                    f"leads with the head axis, of size {heads} (the heads of query) or 1 (shared "
                    f"by all heads); got {repr(leaf) if shape is None else f'shape {shape}'}."
                )
            check_real(f"{type(self).__name__}{jax.tree_util.keystr(path)}", leaf)


def check_one_number_per_head(name: str, array: Any, heads: int, role: str = "") -> None:
    """Raise ValueError unless an array has one number per head, or one number for all heads.

    Args:
      name: Name of the attribute, for the error message, such as "DistanceAware.weight".
      array: Value of the attribute.
      heads: Number of heads of the query.
      role: Meaning of the numbers, for the error message.
    """
    if getattr(array, "shape", None) not in ((heads,), (1,)):
        got = f"shape {array.shape}" if hasattr(array, "shape") else repr(array)
        raise ValueError(
            f"{name} must be an array of shape ({heads},), one number per head, or (1,){role}; "
            f"got {got}."
        )
    check_real(name, array)


def check_tolerance(tolerance: Any) -> None:
    """Raise ValueError unless `tolerance` is None or a number of at least 0."""
    is_number = isinstance(tolerance, int | float | np.integer | np.floating)
    if tolerance is not None and not (is_number and tolerance >= 0):
        raise ValueError(f"tolerance must be None or at least 0; got {tolerance}.")


def check_real(name: str, array: Any) -> None:
    """Raise ValueError unless an array consists of real numbers, or of booleans."""
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):
        raise ValueError(f"{name} must be an array of real numbers; got dtype {array.dtype}.")


def compute_relative_positions(
    shape: tuple[int, ...], offset: int | Int[Array, ""]
) -> Int[Array, "T S"]:
    """Return the (T, S) array of the position of query i minus the position of key j.

    Args:
      shape: Number of queries and number of keys, (T, S).
      offset: Position of query 0 minus the position of key 0.
    """
    queries, keys = (jnp.arange(size, dtype=jnp.int32) for size in shape)
    return offset + queries[:, None] - keys[None, :]


def promote(dtype: Any) -> Any:
    """Return float64 for float64, and float32 for narrower dtypes such as bfloat16."""
    return jnp.promote_types(dtype, jnp.float32)


def product(query: Float[Array, "T W"], key: Float[Array, "S W"]) -> Float[Array, "T S"]:
    """Return the dot product of every query with every key, summed in float32 or wider.

    If both are bfloat16, the gradient of the products is rounded to bfloat16.
    """
    dtype = jnp.promote_types(query.dtype, key.dtype)
    products = jnp.einsum("tw,sw->ts", query, key, preferred_element_type=promote(dtype))
    return round_gradient(products, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def round_gradient(products: Float[Array, "T S"], dtype: Any) -> Float[Array, "T S"]:
    """Return the products unchanged. If `dtype` is bfloat16, their gradient is rounded to bfloat16.

    The backward pass multiplies this gradient by the keys and by the queries, and then reads half
    as many bytes. The fused kernels round the gradient too. Float16 gradients could underflow, and
    are not rounded. Tangents of forward-mode derivatives are rounded like gradients.

    Args:
      products: Products of queries and keys, in float32 or wider.
      dtype: Dtype of the queries and keys.
    """
    return products


@round_gradient.defjvp
def _round_gradient_jvp(dtype, primals, tangents):
    """Return the products and their rounded tangents. JAX transposes this to round gradients."""
    (products,), (tangent,) = primals, tangents
    return products, store_as(tangent, dtype) if dtype == jnp.bfloat16 else tangent


def store_as(array: Float[Array, "*shape"], dtype: Any) -> Float[Array, "*shape"]:
    """Return the array, rounded to a dtype and stored in this dtype.

    A barrier keeps the compiler from computing the array again where it is read.
    """
    return jax.lax.optimization_barrier(array.astype(dtype)).astype(array.dtype)


def weigh(
    weights: Float[Array, "T S"], value: Float[Array, "S E"], *, join_gradients: bool = False
) -> Float[Array, "T E"]:
    """Return the weighted sum of values for each query, in the dtype of the weights.

    If the values have 16 bits, the weights are rounded to their dtype before the product, as in the
    fused kernels, because matrix units do this several times as fast. The result then has this
    dtype too, so that the products of the backward pass have operands of 16 bits.

    Args:
      weights: Attention weights after dropout.
      value: Values.
      join_gradients: If True, both gradients are computed before the backward pass continues. XLA
        may then need less memory, or more: it chooses another order of the same operations.
    """
    dtype = weights.dtype if value.dtype.itemsize > 2 else value.dtype
    operands = weights.astype(dtype), value.astype(dtype)
    return jnp.einsum("ts,se->te", *(_join_gradients(*operands) if join_gradients else operands))


@jax.custom_jvp
def _join_gradients(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays. The backward pass continues when the gradients of all are computed."""
    return arrays


def _join_gradients_jvp(primals, tangents):
    # JAX cannot transpose a barrier on a tangent that is always 0.
    if any(isinstance(tangent, SymbolicZero) for tangent in tangents):
        return primals, tangents
    return primals, jax.lax.optimization_barrier(tangents)


_join_gradients.defjvp(_join_gradients_jvp, symbolic_zeros=True)
