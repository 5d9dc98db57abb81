"""Stack of Transformer layers, the common base of encoder and decoder."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from distattn_jax.attention import Variant
from distattn_jax.modules.transformer_layer import EncoderOutput, TransformerLayer


class LayerStack(nnx.Module):
    """Transformer layers with equal arguments, and the layer norm after the last layer.

    `Encoder` describes the arguments.

    Attributes:
      layers: Transformer layers.
      final_norm: Layer norm of the output, or None with norm="after".
    """

    def __init__(
        self,
        num_layers: int,
        features: int,
        num_heads: int,
        *,
        variant: Callable[..., nnx.Module] | None = None,
        norm: str = "after",
        layer_norm: Callable[..., nnx.Module] = nnx.LayerNorm,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
        **layer_arguments: Any,
    ):
        if isinstance(variant, nnx.Module | Variant):
            raise TypeError(
                "variant must be a function that makes the module of one layer, called as "
                f"`variant(rngs=rngs)`, e.g. `functools.partial(DistanceAware, {num_heads})`; "
                f"got a {type(variant).__name__} that is already made."
            )
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.layers = nnx.List(
            TransformerLayer(
                features,
                num_heads,
                variant=None if variant is None else variant(rngs=rngs),
                norm=norm,
                layer_norm=layer_norm,
                **dtypes,
                **layer_arguments,
            )
            for _ in range(num_layers)
        )
        self.final_norm = nnx.data(layer_norm(features, **dtypes) if norm == "before" else None)


def stack_layers(outputs: list[EncoderOutput], field: str) -> Array:
    """Return a field of the outputs of all layers, stacked along a new second axis."""
    return jnp.stack([getattr(output, field) for output in outputs], axis=1)
