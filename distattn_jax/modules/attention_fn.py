"""The drop-in for other people's models: `attention_fn=` of Flax NNX and Linen."""

import functools
from typing import Any

from flax import nnx
from jaxtyping import Array

from distattn_jax.attention import Variant
from distattn_jax.modules.batches import attention_over_batches


def as_attention_fn(variant: Variant | nnx.Module, *, implementation: str | None = None) -> Any:
    """A function that fits `attention_fn=` of `nnx.MultiHeadAttention` and Linen's.

    Given one of our modules, the result is a module too: put into a model, its parameters are
    trained with the model's. Given a variant, its arrays are used as they are.

    Positions are counted from the first query and the first key. A layer that decodes with a cache
    must say where its query is (`input_positions`), or be our `MultiHeadAttention`, which knows.

    Args:
      variant: a variant such as `attention.DotProduct()`, or a module that builds one.
      implementation: as in `attention`.
    """
    if isinstance(variant, nnx.Module):
        return _AttentionModule(variant, implementation)
    return functools.partial(_attend, variant, implementation)


class _AttentionModule(nnx.Module):
    def __init__(self, variant: nnx.Module, implementation: str | None):
        self.variant = variant
        self.implementation = implementation

    def __call__(self, query: Array, key: Array, value: Array, **arguments: Any) -> Array:
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
    """Flax's arguments in the words of `attention`; no two heads or examples share dropout."""
    if bias is not None:
        raise ValueError("bias must be None: what is added to the scores belongs into the variant.")
    if precision is not None:
        raise ValueError("precision must be None: use `jax.default_matmul_precision` instead.")
    if dtype is not None:
        query, key, value = (x.astype(dtype) for x in (query, key, value))
    attended = attention_over_batches(
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
