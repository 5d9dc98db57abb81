"""Adapter from attention variants to the argument `attention_fn` of Flax NNX and Linen."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.nnx.bridge.wrappers import current_linen_module
from jaxtyping import Array, Bool, Int

from distattn_jax.attention import Rotary, Variant, rotate
from distattn_jax.attention.rotary import check_self_attention
from distattn_jax.modules.batch_axes import (
    as_boolean_mask,
    attention_over_batch_axes,
    is_known,
    nan_where,
)


def as_attention_fn(
    variant: Variant | nnx.Module,
    *,
    rotary: Rotary | None = None,
    decode: bool = False,
    scale: float | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
) -> Any:
    """Return a function for the argument `attention_fn` of multi-head attention in Flax.

    The function works with `nnx.MultiHeadAttention` and `linen.MultiHeadDotProductAttention`. If
    `variant` is a module, the result is also a module, whose parameters NNX trains with the model.

    Linen does not train the parameters of NNX modules, and a warning says so. To train them in a
    Linen model, make the variant in a method of the model by
    `variant = nnx.bridge.to_linen(modules.DistanceAware, num_heads)()`. The parameters are then in
    Linen's tree.

    Flax does not pass the positions of the queries. By default, the first query therefore has the
    position of the first key. To change this, set `decode`, or pass the positions of the queries as
    `input_positions` when you call the function.

    Args:
      variant: Attention variant such as `attention.DotProduct()`, or a module that returns one when
        called, such as `modules.DistanceAware`.
      rotary: Rotary positions, which rotate queries and keys before the attention of any variant.
        They serve self-attention. A layer of Flax caches its keys without rotation, so that every
        step of decoding rotates the whole cache. None means no rotation.
      decode: Set to True for self-attention in a layer that decodes with a cache, one token at a
        time. A single query then has the position of the last key that is visible in its mask, the
        key that the layer has just appended to the cache. A whole sequence, with as many queries as
        keys, is also accepted. Cross-attention needs a separate function with `decode=False`.
      scale: Factor that multiplies the dot products of queries and keys. None means the default of
        the variant.
      local_window_size: Pair (left, right). A query attends to keys at most `left` positions before
        it and at most `right` positions after it. One integer stands for both. None means that keys
        at all distances are visible.
      implementation: Implementation of `attention`, such as "xla". None selects the fastest.
    """
    if not isinstance(variant, Variant | nnx.Module):
        raise TypeError(
            "variant must be an attention variant such as `attention.DotProduct()`, or a module "
            f"such as `modules.DistanceAware(...)`; got {variant!r}."
        )
    kind = _AttentionModule if isinstance(variant, nnx.Module) else _AttentionFunction
    return kind(variant, rotary, decode, scale, local_window_size, implementation)


class _AttentionFunction:
    """Function for the argument `attention_fn` of a Flax layer, which computes a variant."""

    def __init__(
        self,
        variant: Any,
        rotary: Any,
        decode: bool,
        scale: Any,
        window: Any,
        implementation: str | None,
    ):
        self.variant, self.rotary = variant, rotary
        self.decodes = decode  # not `decode`, which `nnx.Module.set_attributes` would change
        self.scale, self.local_window_size = scale, window
        self.implementation = implementation

    # Linen passes only the arguments that it finds in this signature.
    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        bias: Array | None = None,
        mask: Array | None = None,
        broadcast_dropout: bool = False,
        dropout_rng: Array | None = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        is_causal: bool = False,
        input_positions: Array | None = None,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
    ) -> Array:
        """Return the weighted sum of values for each query, shape (..., T, N, E).

        The arguments are those of `nnx.dot_product_attention`. `broadcast_dropout` is ignored: each
        head of each example has its own dropout mask. The softmax is always computed in float32 or
        wider, like `force_fp32_for_softmax=True` in Linen.
        """
        for name, argument in (
            ("bias", bias),
            ("qk_attn_weights_einsum", qk_attn_weights_einsum),
            ("attn_weights_value_einsum", attn_weights_value_einsum),
        ):
            if argument is not None:
                raise ValueError(f"{name} must be None; to change the scores, use another variant.")
        if dtype is not None:
            query, key, value = (x.astype(dtype) for x in (query, key, value))
        offset, unknown = self._find_offset(query, key, mask, input_positions)
        if self.rotary is not None:
            check_self_attention(query.shape[-3], key.shape[-3], offset)
            query, key = rotate(query, self.rotary, offset), rotate(key, self.rotary)
        attended = attention_over_batch_axes(
            query,
            key,
            value,
            self._get_variant(),
            mask=mask,
            is_causal=is_causal,
            query_offset=offset,
            scale=self.scale,
            local_window_size=self.local_window_size,
            dropout_rate=0.0 if deterministic else dropout_rate,
            dropout_key=dropout_rng,
            weights=module is not None,
            precision=precision,
            implementation=self.implementation,
        )
        attended = nan_where(unknown, attended, query.shape[:-3])
        if module is not None:
            name = "attention_weights"
            if isinstance(module, nnx.Module):
                module.sow(nnx.Intermediate, name, attended.weights)
            else:
                module.sow("intermediates", name, attended.weights)
        return attended.values

    def _get_variant(self) -> Variant:
        """Return the attention variant."""
        return self.variant

    def _find_offset(
        self, query: Array, key: Array, mask: Array | None, input_positions: Array | None
    ) -> tuple[int | Int[Array, "..."], bool | Bool[Array, "..."]]:
        """Return the position of the first query minus the position of the first key, and a flag.

        The flag is True for examples whose traced `input_positions` are not consecutive: see
        `_check_positions`.
        """
        *batch, queries, heads, _ = query.shape
        keys = key.shape[-3]
        if input_positions is not None:
            return _check_positions(input_positions, queries)
        if not self.decodes or queries == keys:
            return 0, False
        if queries > 1 or mask is None:
            raise ValueError(
                "decode=True expects one query with a mask that shows the filled part of the "
                f"cache, or as many queries as keys; got {queries} queries, {keys} keys and "
                f"{'no' if mask is None else 'a'} mask. Pass input_positions, or use a function "
                "with decode=False for cross-attention."
            )
        shown = as_boolean_mask(mask, (*batch, heads, queries, keys)).any(axis=(-3, -2))
        return keys - 1 - jnp.argmax(shown[..., ::-1], axis=-1).astype(jnp.int32), False


class _AttentionModule(_AttentionFunction, nnx.Module):
    """Attention function that is an NNX module, because its variant has trainable parameters."""

    def _get_variant(self) -> Variant:
        """Return the attention variant with the current parameters."""
        layer = current_linen_module()
        # An NNX model that `ToLinen` wraps owns its modules: their parameters are in Linen's tree.
        is_constant = layer is not None and not isinstance(layer, nnx.bridge.ToLinen)
        if is_constant and jax.tree.leaves(nnx.state(self.variant, nnx.Param)):
            name = type(self.variant).__name__
            warnings.warn(
                f"Linen does not train the parameters of the NNX module {name}: they are constants "
                f"in {type(layer).__name__}. To train them, make the variant in a method of the "
                f"Linen model: `variant = nnx.bridge.to_linen({name}, ...)()`, then "
                "`as_attention_fn(variant)`. To keep them constant without this warning, call the "
                "module: `as_attention_fn(module())`.",
                stacklevel=3,
            )
        return self.variant()


def _check_positions(
    positions: Int[Array, "*batch T"], queries: int
) -> tuple[Int[Array, "*batch"], bool | Bool[Array, "*batch"]]:
    """Check that the positions in each row count up by 1, such as 5, 6, 7.

    Outside of `jax.jit`, where the values are known, raise a ValueError for other positions.

    Args:
      positions: Position of each query.
      queries: Number of queries T.

    Returns:
      The first position of each row, and a flag. The flag is True for rows of a traced array that
      do not count up by 1.
    """
    if positions.shape[-1] != queries:
        raise ValueError(
            f"input_positions must have one position for each of the {queries} queries; "
            f"got shape {positions.shape}."
        )
    if not is_known(positions):
        steps = positions[..., 1:] - positions[..., :-1]
        return positions[..., 0], (steps != 1).any(axis=-1)
    if (np.diff(positions) != 1).any():
        raise ValueError(
            "input_positions must count up by 1 in each row, because attention uses the first "
            f"position only; got {positions}. Put each sequence into its own row."
        )
    return positions[..., 0], False
