"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ALBERT (Lan et al. 2020) in Flax NNX.

x₀ = norm(token + position + type)                  ALBERT: narrow, then one Dense to D
y = norm(x + attention(x)),   x = norm(y + W₂ act(y W₁ + b₁) + b₂)          in every layer
pooled = tanh(x_CLS W + b)

RoBERTa counts positions from the token of padding on; ALBERT uses the same layer several times.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from distattn_jax.attention import Attended
from distattn_jax.models.pretrained.config import ACTIVATIONS, PretrainedConfig
from distattn_jax.modules import MultiHeadAttention, dropout
from distattn_jax.modules.dropout import Rate, Rngs, dropout_key

initial = jax.nn.initializers.normal(0.02)  # as the families' authors draw all of it


class Understood(NamedTuple):
    """What an encoder makes of texts; None: not asked for, or not there (`pooled`).

    Attributes:
      values: of the last layer.
      pooled: tanh of one Dense of the first token's values.
      received: attention that each token receives, by layer and head.
      weights: the attention maps.
      states: the embeddings, and the values of every layer.
    """

    values: Float[Array, "B T D"]
    pooled: Float[Array, "B D"] | None = None
    received: Float[Array, "B L N S"] | None = None
    weights: Float[Array, "B L N T S"] | None = None
    states: Float[Array, "B M T D"] | None = None  # M = L + 1


class Embeddings(nnx.Module):
    """Tokens, positions and types to vectors; summed and normalised in float32 always."""

    def __init__(self, config: PretrainedConfig, *, dtype: Any = None, rngs: nnx.Rngs):
        table = functools.partial(
            nnx.Embed, features=config.embedding_features, embedding_init=initial, rngs=rngs
        )
        self.first, self.longest, self.dtype = config.first_position, config.longest, dtype
        self.tokens = table(config.vocabulary)
        self.positions = table(config.positions)
        self.types = table(config.types)
        self.norm = _norm(config, config.embedding_features, rngs=rngs)
        project = None
        if config.family == "albert":
            project = nnx.Linear(
                config.embedding_features,
                config.features,
                kernel_init=initial,
                dtype=dtype,
                rngs=rngs,
            )
        self.project = nnx.data(project)

    def __call__(
        self, tokens: Int[Array, "B T"], types: Int[Array, "B T"] | None, rate: Rate, rngs: Any
    ) -> Float[Array, "B T D"]:
        length = tokens.shape[1]
        if length > self.longest:
            raise ValueError(
                f"tokens must be at most {self.longest} a text, as many as there are positions; "
                f"got {length}."
            )
        positions = self.positions.embedding[...][self.first : self.first + length]
        if types is None:
            kinds = self.types.embedding[...][None, :1]
        else:
            kinds = _rows(self.types.embedding[...], types)
        x = _rows(self.tokens.embedding[...], tokens) + positions[None] + kinds
        x = dropout(self.norm(x), rate, rngs)
        x = x if self.dtype is None else x.astype(self.dtype)
        return x if self.project is None else self.project(x)


class FeedForward(nnx.Module):
    """act(x W₁ + b₁) W₂ + b₂ at every position."""

    def __init__(self, config: PretrainedConfig, *, dtype: Any = None, rngs: nnx.Rngs):
        linear = functools.partial(nnx.Linear, kernel_init=initial, dtype=dtype, rngs=rngs)
        self.activation = config.activation
        self.hidden = linear(config.features, config.hidden_features)
        self.out = linear(config.hidden_features, config.features)

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        hidden = ACTIVATIONS[self.activation](self.hidden(x))
        return self.out(hidden, out_sharding=jax.typeof(x).sharding)


class PretrainedLayer(nnx.Module):
    """Attention, then feed-forward, each with dropout, residual and layer norm."""

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        variant: nnx.Module | None = None,
        implementation: str | None = None,
        dtype: Any = None,
        rngs: nnx.Rngs,
    ):
        self.attention = MultiHeadAttention(
            config.heads,
            config.features,
            variant=variant,
            implementation=implementation,
            kernel_init=initial,
            dtype=dtype,
            rngs=rngs,
        )
        self.attention_norm = _norm(config, config.features, dtype=dtype, rngs=rngs)
        self.feed_forward = FeedForward(config, dtype=dtype, rngs=rngs)
        self.feed_forward_norm = _norm(config, config.features, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        lengths: Int[Array, " B"],
        *,
        rate: Rate,
        attention_rate: Rate,
        rngs: Rngs | None,
        received: bool,
        weights: bool,
    ) -> Attended:
        attended = self.attention(
            x,
            query_lengths=lengths,
            key_lengths=lengths,
            dropout_rate=attention_rate,
            rngs=rngs,
            received=received,
            weights=weights,
        )
        if not isinstance(attended, Attended):
            attended = Attended(attended)
        y = self.attention_norm(x + dropout(attended.values, rate, rngs))
        x = self.feed_forward_norm(y + dropout(self.feed_forward(y), rate, rngs))
        return attended._replace(values=x)


class PretrainedEncoder(nnx.Module):
    """BERT, RoBERTa or ALBERT with drawn parameters; `load` gives one with trained ones.

    Args:
      config: what it is made of.
      variant: called as `variant(rngs=rngs)` for every layer with parameters of its own, to make
        the module that builds its attention; None: dot product, as it was trained.
      implementation: as in `attention`.
      dtype: dtype of the computation (None: that of the parameters, float32).
      remat: whether a layer is computed again for its gradient, instead of kept in memory.
      rngs: draws the parameters.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        variant: Callable[..., nnx.Module] | None = None,
        implementation: str | None = None,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        self.config, self.remat = config, remat
        self.embeddings = Embeddings(config, dtype=dtype, rngs=rngs)
        self.layers = nnx.List(
            PretrainedLayer(
                config,
                variant=None if variant is None else variant(rngs=rngs),
                implementation=implementation,
                dtype=dtype,
                rngs=rngs,
            )
            for _ in range(config.groups)
        )
        pooler = None
        if config.pooler:
            pooler = nnx.Linear(
                config.features, config.features, kernel_init=initial, dtype=dtype, rngs=rngs
            )
        self.pooler = nnx.data(pooler)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        types: Int[Array, "B T"] | None = None,
        *,
        dropout_rate: Rate | None = None,
        rngs: Rngs | None = None,
        received: bool = False,
        weights: bool = False,
        states: bool = False,
    ) -> Understood:
        """All layers.

        Args:
          tokens: ids, padded on the right.
          lengths: how many of a text's tokens are its own.
          types: token types, below `config.types`; None: all 0.
          dropout_rate: instead of both of the config's; may be traced.
          rngs: generator of the dropout; None: no dropout.
          received, weights: also return these of every layer.
          states: also return the embeddings and the values of every layer.
        """
        rates = (self.config.dropout_rate, self.config.attention_dropout_rate)
        rate, attention_rate = rates if dropout_rate is None else (dropout_rate, dropout_rate)

        def apply(layer: PretrainedLayer, x: Array, key: Array | None) -> Attended:
            return layer(
                x,
                lengths,
                rate=rate,
                attention_rate=attention_rate,
                rngs=None if key is None else nnx.Rngs(dropout=key),
                received=received,
                weights=weights,
            )

        apply = jax.checkpoint(apply) if self.remat else apply
        x = self.embeddings(tokens, types, rate, rngs)
        every, extras = [x], []
        for number in range(self.config.layers):
            layer = self.layers[number * self.config.groups // self.config.layers]
            attended = apply(layer, x, None if rngs is None else dropout_key(rngs))
            x = attended.values
            every.append(x)
            extras.append(attended[1:])
        all_received, all_weights = jax.tree.map(lambda *each: jnp.stack(each, axis=1), *extras)
        pooled = None if self.pooler is None else jnp.tanh(self.pooler(x[:, 0]))
        all_states = jnp.stack(every, axis=1) if states else None
        return Understood(x, pooled, all_received, all_weights, all_states)


def _norm(config: PretrainedConfig, width: int, **arguments: Any) -> nnx.LayerNorm:
    return nnx.LayerNorm(width, epsilon=config.epsilon, use_fast_variance=False, **arguments)


def _rows(table: Float[Array, "R E"], indices: Int[Array, "B T"]) -> Float[Array, "B T E"]:
    """table[indices], sharded as the indices are; a row that does not exist is NaN."""
    sharding = jax.typeof(indices).sharding
    return table.at[indices].get(
        mode="fill", out_sharding=sharding.update(spec=PartitionSpec(*sharding.spec, None))
    )
