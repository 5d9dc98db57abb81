"""Transformer encoder: a stack of layers with any attention variant."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from distattn_jax.modules.batch_axes import as_boolean_mask
from distattn_jax.modules.dropout import Rate, Rngs
from distattn_jax.modules.layer_stack import LayerStack, stack_layers
from distattn_jax.modules.memory import SegmentMemory
from distattn_jax.modules.transformer_layer import EncoderOutput


class Encoder(LayerStack):
    """A stack of Transformer layers.

    Args:
      num_layers: Number of layers L.
      features: Width D of inputs and outputs.
      num_heads: Number of attention heads N.
      variant: Called as `variant(rngs=rngs)` once for each layer, to make the module that builds
        the attention variant, e.g. `functools.partial(DistanceAware, num_heads)`. None means
        dot-product attention.
      norm: "after" normalizes each residual sum. "before" normalizes the inputs of attention and
        feed-forward network in each layer, and the output of the last layer.
      layer_norm: Makes a layer norm, called as `layer_norm(features, dtype=..., param_dtype=...,
        rngs=...)`.
      dtype: Dtype of the computation. None uses the promoted dtype of inputs and parameters.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
      **layer_arguments: Other arguments of `TransformerLayer`.
    """

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        lengths: Int[Array, " B"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        mask: Shaped[Array, "#B #N #T #S"] | None = None,
        is_causal: bool = False,
        memory: SegmentMemory | None = None,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> EncoderOutput:
        """Apply all layers.

        Args:
          x: Embedded tokens, shape (B, T, D).
          lengths: Number of valid tokens of each example. The rest is padding.
          segments: Sequence of each token, shape (B, T), for several sequences packed into a row.
            Tokens attend only to tokens of the same sequence. Must be None with a memory.
          mask: True or 1 where a query may attend to a key, shape (B, N, T, S). Each axis may also
            have size 1. With a memory of M positions, S = M + T.
          is_causal: Hide later tokens from each query.
          memory: Inputs of each layer for earlier segments. If passed, the output contains the
            memory with this segment appended.
          dropout_rate: Replaces every dropout rate of the constructor. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: Also return the attention that each key receives, shape (B, L, N, S).
          weights: Also return the attention weights, shape (B, L, N, T, S).
        """
        if memory is not None:
            heads = self.layers[0].attention.num_heads
            mask = _hide_empty_slots(mask, memory.filled, heads, x.shape[1])
        inputs, outputs = [], []
        for index, layer in enumerate(self.layers):
            inputs.append(x)
            output = layer(
                x,
                memory=None if memory is None else memory.states[index],
                lengths=lengths,
                segments=segments,
                mask=mask,
                is_causal=is_causal,
                dropout_rate=dropout_rate,
                rngs=rngs,
                received=received,
                weights=weights,
            )
            x = output.values
            outputs.append(output)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return EncoderOutput(
            x,
            received=stack_layers(outputs, "received") if received else None,
            weights=stack_layers(outputs, "weights") if weights else None,
            memory=None if memory is None else memory.append(jnp.stack(inputs), lengths),
        )


def _hide_empty_slots(
    mask: Array | None, filled: Bool[Array, "B M"], heads: int, tokens: int
) -> Bool[Array, "#B #N #T S"]:
    """Return a mask that hides the empty memory slots and all keys that `mask` hides.

    Args:
      mask: True or 1 where a query may attend to a key. The keys are M memory slots, followed by
        the tokens of the segment. None hides no key.
      filled: True for the memory slots that contain a token.
      heads: Number of attention heads N.
      tokens: Number of tokens T of the segment.
    """
    visible = jnp.pad(filled, ((0, 0), (0, tokens)), constant_values=True)[:, None, None, :]
    if mask is None:
        return visible
    batch, _, _, keys = visible.shape
    return as_boolean_mask(mask, (batch, heads, tokens, keys)) & visible
