"""Transformer decoder: a stack of layers with causal attention, for any attention variant."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from distattn_jax.modules.dropout import Rate, Rngs
from distattn_jax.modules.key_value_cache import KeyValueCache
from distattn_jax.modules.layer_stack import LayerStack, stack_layers

KeyValue = tuple[Array, Array]  # keys and values of cross-attention, each of shape (B, E, K, H)


class DecoderOutput(NamedTuple):
    """Output of a decoder. Fields that were not requested are None.

    Attributes:
      values: Output of the last layer.
      weights: Attention weights of each query (T) over the keys (S).
      cross_weights: Attention weights of each query (T) over the positions of the encoder (E).
      caches: Cache of each layer, with the keys and values of this call appended.
    """

    values: Float[Array, "B T D"]
    weights: Float[Array, "B L N T S"] | None = None
    cross_weights: Float[Array, "B L N T E"] | None = None
    caches: tuple[KeyValueCache, ...] | None = None


class Decoder(LayerStack):
    """A stack of Transformer layers with causal attention.

    With `cross_attention=True`, every layer also attends to the output of an encoder.

    Args:
      num_layers: Number of layers L.
      features: Width D of inputs and outputs.
      num_heads: Number of attention heads N.
      variant: Called as `variant(rngs=rngs)` once for each layer, to make the module that builds
        the attention variant. None means dot-product attention. Cross-attention is always
        dot-product attention.
      norm: "after" normalizes each residual sum. "before" normalizes the inputs of attention and
        feed-forward network in each layer, and the output of the last layer.
      layer_norm: Makes a layer norm, called as `layer_norm(features, dtype=..., param_dtype=...,
        rngs=...)`.
      dtype: Dtype of the computation. None uses the promoted dtype of inputs and parameters.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
      **layer_arguments: Other arguments of `TransformerLayer`, such as `cross_attention`.
    """

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        lengths: Int[Array, " B"] | None = None,
        caches: Sequence[KeyValueCache] | None = None,
        cross_key_values: Sequence[KeyValue] | None = None,
        cross_lengths: Int[Array, " B"] | None = None,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        weights: bool = False,
    ) -> DecoderOutput:
        """Apply all layers.

        Args:
          x: Embedded tokens, shape (B, T, D).
          lengths: Number of valid tokens of each example. The rest is padding.
          caches: Cache of each layer, from `init_caches` or from the output of an earlier call. The
            tokens of x follow the cached tokens.
          cross_key_values: Result of `project_cross`. Required with cross-attention.
          cross_lengths: Number of valid positions of the encoder. The rest is padding.
          dropout_rate: Replaces every dropout rate of the constructor. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          weights: Also return the attention weights of every layer. With caches, S is the number of
            tokens for which the caches have room.
        """
        outputs, new_caches = [], []
        for index, layer in enumerate(self.layers):
            output = layer(
                x,
                lengths=lengths,
                is_causal=True,
                cache=None if caches is None else caches[index],
                cross_key_value=None if cross_key_values is None else cross_key_values[index],
                cross_lengths=cross_lengths,
                dropout_rate=dropout_rate,
                rngs=rngs,
                weights=weights,
            )
            x = output.values
            outputs.append(output)
            if output.cache is not None:
                new_caches.append(output.cache)
        has_cross_weights = weights and cross_key_values is not None
        return DecoderOutput(
            x if self.final_norm is None else self.final_norm(x),
            weights=stack_layers(outputs, "weights") if weights else None,
            cross_weights=stack_layers(outputs, "cross_weights") if has_cross_weights else None,
            caches=tuple(new_caches) or None,
        )

    def project_cross(self, encoded: Float[Array, "B E D"]) -> tuple[KeyValue, ...]:
        """Return the keys and values of the cross-attention of every layer.

        The keys and values do not depend on the tokens of the decoder. A program that decodes one
        token after the other can therefore compute them once, before the first token.

        Args:
          encoded: Output of the encoder.
        """
        return tuple(layer.project_cross(encoded) for layer in self.layers)

    def init_caches(self, batch: int, room: int) -> tuple[KeyValueCache, ...]:
        """Return an empty cache for every layer.

        Args:
          batch: Number of examples B.
          room: Largest number of tokens S of an example.
        """
        caches = []
        for layer in self.layers:
            heads, width = layer.attention.num_kv_heads, layer.attention.head_dim
            dtype = layer.attention.dtype or jnp.float32
            caches.append(KeyValueCache.empty(batch, room, heads, width, dtype))
        return tuple(caches)
