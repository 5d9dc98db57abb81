"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ALBERT (Lan et al. 2020) in Flax NNX.

x₀ = norm(token + position + type)                  ALBERT: narrow, then one Dense to D
y = norm(x + attention(x)),   x = norm(y + W₂ act(y W₁ + b₁) + b₂)          in every layer
pooled = tanh(x_CLS W + b)

RoBERTa counts positions from the token of padding on; ALBERT uses the same layer several times.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from distattn_jax.models.pretrained.config import ACTIVATIONS, PretrainedConfig
from distattn_jax.modules import EncoderOutput, TransformerLayer, dropout
from distattn_jax.modules.dropout import Rate, Rngs, dropout_key
from distattn_jax.modules.encoder import stack_layers

initial = jax.nn.initializers.normal(0.02)  # as the families' authors draw all of it


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
        self.norm = _layer_norm(config)(config.embedding_features, rngs=rngs)
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
            TransformerLayer(
                config.features,
                config.heads,
                hidden_features=config.hidden_features,
                variant=None if variant is None else variant(rngs=rngs),
                activation=ACTIVATIONS[config.activation],
                layer_norm=_layer_norm(config),
                kernel_init=initial,
                dropout_rate=config.dropout_rate,
                attention_dropout_rate=config.attention_dropout_rate,
                hidden_dropout=False,
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
    ) -> EncoderOutput:
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
        rate = self.config.dropout_rate if dropout_rate is None else dropout_rate

        def apply(layer: TransformerLayer, x: Array, key: Array | None) -> EncoderOutput:
            return layer(
                x,
                lengths=lengths,
                dropout_rate=dropout_rate,
                rngs=None if key is None else nnx.Rngs(dropout=key),
                received=received,
                weights=weights,
            )

        apply = jax.checkpoint(apply) if self.remat else apply
        x = self.embeddings(tokens, types, rate, rngs)
        all_states, outputs = [x], []
        for index in range(self.config.layers):
            layer = self.layers[index * self.config.groups // self.config.layers]
            output = apply(layer, x, None if rngs is None else dropout_key(rngs))
            x = output.values
            all_states.append(x)
            outputs.append(output)
        return EncoderOutput(
            x,
            received=stack_layers(outputs, "received") if received else None,
            weights=stack_layers(outputs, "weights") if weights else None,
            states=jnp.stack(all_states, axis=1) if states else None,
            pooled=None if self.pooler is None else jnp.tanh(self.pooler(x[:, 0])),
        )


def _layer_norm(config: PretrainedConfig) -> Callable[..., nnx.LayerNorm]:
    """Return the constructor of layer norms that agree with transformers."""
    return functools.partial(nnx.LayerNorm, epsilon=config.epsilon, use_fast_variance=False)


def _rows(table: Float[Array, "R E"], indices: Int[Array, "B T"]) -> Float[Array, "B T E"]:
    """table[indices], sharded as the indices are; a row that does not exist is NaN."""
    sharding = jax.typeof(indices).sharding
    return table.at[indices].get(
        mode="fill", out_sharding=sharding.update(spec=PartitionSpec(*sharding.spec, None))
    )
