"""Adapter from attention variants to the argument `attention_fn` of Flax NNX and Linen."""

import functools
from typing import Any

from flax import nnx
from jaxtyping import Array

from distattn_jax.attention import Variant
from distattn_jax.modules.batch_axes import attention_over_batch_axes


def as_attention_fn(variant: Variant | nnx.Module, *, implementation: str | None = None) -> Any:
    """Return a function for the argument `attention_fn` of multi-head attention in Flax.

    The function works with `nnx.MultiHeadAttention` and `linen.MultiHeadDotProductAttention`. If
    `variant` is a module, the result is also a module whose parameters are trained with the model.

    The first query and the first key are assumed to have the same position. A layer that decodes
    with a cache must pass the positions of its queries as `input_positions`.
    `modules.MultiHeadAttention` handles its cache without this argument.

    Args:
      variant: Attention variant such as `attention.DotProduct()`, or a module that returns one when
        called, such as `modules.DistanceAware`.
      implementation: Implementation of the attention. None selects the fastest.
    """
    if isinstance(variant, nnx.Module):
        return _AttentionModule(variant, implementation)
    return functools.partial(_attend, variant, implementation)


class _AttentionModule(nnx.Module):
    """Attention function that is a module and contains the parameters of its variant."""

    def __init__(self, variant: nnx.Module, implementation: str | None):
        self.variant = variant
        self.implementation = implementation

    def __call__(self, query: Array, key: Array, value: Array, **arguments: Any) -> Array:
        """Compute attention. The arguments are those of `nnx.dot_product_attention`."""
        return _attend(self.variant(), self.implementation, query, key, value, **arguments)


def _attend(
    variant: Variant,
    implementation: str | None,
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
) -> Array:
    """Compute attention of a variant, with the arguments of `nnx.dot_product_attention`.

    `broadcast_dropout` is ignored: each head of each example has its own dropout mask.
    """
    if bias is not None:
        raise ValueError("bias must be None; to change the scores, use another variant.")
    if precision is not None:
        raise ValueError("precision must be None; use `jax.default_matmul_precision` instead.")
    if dtype is not None:
        query, key, value = (x.astype(dtype) for x in (query, key, value))
    attended = attention_over_batch_axes(
        query,
        key,
        value,
        variant,
        mask=mask,
        is_causal=is_causal,
        query_offset=0 if input_positions is None else input_positions[..., 0],
        dropout_rate=0.0 if deterministic else dropout_rate,
        dropout_key=dropout_rng,
        weights=module is not None,
        implementation=implementation,
    )
    if module is not None:
        name = "attention_weights"
        if isinstance(module, nnx.Module):
            module.sow(nnx.Intermediate, name, attended.weights)
        else:
            module.sow("intermediates", name, attended.weights)
    return attended.values
