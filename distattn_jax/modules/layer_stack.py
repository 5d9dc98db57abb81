"""Transformer encoder and decoder: stacks of layers with any attention variant."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from distattn_jax.attention import Variant
from distattn_jax.modules.batch_axes import as_boolean_mask
from distattn_jax.modules.dropout import Rate, Rngs
from distattn_jax.modules.key_value_cache import KeyValueCache
from distattn_jax.modules.memory import SegmentMemory
from distattn_jax.modules.transformer_layer import EncoderOutput, TransformerLayer

KeyValue = tuple[Array, Array]  # keys and values of cross-attention, each of shape (B, E, K, H)


class LayerStack(nnx.Module):
    """List of Transformer layers with the same arguments, and a final layer norm.

    `Encoder` and `Decoder` inherit from this class and apply the layers.

    Args:
      num_layers: Number of layers L.
      features: Width D of inputs and outputs.
      num_heads: Number of attention heads N.
      variant: Function that makes the attention module of one layer, e.g.
        `functools.partial(DistanceAware, num_heads)`. It is called as `variant(rngs=rngs)`, once
        for each layer. None means dot-product attention.
      norm: "after" normalizes each residual sum. "before" normalizes the inputs of attention and
        feed-forward network in each layer, and the output of the last layer.
      layer_norm: Function that makes a layer norm. It is called as `layer_norm(features, dtype=...,
        param_dtype=..., rngs=...)`.
      dtype: Dtype of the computation. None uses the promoted dtype of inputs and parameters.
      param_dtype: Dtype of the parameters.
      remat: If True, the backward pass recomputes each layer instead of storing its residuals.
        Outputs and gradients stay the same. A call with caches stores no residuals, and ignores
        this argument.
      rngs: Random number generators. The stream `params` draws the parameters.
      **layer_arguments: Other arguments of `TransformerLayer`.

    Attributes:
      layers: Transformer layers.
      final_norm: Layer norm after the last layer. None if norm="after".
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
        remat: bool = False,
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
        self.remat = remat

    def apply_layer(
        self,
        layer: TransformerLayer,
        x: Float[Array, "B T D"],
        *,
        rngs: Rngs | None,
        **arguments: Any,
    ) -> EncoderOutput:
        """Call a layer. With `remat`, the backward pass recomputes this call.

        Args:
          layer: Layer of this stack.
          x: Inputs of the layer.
          rngs: Random number generators of dropout. None disables dropout.
          **arguments: Other arguments of `TransformerLayer.__call__`.
        """
        if not self.remat or arguments.get("cache") is not None:
            return layer(x, rngs=rngs, **arguments)

        # `call` gets a copy of the random number generators, with the same keys each time. The
        # number of keys that the copy has drawn is therefore written back. Generators that count
        # outside of arrays, as those of a training step, are not copied.
        has_counts = rngs is not None and jax.tree.leaves(nnx.state(rngs, nnx.RngCount))
        counted = rngs if has_counts else None

        def call(layer: TransformerLayer, x: Array, copy: Rngs | None) -> tuple[Any, Any]:
            output = layer(x, rngs=rngs if copy is None else copy, **arguments)
            return output, None if copy is None else nnx.state(copy, nnx.RngCount)

        output, counts = jax.checkpoint(call)(layer, x, counted)
        if counted is not None:
            nnx.update(counted, counts)
        return output


def stack_layers(outputs: list[EncoderOutput], field: str) -> Array | None:
    """Stack one field of the outputs of all layers along a new axis L, after the batch axis.

    Return None if the layers did not return the field.

    Args:
      outputs: Output of each layer.
      field: Name of the field, such as "weights".
    """
    arrays = [getattr(output, field) for output in outputs]
    return None if not arrays or arrays[0] is None else jnp.stack(arrays, axis=1)


class Encoder(LayerStack):
    """Transformer encoder: a stack of layers with self-attention.

    For the arguments of the constructor, see `LayerStack`.
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
        """Apply all layers, and the final layer norm if there is one.

        Args:
          x: Embedded tokens, shape (B, T, D).
          lengths: Number of tokens of each example before the padding. None means no padding.
          segments: Sequence number of each token, shape (B, T), for several sequences packed
            into a row. Tokens attend only to tokens of the same sequence. Must be None with a
            memory.
          mask: True or 1 where a query may attend to a key, shape (B, N, T, S). Each axis may also
            have size 1. With a memory of M positions, S = M + T.
          is_causal: If True, a token attends only to itself and to earlier tokens.
          memory: Inputs of the layers for earlier tokens, which the tokens of x also attend to. The
            output then contains a new memory, with the tokens of x appended.
          dropout_rate: Replaces every dropout rate of the constructor. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, L, N, S).
          weights: If True, also return the attention weights, shape (B, L, N, T, S).
        """
        if memory is not None:
            _check_memory(memory, (len(self.layers), x.shape[0]))
            heads = self.layers[0].attention.num_heads
            mask = _hide_empty_positions(mask, memory.filled, heads, x.shape[1])
        inputs, outputs = [], []
        for index, layer in enumerate(self.layers):
            inputs.append(x)
            output = self.apply_layer(
                layer,
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
            received=stack_layers(outputs, "received"),
            weights=stack_layers(outputs, "weights"),
            memory=None if memory is None else memory.append(jnp.stack(inputs), lengths),
        )


def _check_memory(memory: Any, wanted: tuple[int, int]) -> None:
    """Raise an error unless `memory` is made for this number of layers and of examples."""
    if not isinstance(memory, SegmentMemory):
        raise TypeError(f"memory must be None or a SegmentMemory; got {type(memory).__name__}.")
    if memory.states.shape[:2] != wanted:
        raise ValueError(
            f"memory must be that of {wanted[0]} layers and {wanted[1]} examples; got states of "
            f"shape {memory.states.shape}."
        )


def _hide_empty_positions(
    mask: Array | None, filled: Bool[Array, "B M"], heads: int, tokens: int
) -> Bool[Array, "#B #N #T S"]:
    """Return a mask that hides all keys that `mask` hides, and the empty positions of a memory.

    Args:
      mask: True where a query may attend to a key. The keys are the M positions of the memory,
        followed by the T tokens of the inputs. None hides no key.
      filled: True for positions of the memory with a token. False for empty positions.
      heads: Number of attention heads N.
      tokens: Number of tokens T of the inputs.
    """
    visible = jnp.pad(filled, ((0, 0), (0, tokens)), constant_values=True)[:, None, None, :]
    if mask is None:
        return visible
    batch, _, _, keys = visible.shape
    return as_boolean_mask(mask, (batch, heads, tokens, keys)) & visible


def _check_entries(name: str, entries: Any, layers: int, kind: Any) -> None:
    """Raise an error unless an argument of the decoder is None or has one entry for each layer.

    Args:
      name: Name of the argument, for the error message.
      entries: Value of the argument.
      layers: Number of layers.
      kind: Class of the entries.
    """
    if entries is None:
        return
    is_sequence = isinstance(entries, Sequence)
    if not is_sequence or not all(isinstance(entry, kind) for entry in entries):
        got = [type(entry).__name__ for entry in entries] if is_sequence else type(entries).__name__
        wanted = "KeyValueCache" if kind is KeyValueCache else "pair of keys and values"
        raise TypeError(f"{name} must be None or have a {wanted} for each layer; got {got}.")
    if len(entries) != layers:
        raise ValueError(
            f"{name} must have one entry for each of the {layers} layers; got {len(entries)}."
        )


class DecoderOutput(NamedTuple):
    """Output of a decoder. Fields that were not requested are None.

    Attributes:
      values: Output of the last layer.
      weights: Self-attention weights of the T queries over the S keys, for each layer and head.
      cross_weights: Cross-attention weights of the T queries over the E positions of the encoder,
        for each layer and head.
      caches: New cache of each layer, with the keys and values of this call appended.
    """

    values: Float[Array, "B T D"]
    weights: Float[Array, "B L N T S"] | None = None
    cross_weights: Float[Array, "B L N T E"] | None = None
    caches: tuple[KeyValueCache, ...] | None = None


class Decoder(LayerStack):
    """Transformer decoder: a stack of layers with causal self-attention.

    With `cross_attention=True`, every layer also attends to the output of an encoder, always with
    dot-product attention. For the arguments of the constructor, see `LayerStack`.
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
        """Apply all layers, and the final layer norm if there is one.

        Args:
          x: Embedded tokens, shape (B, T, D).
          lengths: Number of tokens of each example before the padding. None means no padding.
          caches: Cache of each layer, from `init_caches` or from the output of an earlier call. The
            tokens of x follow the cached tokens.
          cross_key_values: Keys and values of the cross-attention of each layer, from
            `project_cross`. Required with cross-attention.
          cross_lengths: Number of positions of the encoder before the padding, for each example.
            None means no padding.
          weights: If True, also return the weights of self-attention, shape (B, L, N, T, S), and of
            cross-attention, shape (B, L, N, T, E). With caches, S is their `room`.
          dropout_rate: Replaces every dropout rate of the constructor. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        _check_entries("caches", caches, len(self.layers), KeyValueCache)
        _check_entries("cross_key_values", cross_key_values, len(self.layers), tuple | list)
        outputs, new_caches = [], []
        for index, layer in enumerate(self.layers):
            output = self.apply_layer(
                layer,
                x,
                lengths=lengths,
                is_causal=True,
                cache=None if caches is None else caches[index],
                cross_key_value=None if cross_key_values is None else cross_key_values[index],
                cross_lengths=cross_lengths,
                weights=weights,
                dropout_rate=dropout_rate,
                rngs=rngs,
            )
            x = output.values
            outputs.append(output)
            if output.cache is not None:
                new_caches.append(output.cache)
        return DecoderOutput(
            x if self.final_norm is None else self.final_norm(x),
            weights=stack_layers(outputs, "weights"),
            cross_weights=stack_layers(outputs, "cross_weights"),
            caches=tuple(new_caches) or None,
        )

    def project_cross(self, encoded: Float[Array, "B E D"]) -> tuple[KeyValue, ...]:
        """Return the keys and values of the cross-attention of every layer.

        They do not depend on the tokens of the decoder. A program that decodes one token at a time
        can therefore compute them once, before the first token.

        Args:
          encoded: Output of the encoder.

        Returns:
          For each layer, a pair of keys and values, each of shape (B, E, K, H).
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
            caches.append(
                KeyValueCache.empty(batch, room, heads, width, layer.attention.cache_dtype)
            )
        return tuple(caches)
