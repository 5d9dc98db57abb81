"""One Transformer layer with any attention variant: attention, then a feed-forward network.

y = norm(x + attention(x)),   out = norm(y + FFN(y))          norm="after", as in the papers
y = x + attention(norm(x)),   out = y + FFN(norm(y))          norm="before"

With `cross_attention=True`, a layer also attends to the output of an encoder. Cross-attention comes
between self-attention and the feed-forward network, and has its own residual connection and layer
norm.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Shaped

from distattn_jax.attention import Attended, Rotary
from distattn_jax.attention.validation import check_flags, validate_lengths
from distattn_jax.modules.dropout import Rate, Rngs, dropout
from distattn_jax.modules.explicit_mesh import shard_alike
from distattn_jax.modules.feed_forward import FeedForward
from distattn_jax.modules.initializers import Initializer
from distattn_jax.modules.key_value_cache import KeyValueCache
from distattn_jax.modules.memory import SegmentMemory
from distattn_jax.modules.multi_head import MultiHeadAttention


class EncoderOutput(NamedTuple):
    """Output of one Transformer layer, or of an encoder. Fields that were not requested are None.

    `received` and `weights` have a layer axis L if they come from an encoder.

    Attributes:
      values: Output of the layer, or of the last layer of the encoder.
      received: Attention weights of each key, summed over the queries.
      weights: Attention weights of the T queries over the S keys.
      memory: New segment memory, with the tokens of this call appended.
      states: Embeddings, followed by the outputs of the L layers.
      pooled: One vector for each text, from the pooler of a pretrained encoder.
      cross_weights: Cross-attention weights of the T queries over the E positions of the encoder.
      cache: New cache, with the keys and values of this call appended.
    """

    values: Float[Array, "B T D"]
    received: Float[Array, "B *L N S"] | None = None
    weights: Float[Array, "B *L N T S"] | None = None
    memory: SegmentMemory | None = None
    states: Float[Array, "B L+1 T D"] | None = None
    pooled: Float[Array, "B D"] | None = None
    cross_weights: Float[Array, "B N T E"] | None = None
    cache: KeyValueCache | None = None


class TransformerLayer(nnx.Module):
    """Self-attention and a feed-forward network, each with dropout, residual sum and layer norm.

    Args:
      features: Width D of inputs and outputs.
      num_heads: Number of attention heads N.
      hidden_features: Width inside the feed-forward network. None means 4 D.
      head_features: Width H of each head. None means D / N.
      num_key_value_heads: Number of heads K of keys and values, a divisor of N. None means N.
      variant: Module that returns an attention variant when called. None means dot-product
        attention.
      rotary: Rotary positions, which rotate queries and keys of self-attention. None means no
        rotation.
      norm: "after" normalizes each residual sum, "before" normalizes the inputs of the attention
        and of the feed-forward network.
      activation: Activation of the feed-forward network.
      layer_norm: Function that makes a layer norm. It is called as `layer_norm(features, dtype=...,
        param_dtype=..., rngs=...)`.
      kernel_init: Initializer of the kernels of attention and feed-forward network.
      dropout_rate: Dropout rate of the outputs of attention and of the feed-forward network, which
        are then added to the residual.
      attention_dropout_rate: Dropout rate of the attention weights. None means `dropout_rate`.
      attention_dropout: If False, the attention weights have no dropout.
      hidden_dropout: If True, `dropout_rate` also applies to the hidden units of the feed-forward
        network.
      implementation: Implementation of `attention`, such as "xla". None selects the fastest.
      precision: Precision of the matrix products of attention layers, including their dense layers:
        see `attention`. None means the default of JAX.
      project_key: If True, a dense layer computes the keys from the inputs. If False, the inputs
        are split into heads and used as keys.
      project_out: If True, a dense layer computes the output of attention from the heads. If False,
        the output is the concatenation of the heads.
      scale: Factor that multiplies the dot products of queries and keys. None means the default of
        the variant.
      local_window_size: Pair (left, right). A query attends to keys at most `left` positions before
        it and at most `right` positions after it. One integer stands for both. None means that keys
        at all distances are visible.
      cross_attention: If True, the layer also attends to the output of an encoder, with dot-product
        attention and without rotation.
      dtype: Dtype of the computation. None uses the promoted dtype of inputs and parameters.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        hidden_features: int | None = None,
        head_features: int | None = None,
        num_key_value_heads: int | None = None,
        variant: nnx.Module | None = None,
        rotary: Rotary | None = None,
        norm: str = "after",
        activation: Callable[[Array], Array] = jax.nn.relu,
        layer_norm: Callable[..., nnx.Module] = nnx.LayerNorm,
        kernel_init: Initializer = jax.nn.initializers.lecun_normal(),
        dropout_rate: float = 0.0,
        attention_dropout_rate: float | None = None,
        attention_dropout: bool = True,
        hidden_dropout: bool = True,
        implementation: str | None = None,
        precision: Any = None,
        project_key: bool = True,
        project_out: bool = True,
        scale: float | None = None,
        local_window_size: int | tuple[int, int] | None = None,
        cross_attention: bool = False,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if norm not in ("after", "before"):
            raise ValueError(f"norm must be 'after' or 'before'; got {norm!r}.")
        if head_features is None and features % num_heads:
            raise ValueError(
                f"features ({features}) must be a multiple of num_heads ({num_heads}), "
                "unless head_features is given."
            )
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.norm, self.dropout_rate = norm, dropout_rate
        self.attention_dropout, self.hidden_dropout = attention_dropout, hidden_dropout
        make_attention = functools.partial(
            MultiHeadAttention,
            num_heads,
            features,
            num_heads * (head_features or features // num_heads),
            num_key_value_heads=num_key_value_heads,
            kernel_init=kernel_init,
            dropout_rate=dropout_rate if attention_dropout_rate is None else attention_dropout_rate,
            implementation=implementation,
            precision=precision,
            **dtypes,
        )
        self.attention = make_attention(
            variant=variant,
            rotary=rotary,
            project_key=project_key,
            project_out=project_out,
            scale=scale,
            local_window_size=local_window_size,
        )
        self.cross_attention = nnx.data(make_attention() if cross_attention else None)
        self.feed_forward = FeedForward(
            features,
            hidden_features or 4 * features,
            activation=activation,
            kernel_init=kernel_init,
            **dtypes,
        )
        self.attention_norm = layer_norm(features, **dtypes)
        self.cross_attention_norm = nnx.data(
            layer_norm(features, **dtypes) if cross_attention else None
        )
        self.feed_forward_norm = layer_norm(features, **dtypes)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        memory: Float[Array, "B M D"] | None = None,
        lengths: Int[Array, " B"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        mask: Shaped[Array, "#B #N #T #S"] | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
        cross_key_value: tuple[Array, Array] | None = None,
        cross_lengths: Int[Array, " B"] | None = None,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> EncoderOutput:
        """Apply the layer to inputs of shape (B, T, D). The output has the same shape.

        Args:
          x: Inputs, shape (B, T, D).
          memory: Inputs of the layer for M earlier positions, shape (B, M, D). Queries come from x.
            Keys and values come from the memory followed by x, so that S = M + T.
          lengths: Number of positions of x before the padding, for each example. None means no
            padding.
          segments: Sequence number of each position of x, shape (B, T), for several
            sequences packed into a row. Positions attend only to positions of the same sequence.
            Must be None with a memory or a cache.
          mask: True or 1 where a query may attend to a key, shape (B, N, T, S). Each axis may also
            have size 1.
          is_causal: If True, a position attends only to itself and to earlier positions.
          cache: Keys and values of earlier positions. Attention with a cache is always causal. The
            output contains a new cache, with the keys and values of x appended. Must be None with a
            memory.
          cross_key_value: Keys and values of the cross-attention, from `project_cross`.
          cross_lengths: Number of keys of the cross-attention before the padding, for each example.
            None means no padding.
          dropout_rate: Replaces every dropout rate of the constructor. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, N, S).
          weights: If True, also return the weights of self-attention, shape (B, N, T, S), and of
            cross-attention, shape (B, N, T, E).
        """
        if (self.cross_attention is None) != (cross_key_value is None):
            raise ValueError(
                "cross_key_value must be given if and only if cross_attention=True; got "
                f"{'None' if cross_key_value is None else 'keys and values'}."
            )
        rate = self.dropout_rate if dropout_rate is None else dropout_rate
        lengths = validate_lengths("lengths", lengths, x.shape[:1], x.shape[1])
        shared: dict[str, Any] = {
            "query_lengths": lengths,
            "dropout_rate": dropout_rate if self.attention_dropout else 0.0,
            "rngs": rngs,
            "weights": weights,
        }
        arguments: dict[str, Any] = {
            "mask": mask,
            "is_causal": is_causal,
            "received": received,
            **shared,
        }
        if cache is None:
            attended = self._attend(x, memory, lengths, segments, arguments)
        else:
            check_flags(is_causal=is_causal)
            _check_cache(memory, segments)
            attended, cache = self._attend_to_cache(x, cache, lengths, arguments)
        y = self._add(x, attended.values, self.attention_norm, rate, rngs)
        cross_weights = None
        if self.cross_attention is not None:
            crossed = self._attend_to_encoder(y, cross_key_value, cross_lengths, shared)
            y = self._add(y, crossed.values, self.cross_attention_norm, rate, rngs)
            cross_weights = crossed.weights
        hidden = self.feed_forward(
            self._normalize_input(y, self.feed_forward_norm),
            dropout_rate=rate if self.hidden_dropout else 0.0,
            rngs=rngs,
        )
        y = self._add(y, hidden, self.feed_forward_norm, rate, rngs)
        return EncoderOutput(
            y, attended.received, attended.weights, cross_weights=cross_weights, cache=cache
        )

    def project_cross(self, encoded: Float[Array, "B E D"]) -> tuple[Array, Array]:
        """Return the keys and values of the cross-attention, for the argument `cross_key_value`.

        Args:
          encoded: Output of the encoder.
        """
        if self.cross_attention is None:
            raise ValueError("cross_attention must be True for project_cross; got False.")
        return self.cross_attention.project_key_value(encoded)

    def _attend(
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B M D"] | None,
        lengths: Int[Array, " B"] | None,
        segments: Int[Array, "B T"] | None,
        arguments: dict[str, Any],
    ) -> Attended:
        """Compute self-attention. Keys and values come from the memory (if any) followed by x.

        Args:
          x: Inputs of the layer.
          memory: Inputs of the layer for earlier positions, or None.
          lengths: Number of positions of x before the padding, or None.
          segments: Sequence number of each position of x, or None.
          arguments: Other arguments of `MultiHeadAttention.__call__`.
        """
        context = x
        if memory is not None:
            if segments is not None:
                raise ValueError(
                    "segments must be None with a memory, whose positions have no segment; got "
                    f"shape {segments.shape}. Put each sequence into its own row."
                )
            context = jnp.concatenate(shard_alike(memory.astype(x.dtype), x, axis=1), axis=1)
        offset = context.shape[1] - x.shape[1]
        return _as_attended(
            self.attention(
                self._normalize_input(x, self.attention_norm),
                self._normalize_input(context, self.attention_norm),
                key_lengths=None if lengths is None else lengths + offset,
                query_offset=offset,
                query_segments=segments,
                key_segments=segments,
                **arguments,
            )
        )

    def _attend_to_cache(
        self,
        x: Float[Array, "B T D"],
        cache: KeyValueCache,
        lengths: Int[Array, " B"] | None,
        arguments: dict[str, Any],
    ) -> tuple[Attended, KeyValueCache]:
        """Append the keys and values of x to the cache, and attend causally to the new cache."""
        inputs = self._normalize_input(x, self.attention_norm)
        key_value = self.attention.project_key_value(inputs, positions=cache.lengths)
        appended = cache.append(*key_value, lengths)
        attended = self.attention(
            inputs,
            key_value=(appended.key, appended.value),
            query_offset=cache.lengths,
            **{**arguments, "is_causal": True},
        )
        return _as_attended(attended), appended

    def _attend_to_encoder(
        self,
        x: Float[Array, "B T D"],
        key_value: tuple[Array, Array] | None,
        lengths: Int[Array, " B"] | None,
        arguments: dict[str, Any],
    ) -> Attended:
        """Compute cross-attention: queries from x, and the given keys and values of an encoder."""
        assert self.cross_attention is not None
        inputs = self._normalize_input(x, self.cross_attention_norm)
        return _as_attended(
            self.cross_attention(inputs, key_value=key_value, key_lengths=lengths, **arguments)
        )

    def _normalize_input(self, x: Array, norm: Any) -> Array:
        """Return norm(x) if the layer was made with norm="before", otherwise x."""
        return norm(x) if self.norm == "before" else x

    def _add(
        self, x: Array, update: Array, norm: Any, rate: Rate, rngs: Rngs | None
    ) -> Float[Array, "B T D"]:
        """Return x + dropout(update), normalized if the layer was made with norm="after"."""
        y = x + dropout(update, rate, rngs)
        return y if self.norm == "before" else norm(y)


def _as_attended(output: Any) -> Attended:
    """Return the output of `MultiHeadAttention`, an array or an `Attended`, as an `Attended`."""
    return output if isinstance(output, Attended) else Attended(output)


def _check_cache(memory: Array | None, segments: Array | None) -> None:
    """Raise a ValueError unless memory and segments are None, which a cache requires."""
    for name, value in (("memory", memory), ("segments", segments)):
        if value is not None:
            raise ValueError(f"{name} must be None with a cache; got shape {value.shape}.")
