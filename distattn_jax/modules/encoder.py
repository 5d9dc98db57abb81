"""Transformer encoder of any attention: blocks of attention and feed-forward, with residuals.

y = norm(x + attention(x)),   out = norm(y + FFN(y))          norm="after", as in the papers
y = x + attention(norm(x)),   out = y + FFN(norm(y))          norm="before"
FFN(x) = max(0, x W₁ + b₁) W₂ + b₂                            DA-Transformer eq. 4
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import Attended
from distattn_jax.modules.dropout import Rate, Rngs, dropout
from distattn_jax.modules.memory import SegmentMemory
from distattn_jax.modules.multi_head import MultiHeadAttention


class Encoded(NamedTuple):
    """What an encoder gives when more than its values is asked for."""

    values: Float[Array, "B T D"]
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None
    memory: SegmentMemory | None = None


class FeedForward(nnx.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at every position, with dropout in between."""

    def __init__(self, features: int, hidden_features: int, *, rngs: nnx.Rngs, **dtypes: Any):
        self.hidden = nnx.Linear(features, hidden_features, rngs=rngs, **dtypes)
        self.out = nnx.Linear(hidden_features, features, rngs=rngs, **dtypes)

    def __call__(self, x: Float[Array, "B T D"], rate: Rate, rngs: Rngs | None) -> Array:
        return self.out(dropout(jax.nn.relu(self.hidden(x)), rate, rngs))


class EncoderBlock(nnx.Module):
    """One layer: attention, then feed-forward, each with residual, layer norm and dropout.

    Args:
      features: D.
      num_heads: N.
      hidden_features: width inside the feed-forward network (default: 4 D).
      head_features: H (default: D / N).
      variant: a module that builds a variant; None: dot product.
      norm: layer norm "after" the residual, or "before" the layer.
      dropout_rate: of the attention weights, inside the feed-forward, and before each residual.
      implementation: as in `attention`.
      project_key, project_out: as in `MultiHeadAttention`.
      dtype: dtype of the computation (None: that of inputs and parameters).
      param_dtype: dtype of the parameters.
      rngs: draws the parameters.
    """

    def __init__(
        self,
        features: int,
        num_heads: int,
        *,
        hidden_features: int | None = None,
        head_features: int | None = None,
        variant: nnx.Module | None = None,
        norm: str = "after",
        dropout_rate: float = 0.0,
        implementation: str | None = None,
        project_key: bool = True,
        project_out: bool = True,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if norm not in ("after", "before"):
            raise ValueError(f"norm must be 'after' or 'before'; got {norm!r}.")
        if head_features is None and features % num_heads:
            raise ValueError(
                f"features ({features}) must be a multiple of num_heads ({num_heads}), "
                "or head_features be given."
            )
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.norm, self.dropout_rate = norm, dropout_rate
        self.attention = MultiHeadAttention(
            num_heads,
            features,
            num_heads * (head_features or features // num_heads),
            variant=variant,
            project_key=project_key,
            project_out=project_out,
            dropout_rate=dropout_rate,
            implementation=implementation,
            **dtypes,
        )
        self.feed_forward = FeedForward(features, hidden_features or 4 * features, **dtypes)
        self.attention_norm = nnx.LayerNorm(features, **dtypes)
        self.feed_forward_norm = nnx.LayerNorm(features, **dtypes)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        memory: Float[Array, "B M D"] | None = None,
        lengths: Int[Array, " B"] | None = None,
        mask: Bool[Array, "#B #N #T #S"] | None = None,
        is_causal: bool = False,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> Attended:
        """One layer; keys come from the memory, if there is one, and then from x."""
        rate = self.dropout_rate if dropout_rate is None else dropout_rate
        before = self.norm == "before"
        seen = x if memory is None else jnp.concatenate([memory.astype(x.dtype), x], axis=1)
        remembered = seen.shape[1] - x.shape[1]
        attended = self.attention(
            self.attention_norm(x) if before else x,
            self.attention_norm(seen) if before else seen,
            mask=mask,
            query_lengths=lengths,
            key_lengths=None if lengths is None else lengths + remembered,
            is_causal=is_causal,
            query_offset=remembered,
            dropout_rate=rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        if not isinstance(attended, Attended):
            attended = Attended(attended)
        y = x + dropout(attended.values, rate, rngs)
        if before:
            y += dropout(self.feed_forward(self.feed_forward_norm(y), rate, rngs), rate, rngs)
        else:
            y = self.attention_norm(y)
            y = self.feed_forward_norm(y + dropout(self.feed_forward(y, rate, rngs), rate, rngs))
        return attended._replace(values=y)


class Encoder(nnx.Module):
    """A stack of blocks.

    Args:
      num_layers: L.
      features: D.
      num_heads: N.
      variant: called as `variant(rngs=rngs)` for every layer, to make the module that builds its
        variant, e.g. `functools.partial(DistanceAware, num_heads)`; None: dot product.
      norm: as in `EncoderBlock`; "before" adds a layer norm at the end.
      dtype: dtype of the computation (None: that of inputs and parameters).
      param_dtype: dtype of the parameters.
      rngs: draws the parameters.
      **arguments: the other arguments of `EncoderBlock`.
    """

    def __init__(
        self,
        num_layers: int,
        features: int,
        num_heads: int,
        *,
        variant: Callable[..., nnx.Module] | None = None,
        norm: str = "after",
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
        **arguments: Any,
    ):
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.blocks = nnx.List(
            EncoderBlock(
                features,
                num_heads,
                variant=None if variant is None else variant(rngs=rngs),
                norm=norm,
                **dtypes,
                **arguments,
            )
            for _ in range(num_layers)
        )
        self.final_norm = nnx.data(nnx.LayerNorm(features, **dtypes) if norm == "before" else None)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        lengths: Int[Array, " B"] | None = None,
        mask: Bool[Array, "#B #N #T #S"] | None = None,
        is_causal: bool = False,
        memory: SegmentMemory | None = None,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
    ) -> Any:
        """All layers.

        Args:
          x: embedded tokens.
          lengths: right padding: tokens from there on neither give nor get attention.
          mask: as in `attention`; with a memory of M positions, S = M + T.
          is_causal: whether a token sees only itself and what came before it.
          memory: what the layers saw before; the result then holds the memory after.
          dropout_rate: instead of the constructor's; may be traced.
          rngs: generator of the dropout; None: no dropout.
          received, weights: also return these of every layer.

        Returns:
          The values, or an `Encoded` if anything more is asked for.
        """
        if memory is not None:
            mask = _without_empty_slots(mask, memory.filled, x.shape[1])
        inputs, extras = [], []
        for layer, block in enumerate(self.blocks):
            inputs.append(x)
            attended = block(
                x,
                memory=None if memory is None else memory.states[layer],
                lengths=lengths,
                mask=mask,
                is_causal=is_causal,
                dropout_rate=dropout_rate,
                rngs=rngs,
                received=received,
                weights=weights,
            )
            x = attended.values
            extras.append(attended[1:])
        if self.final_norm is not None:
            x = self.final_norm(x)
        if not (received or weights or memory is not None):
            return x
        received_by_layer, weights_by_layer = jax.tree.map(
            lambda *layers: jnp.stack(layers, axis=1), *extras
        )
        if memory is not None:
            memory = memory.after(jnp.stack(inputs), lengths)
        return Encoded(x, received_by_layer, weights_by_layer, memory)


def _without_empty_slots(mask: Array | None, filled: Bool[Array, "B M"], tokens: int) -> Array:
    """The mask over [memory, inputs] that also hides slots in which nothing is remembered."""
    known = jnp.pad(filled, ((0, 0), (0, tokens)), constant_values=True)[:, None, None, :]
    return known if mask is None else mask & known
