"""Public function `attention`, which validates its arguments and calls an implementation."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention.arguments import Attended, AttentionCall, Options
from distattn_jax.attention.dropout import is_off, make_words
from distattn_jax.attention.implementations import compute
from distattn_jax.attention.variants import Variant, promote


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S N H"],
    value: Float[Array, "B S N E"],
    variant: Variant,
    *,
    mask: Bool[Array, "#B #N #T #S"] | None = None,
    query_lengths: Int[Array, " B"] | None = None,
    key_lengths: Int[Array, " B"] | None = None,
    is_causal: bool = False,
    query_offset: int | Int[Array, ""] | Int[Array, " B"] = 0,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
    received: bool = False,
    weights: bool = False,
    implementation: str | None = None,
) -> Attended:
    """Compute attention of any variant, for all heads of a batch.

    A query beyond `query_lengths`, or without a visible key, has output 0 and gradient 0, and adds
    nothing to `received`. Scores and softmax are float32, or float64 if the query is float64.

    Args:
      query: Queries, shape (B, T, N, H).
      key: Keys, shape (B, S, N, H).
      value: Values, shape (B, S, N, E). E may differ from H.
      variant: Attention variant, such as `DotProduct()` or `DistanceAware(...)`.
      mask: True where a query may attend to a key. It is broadcast against (B, N, T, S), but never
        expanded to that shape in memory. None masks no entry.
      query_lengths: Number of queries of each example. Later queries are padding.
      key_lengths: Number of keys of each example. Later keys are padding, and are masked.
      is_causal: If True, key j is visible to query i only if j <= i + query_offset.
      query_offset: Position of the first query minus the position of the first key, for example the
        number of cached keys. It is one integer for all examples, or an array with one integer per
        example. It may be traced.
      dropout_rate: Probability of dropping a weight, at least 0 and below 1. It may be traced.
      dropout_key: PRNG key for dropout, required unless `dropout_rate` is 0. Every implementation
        drops the same entries for the same key.
      received: If True, return the attention that each key receives, summed over the queries.
      weights: If True, return the attention weights.
      implementation: "reference", "xla", "cudnn" or "pallas". None selects the first of "pallas",
        "cudnn" and "xla" that supports the device, dtype and outputs. Only "xla" and "reference"
        have forward-mode and second derivatives.

    Returns:
      Weighted sums of values (B, T, N, E), received attention (B, N, S) or None, and attention
      weights (B, N, T, S) or None. Dropout affects the first output only.
    """
    _check_arrays(query, key, value)
    batch, queries, heads, width = query.shape
    keys, value_width = value.shape[1], value.shape[3]
    if not isinstance(variant, Variant):
        raise TypeError(f"variant must be a Variant such as DotProduct(); got {variant!r}.")
    variant.check(heads, width, value_width)
    dtype = promote(query.dtype)
    has_dropout = not is_off(dropout_rate)
    call = AttentionCall(
        query=jnp.asarray(query),
        key=jnp.asarray(key),
        value=jnp.asarray(value),
        variant=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), variant),
        mask=_validate_mask(mask, (batch, heads, queries, keys)),
        query_lengths=_validate_lengths("query_lengths", query_lengths, batch),
        key_lengths=_validate_lengths("key_lengths", key_lengths, batch),
        offset=_validate_offset(query_offset, batch),
        dropout_rate=jnp.asarray(dropout_rate, jnp.float32) if has_dropout else None,
        dropout_words=_make_dropout_words(dropout_rate, dropout_key) if has_dropout else None,
        options=Options(
            is_causal=bool(is_causal),
            aligned=isinstance(query_offset, int) and query_offset == 0,
            received=bool(received),
            weights=bool(weights),
        ),
    )
    return compute(call, implementation)


def _check_arrays(query: Array, key: Array, value: Array) -> None:
    """Raise ValueError unless query, key and value are float arrays with matching shapes."""
    for name, array in (("query", query), ("key", key), ("value", value)):
        if getattr(array, "ndim", None) != 4:
            raise ValueError(
                f"{name} must be an array of shape (batch, length, heads, width); "
                f"got {getattr(array, 'shape', type(array).__name__)}."
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name} must be floating point; got dtype {array.dtype}.")
        if 0 in array.shape:
            raise ValueError(f"{name} must not be empty; got shape {array.shape}.")
    batch, _, heads, width = query.shape
    if (key.shape[0], *key.shape[2:]) != (batch, heads, width):
        raise ValueError(
            f"key must have the batch, heads and width of query, ({batch}, S, {heads}, {width}); "
            f"got {key.shape}."
        )
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"value must have the batch, length and heads of key, {(*key.shape[:3], 'E')}; "
            f"got {value.shape}."
        )


def _make_dropout_words(rate: float | Array, key: Array | None) -> Array:
    """Validate the dropout rate and key, and return the random words that seed the dropout hash."""
    if key is None:
        raise ValueError(
            f"dropout_key must be given with dropout_rate={rate}; got None. Pass a PRNG key."
        )
    if jnp.ndim(rate) != 0:
        raise ValueError(f"dropout_rate must be one number; got shape {jnp.shape(rate)}.")
    if not isinstance(rate, jax.core.Tracer) and not 0 <= rate < 1:
        raise ValueError(f"dropout_rate must be at least 0 and below 1; got {rate}.")
    return make_words(key)


def _validate_mask(mask: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Validate a mask and add leading axes of size 1 until it has four axes.

    Args:
      mask: Boolean array broadcastable to `shape`, or None.
      shape: Shape of the attention weights, (B, N, T, S).
    """
    if mask is None:
        return None
    if getattr(mask, "dtype", None) != jnp.bool_:
        raise ValueError(
            "mask must be a boolean array, True where a query may attend; "
            f"got {getattr(mask, 'dtype', type(mask).__name__)}."
        )
    fits = mask.ndim <= 4 and all(
        size in (1, wanted) for size, wanted in zip(mask.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"mask must be broadcastable to (batch, heads, queries, keys) = {shape}; "
            f"got {mask.shape}."
        )
    return jnp.asarray(mask).reshape((1,) * (4 - mask.ndim) + mask.shape)


def _validate_lengths(name: str, lengths: Array | None, batch: int) -> Array | None:
    """Validate sequence lengths and convert them to int32.

    Args:
      name: Name of the argument, for the error message.
      lengths: One integer per example, or None.
      batch: Number of examples.
    """
    if lengths is None:
        return None
    if jnp.shape(lengths) != (batch,) or not jnp.issubdtype(jnp.result_type(lengths), jnp.integer):
        raise ValueError(
            f"{name} must be one integer per example, shape ({batch},); "
            f"got shape {jnp.shape(lengths)}, dtype {jnp.result_type(lengths)}."
        )
    return jnp.asarray(lengths, jnp.int32)


def _validate_offset(offset: ArrayLike, batch: int) -> Array:
    """Validate a query offset and convert it to an int32 array of shape (1,) or (batch,)."""
    shape = jnp.shape(offset)
    if shape not in ((), (1,), (batch,)) or not jnp.issubdtype(
        jnp.result_type(offset), jnp.integer
    ):
        raise ValueError(
            f"query_offset must be an integer, or one per example, shape ({batch},); "
            f"got shape {shape}, dtype {jnp.result_type(offset)}."
        )
    return jnp.atleast_1d(jnp.asarray(offset, jnp.int32))
