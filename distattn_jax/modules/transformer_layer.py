"""One Transformer layer with any attention variant: attention, then a feed-forward network.

y = norm(x + attention(x)),   out = norm(y + FFN(y))          norm="after", as in the papers
y = x + attention(norm(x)),   out = y + FFN(norm(y))          norm="before"
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Shaped

from distattn_jax.attention import Attended
from distattn_jax.modules.dropout import Rate, Rngs, dropout
from distattn_jax.modules.explicit_mesh import shard_alike
from distattn_jax.modules.feed_forward import FeedForward
from distattn_jax.modules.initializers import Initializer
from distattn_jax.modules.memory import SegmentMemory
from distattn_jax.modules.multi_head import MultiHeadAttention


class EncoderOutput(NamedTuple):
    """Output of a Transformer layer or of an encoder. Fields that were not requested are None.

    For a single layer, `received` and `weights` have no layer axis L.

    Attributes:
      values: Output of the last layer.
      received: Attention that each key receives, summed over the queries.
      weights: Attention weights of each query (T) over the keys (S).
      memory: Segment memory that includes this segment.
      states: Embeddings, followed by the outputs of all layers.
      pooled: Output of the pooler, one vector for each text.
    """

    values: Float[Array, "B T D"]
    received: Float[Array, "B *L N S"] | None = None
    weights: Float[Array, "B *L N T S"] | None = None
    memory: SegmentMemory | None = None
    states: Float[Array, "B L+1 T D"] | None = None
    pooled: Float[Array, "B D"] | None = None


class TransformerLayer(nnx.Module):
    """Attention and a feed-forward network, each with dropout, residual sum and layer norm.

    Args:
      features: Width D of inputs and outputs.
      num_heads: Number of attention heads N.
      hidden_features: Width inside the feed-forward network. None means 4 D.
      head_features: Width H of each head. None means D / N.
      num_key_value_heads: Number of heads of keys and values, a divisor of N. None means N.
      variant: Module that builds the attention variant. None means dot-product attention.
      norm: "after" normalizes each residual sum, "before" normalizes the inputs of the attention
        and of the feed-forward network.
      activation: Activation of the feed-forward network.
      layer_norm: Makes each of the two layer norms, called as `layer_norm(features, dtype=...,
        param_dtype=..., rngs=...)`.
      kernel_init: Initializer of the kernels of attention and feed-forward network.
      dropout_rate: Dropout rate before each residual sum.
      attention_dropout_rate: Dropout rate of the attention weights. None means `dropout_rate`.
      hidden_dropout: Also apply dropout to the hidden units of the feed-forward network.
      implementation: Implementation of the attention. None selects the fastest.
      project_key: Apply a dense layer to the keys. If False, the inputs are split into heads.
      project_out: Apply a dense layer to the output of the heads. If False, the heads are
        concatenated.
      scale: Factor of the products of queries and keys. None means the factor of the variant.
      local_window_size: Largest number of positions by which a visible key may be before and after
        the query, as a pair (left, right) or as one integer for both. None does not limit it.
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
        norm: str = "after",
        activation: Callable[[Array], Array] = jax.nn.relu,
        layer_norm: Callable[..., nnx.Module] = nnx.LayerNorm,
        kernel_init: Initializer = jax.nn.initializers.lecun_normal(),
        dropout_rate: float = 0.0,
        attention_dropout_rate: float | None = None,
        hidden_dropout: bool = True,
        implementation: str | None = None,
        project_key: bool = True,
        project_out: bool = True,
        scale: float | None = None,
        local_window_size: int | tuple[int, int] | None = None,
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
        self.norm, self.dropout_rate, self.hidden_dropout = norm, dropout_rate, hidden_dropout
        self.attention = MultiHeadAttention(
            num_heads,
            features,
            num_heads * (head_features or features // num_heads),
            num_key_value_heads=num_key_value_heads,
            variant=variant,
            project_key=project_key,
            project_out=project_out,
            scale=scale,
            local_window_size=local_window_size,
            kernel_init=kernel_init,
            dropout_rate=dropout_rate if attention_dropout_rate is None else attention_dropout_rate,
            implementation=implementation,
            **dtypes,
        )
        self.feed_forward = FeedForward(
            features,
            hidden_features or 4 * features,
            activation=activation,
            kernel_init=kernel_init,
            **dtypes,
        )
        self.attention_norm = layer_norm(features, **dtypes)
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
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> EncoderOutput:
        """Apply the layer.

        Args:
          x: Inputs, shape (B, T, D).
          memory: Inputs of M earlier positions, shape (B, M, D). Queries come from x, keys and
            values from the memory followed by x. Hence S = M + T.
          lengths: Number of valid positions of x in each example. The rest is padding.
          segments: Sequence of each position of x, shape (B, T), for several sequences packed into
            a row. Positions attend only to positions of the same sequence. Must be None with a
            memory.
          mask: True or 1 where a query may attend to a key, shape (B, N, T, S). Each axis may also
            have size 1.
          is_causal: Hide later positions from each query.
          dropout_rate: Replaces every dropout rate of the constructor. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
          received: Also return the attention that each key receives, shape (B, N, S).
          weights: Also return the attention weights, shape (B, N, T, S).
        """
        rate = self.dropout_rate if dropout_rate is None else dropout_rate
        before = self.norm == "before"
        context = x
        if memory is not None:
            if segments is not None:
                raise ValueError(
                    "segments must be None with a memory, whose positions have no segment; got "
                    f"shape {segments.shape}. Put each sequence into its own row."
                )
            context = jnp.concatenate(shard_alike(memory.astype(x.dtype), x, axis=1), axis=1)
        offset = context.shape[1] - x.shape[1]
        attended = self.attention(
            self.attention_norm(x) if before else x,
            self.attention_norm(context) if before else context,
            mask=mask,
            query_lengths=lengths,
            key_lengths=None if lengths is None else lengths + offset,
            is_causal=is_causal,
            query_offset=offset,
            query_segments=segments,
            key_segments=segments,
            dropout_rate=dropout_rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        if not (received or weights):
            attended = Attended(attended)
        y = x + dropout(attended.values, rate, rngs)
        if not before:
            y = self.attention_norm(y)
        hidden = self.feed_forward(
            self.feed_forward_norm(y) if before else y,
            dropout_rate=rate if self.hidden_dropout else 0.0,
            rngs=rngs,
        )
        y = y + dropout(hidden, rate, rngs)
        if not before:
            y = self.feed_forward_norm(y)
        return EncoderOutput(y, attended.received, attended.weights)
