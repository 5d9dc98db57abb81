"""Attention with the conventions of Flax: several batch axes, and masks of 0 and 1."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from distattn_jax.attention import Attended, Variant, attention

# Arguments of `attention` with batch axes, and the number of axes that follow the batch axes.
TRAILING_AXES = {
    "mask": 3,
    "query_lengths": 0,
    "key_lengths": 0,
    "query_offset": 0,
    "query_segments": 1,
    "key_segments": 1,
}


def attention_over_batch_axes(
    query: Float[Array, "*batch T N H"],
    key: Float[Array, "*batch S K H"],
    value: Float[Array, "*batch S K E"],
    variant: Variant,
    **arguments: Any,
) -> Attended:
    """Call `attention` with all batch axes merged into one, and split this axis in the outputs.

    Args:
      query: Queries, shape (..., T, N, H).
      key: Keys, shape (..., S, K, H). K divides N.
      value: Values, shape (..., S, K, E).
      variant: Attention variant.
      **arguments: Other arguments of `attention`. Where `attention` expects an array with one batch
        axis, pass an array with the batch axes of the query, or with axes that broadcast to them.
        `mask` may contain the numbers 0 and 1 instead of booleans.
    """
    batch = query.shape[:-3]
    if arguments.get("mask") is not None:
        shape = (*batch, query.shape[-2], query.shape[-3], key.shape[-3])
        arguments["mask"] = as_boolean_mask(arguments["mask"], shape)
    if len(batch) != 1:
        query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
        for name, trailing in TRAILING_AXES.items():
            argument = arguments.get(name)
            if argument is not None and (name != "query_offset" or jnp.ndim(argument)):
                arguments[name] = _merge_batch_axes(name, argument, batch, trailing)
    attended = attention(query, key, value, variant, **arguments)
    if len(batch) == 1:
        return attended
    return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), attended)


def as_boolean_mask(mask: Array, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Convert a mask to a boolean array with as many axes as the attention weights.

    Flax makes masks of the numbers 0 and 1. Outside of `jax.jit`, where the values are known, other
    numbers raise a ValueError. In a traced mask, positive numbers become True, and all others
    become False.

    Args:
      mask: True or 1 where a query may attend to a key.
      shape: Shape of the attention weights, (..., N, T, S). Each axis of the mask has this size or
        size 1. The mask may have additional leading axes of size 1.
    """
    mask = mask if isinstance(mask, jax.Array) else np.asarray(mask)
    extra = mask.ndim - len(shape)
    if extra < 0 or not all(
        size in (1, wanted) for size, wanted in zip(mask.shape, (1,) * extra + shape, strict=True)
    ):
        raise ValueError(
            "mask must have the axes of the attention weights, (..., heads, queries, keys) = "
            f"{shape}, each of this size or 1; got shape {mask.shape}."
        )
    if mask.dtype != jnp.bool_:
        if is_known(mask) and not np.isin(mask, (0, 1)).all():
            raise ValueError(
                "mask must be True or 1 where a query may attend, and False or 0 elsewhere; got "
                f"other numbers of dtype {mask.dtype}. A mask that is added to scores, with 0 "
                "where a query may attend, is converted by `mask == 0`."
            )
        mask = mask > 0
    return jnp.asarray(mask).reshape(mask.shape[extra:])


def is_known(x: Array) -> bool:
    """Return True if Python can read the values of an array now.

    The result is False for a traced array, and for an array that is partly on devices of other
    processes.
    """
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def nan_where(
    invalid: bool | Bool[Array, "..."], attended: Attended, batch: tuple[int, ...]
) -> Attended:
    """Return the outputs of attention, with NaN for all outputs of invalid examples.

    Args:
      invalid: True for invalid examples. An array must broadcast to the shape `batch`.
      attended: Outputs of attention.
      batch: Sizes of the batch axes.
    """
    if invalid is False:
        return attended
    invalid = jnp.broadcast_to(invalid, batch)

    def replace(x: Array) -> Array:
        return jnp.where(invalid.reshape(*batch, *[1] * (x.ndim - len(batch))), jnp.nan, x)

    return jax.tree.map(replace, attended)


def _merge_batch_axes(name: str, x: Any, batch: tuple[int, ...], trailing: int) -> Array:
    """Broadcast the batch axes of an array to the sizes `batch` and merge them into one axis.

    Args:
      name: Name of the argument, for the error message.
      x: Array whose batch axes come first. Batch axes may be missing or have size 1.
      batch: Sizes of the batch axes.
      trailing: Number of axes after the batch axes.
    """
    x = jnp.asarray(x)
    leading, tail = x.shape[: x.ndim - trailing], x.shape[x.ndim - trailing :]
    if trailing == 3 and all(size == 1 for size in leading):
        return x.reshape(1, *tail)  # `attention` broadcasts the first axis of a mask.
    try:
        return jnp.broadcast_to(x, (*batch, *tail)).reshape(-1, *tail)
    except ValueError:
        raise ValueError(
            f"{name} must be broadcastable to the batch axes {batch}; got shape {leading}."
        ) from None
