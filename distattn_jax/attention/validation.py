"""Validation of the arguments of `attention`. Every error names the argument."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from distattn_jax.attention.dropout import is_real
from distattn_jax.attention.variants import Variant

LARGEST_INT32 = 2**31 - 1


def check_arrays(query: Any, key: Any, value: Any) -> None:
    """Raise ValueError unless query, key and value are float arrays with matching shapes."""
    for name, array in (("query", query), ("key", key), ("value", value)):
        if getattr(array, "ndim", None) != 4:
            raise ValueError(
                f"{name} must be an array of shape (batch, length, heads, width); "
                f"got {getattr(array, 'shape', type(array).__name__)}."
            )
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name} must be floating point; got dtype {array.dtype}.")
        if jnp.finfo(array.dtype).bits < 16:
            raise ValueError(f"{name} must have at least 16 bits; got dtype {array.dtype}.")
        if 0 in array.shape:
            raise ValueError(f"{name} must not be empty; got shape {array.shape}.")
    batch, _, heads, width = query.shape
    if (key.shape[0], key.shape[3]) != (batch, width) or heads % key.shape[2]:
        raise ValueError(
            f"key must have the batch and width of query, and its heads or a divisor of them, "
            f"({batch}, S, {heads}, {width}); got {key.shape}."
        )
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"value must have the batch, length and heads of key, {(*key.shape[:3], 'E')}; "
            f"got {value.shape}."
        )


def check_variant(variant: Any, heads: int, width: int, value_width: int) -> None:
    """Raise an error unless `variant` is a `Variant` whose arrays have shapes that fit the call.

    Args:
      variant: Argument of `attention`.
      heads: Number of heads of the query.
      width: Width of a head of the query and key.
      value_width: Width of a head of the value.
    """
    if isinstance(variant, type) and issubclass(variant, Variant):
        raise TypeError(
            f"variant must be an instance of {variant.__name__}; got the class itself. "
            "Call it with its arrays."
        )
    if not isinstance(variant, Variant):
        hint = " Call the module: variant=module()." if callable(variant) else ""
        raise TypeError(f"variant must be a Variant such as DotProduct(); got {variant!r}.{hint}")
    variant.check(heads, width, value_width)


def check_flags(**flags: Any) -> None:
    """Raise TypeError unless every keyword argument is True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name} must be True or False; got {flag!r}.")


def validate_scale(scale: Any, default: float) -> float:
    """Validate the argument `scale` of `attention`. Return `default` if it is None."""
    if scale is None:
        return default
    is_number = isinstance(scale, int | float | np.integer | np.floating)
    is_number &= not isinstance(scale, bool)
    if not is_number or not 0 < scale < math.inf:
        raise ValueError(
            f"scale must be None or a positive Python number; got {scale!r}. "
            "Multiply the query by a factor that is traced."
        )
    return float(scale)


def validate_window(window: Any) -> tuple[int, int] | None:
    """Validate `local_window_size`. Return it as a pair (left, right), or None for no window."""
    if window is None:
        return None
    pair = tuple(window) if isinstance(window, tuple | list) else (window, window)
    is_valid = len(pair) == 2 and all(
        isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0
        for size in pair
    )
    if not is_valid:
        raise ValueError(
            "local_window_size must be None, an integer of at least 0, or a pair (left, right) of "
            f"such integers; got {window!r}."
        )
    return min(int(pair[0]), LARGEST_INT32), min(int(pair[1]), LARGEST_INT32)


def check_dropout(rate: Any, key: Any) -> None:
    """Raise an error unless the dropout rate is one number in [0, 1) and the key is not None."""
    if not is_real(rate):
        raise TypeError(f"dropout_rate must be a number; got {rate!r}.")
    if jnp.ndim(rate) != 0:
        raise ValueError(f"dropout_rate must be one number; got shape {jnp.shape(rate)}.")
    is_known = not isinstance(rate, jax.core.Tracer)
    if is_known and not 0 <= float(rate) < 1:
        raise ValueError(f"dropout_rate must be at least 0 and below 1; got {rate}.")
    if key is None:
        raise ValueError(
            f"dropout_key must be given with dropout_rate={rate}; got None. Pass a PRNG key."
        )
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ()
    if not is_key and not (dtype == jnp.uint32 and shape in ((2,), (4,))):
        raise TypeError(f"dropout_key must be one PRNG key such as jax.random.key(0); got {key!r}.")


def validate_mask(
    mask: Any, shape: tuple[int, ...], shards: int = 1
) -> Bool[Array, "#B #N _ _"] | None:
    """Validate the argument `mask` of `attention` and return it as a JAX array, or None.

    The mask must have four axes: with two axes, (B, S) could be mistaken for (T, S).

    Args:
      mask: Boolean array broadcastable to `shape`, or None.
      shape: Shape of the attention weights, (B, N, T, S).
      shards: Number of shards of the sequence, if T and S are the lengths of one shard. A mask with
        one row for all queries is a shard, too. A mask with rows has all keys of the sequence.
    """
    if mask is None:
        return None
    if getattr(mask, "dtype", None) != jnp.bool_:
        raise ValueError(
            "mask must be a boolean array, True where a query may attend; "
            f"got {getattr(mask, 'dtype', type(mask).__name__)}."
        )
    if getattr(mask, "ndim", 0) == 4 and mask.shape[3] == shape[3] * shards:
        shape = (*shape[:3], shape[3] * shards)
    fits = mask.ndim == 4 and all(
        size in (1, wanted) for size, wanted in zip(mask.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(
            "mask must have four axes that broadcast against (batch, heads, queries, keys) = "
            f"{shape}; got {mask.shape}. Write mask[None, None] for a mask of shape (queries, "
            "keys), and mask[:, None, None, :] for a mask of shape (batch, keys)."
        )
    return jnp.asarray(mask)


def validate_lengths(
    name: str, lengths: Any, batch: tuple[int, ...], longest: int
) -> Int[Array, "*batch"] | None:
    """Validate sequence lengths. Return them as int32, clipped to the range from 0 to `longest`.

    Return None if `lengths` is None.

    Args:
      name: Name of the argument, for the error message.
      lengths: One integer per example, of any integer dtype, or None.
      batch: Sizes of the batch axes.
      longest: Number of queries or keys of an example, with its padding.
    """
    if lengths is None:
        return None
    _check_integers(name, lengths, (batch,), f"one integer per example, shape {batch}")
    _check_range(name, lengths)
    lengths = jnp.asarray(lengths)
    if jnp.iinfo(lengths.dtype).bits < 32:  # `longest` may be too large for 8 or 16 bits
        lengths = lengths.astype(jnp.int32)
    return jnp.clip(lengths, 0, longest).astype(jnp.int32)


def validate_segments(
    call_shape: tuple[int, int, int], query_segments: Any, key_segments: Any
) -> tuple[Array | None, Array | None]:
    """Validate the segment numbers of packed sequences and return them as JAX arrays.

    Both results are None if both arguments are None. Raise ValueError if only one of them is None.

    Args:
      call_shape: Number of examples, number of queries, and number of keys: (B, T, S).
      query_segments: Segment number of each query, shape (B, T), or None.
      key_segments: Segment number of each key, shape (B, S), or None.
    """
    if query_segments is None and key_segments is None:
        return None, None
    batch, queries, keys = call_shape
    for name, segments, length in (
        ("query_segments", query_segments, queries),
        ("key_segments", key_segments, keys),
    ):
        if segments is None:
            raise ValueError(
                f"{name} must be given, because the segments of queries and of keys are compared; "
                "got None."
            )
        wanted = f"one integer per position, shape ({batch}, {length})"
        _check_integers(name, segments, ((batch, length),), wanted)
        _check_range(name, segments)
    return jnp.asarray(query_segments), jnp.asarray(key_segments)


def check_packing(
    variant: Variant, query_segments: Any, key_segments: Any, offset: Array, aligned: bool
) -> None:
    """Raise ValueError if query i and key i + offset belong to different segments.

    Query i and key i + offset have the same position. If they belong to different segments, the
    relative position of a query and a key is not their distance inside of a segment. Variants that
    do not use positions are not checked. Traced segments are not compared.

    Args:
      variant: Attention variant.
      query_segments: Segment number of each query, shape (B, T), or None.
      key_segments: Segment number of each key, shape (B, S), or None.
      offset: Position of the first query minus the position of the first key, shape (1,) or (B,).
      aligned: True if the offset is the Python number 0.
    """
    if query_segments is None or not variant.uses_positions:
        return
    advice = (
        f"{type(variant).__name__} uses the distance between positions, so query_segments and "
        "key_segments must be packed alike: query i and key i + query_offset in the same segment."
    )
    if aligned and query_segments.shape != key_segments.shape:
        raise ValueError(
            f"{advice} Got {query_segments.shape[1]} queries, {key_segments.shape[1]} keys and "
            "query_offset 0."
        )
    if any(isinstance(x, jax.core.Tracer) for x in (query_segments, key_segments, offset)):
        return
    queries, keys = np.asarray(query_segments), np.asarray(key_segments)
    index = np.arange(queries.shape[1])[None, :] + np.asarray(offset)[:, None]
    index = np.broadcast_to(index, queries.shape)
    has_key = (index >= 0) & (index < keys.shape[1])
    matching = np.take_along_axis(keys, np.clip(index, 0, keys.shape[1] - 1), axis=1)
    if np.any(has_key & (matching != queries)):
        example, query = np.argwhere(has_key & (matching != queries))[0]
        raise ValueError(f"{advice} They differ in example {example} at query {query}.")


def validate_offset(offset: Any, call_shape: tuple[int, int, int]) -> Int[Array, "#B"]:
    """Validate `query_offset`. Return it as an int32 array of shape (1,) or (batch,).

    Args:
      offset: Position of the first query minus the position of the first key.
      call_shape: Number of examples, of queries and of keys. Every position of a query, and its
        distance to every key, must fit into int32.
    """
    batch, queries, keys = call_shape
    wanted = f"an integer, or one per example, shape ({batch},)"
    _check_integers("query_offset", offset, ((), (1,), (batch,)), wanted)
    longest = queries + keys if isinstance(queries + keys, int) else 0  # it may be symbolic
    _check_range("query_offset", offset, LARGEST_INT32 - longest)
    return jnp.atleast_1d(jnp.asarray(offset, jnp.int32))


def _check_integers(
    name: str, array: Any, shapes: tuple[tuple[int, ...], ...], wanted: str
) -> None:
    """Raise an error unless an argument is an integer array with one of the accepted shapes.

    Args:
      name: Name of the argument, for the error message.
      array: Array, or a Python number, which has the shape ().
      shapes: Accepted shapes.
      wanted: Description of the accepted arrays, for the error message.
    """
    if not isinstance(array, int | float | np.generic | np.ndarray | jax.Array):
        raise TypeError(f"{name} must be {wanted}; got {array!r}. Pass an array.")
    shape = jnp.shape(array)
    dtype = array.dtype if isinstance(array, np.ndarray) else jnp.result_type(array)
    if shape not in shapes or not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(f"{name} must be {wanted}; got shape {shape}, dtype {dtype}.")


def _check_range(name: str, integers: Any, largest: int = LARGEST_INT32) -> None:
    """Raise ValueError if integers lie beyond ±`largest`. Traced integers are not checked."""
    if isinstance(integers, jax.core.Tracer):
        return
    if np.any(np.abs(np.asarray(integers).astype(np.float64)) > largest):
        limit = "2³¹" if largest == LARGEST_INT32 else str(largest + 1)
        raise ValueError(f"{name} must lie between -{limit} and {limit}; got {integers}.")
