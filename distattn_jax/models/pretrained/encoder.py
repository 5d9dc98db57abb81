"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ALBERT (Lan et al. 2020) in Flax NNX.

x₀ = norm(token + position + type)                  ALBERT: a dense layer widens x₀ to D
y = norm(x + attention(x)),   x = norm(y + W₂ act(y W₁ + b₁) + b₂)          in each layer
pooled = tanh(x_CLS W + b)

x_CLS is the output of the last layer at the first token. In RoBERTa, the first token has the
position padding id + 1. In ALBERT, several consecutive layers share their parameters.
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
from distattn_jax.modules.layer_stack import stack_layers

normal_init = jax.nn.initializers.normal(0.02)  # the initializer of all three papers
_dense = functools.partial(nnx.Linear, kernel_init=normal_init)


class Embeddings(nnx.Module):
    """Sum of token, position and type embeddings, with a layer norm, computed in float32.

    In ALBERT, a dense layer then projects the embeddings to the width D of the encoder.

    Args:
      config: Configuration of the encoder.
      dtype: Dtype of the output. None means float32.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(self, config: PretrainedConfig, *, dtype: Any = None, rngs: nnx.Rngs):
        embed = functools.partial(
            nnx.Embed, features=config.embedding_features, embedding_init=normal_init, rngs=rngs
        )
        self.first_position, self.max_length = config.first_position, config.max_length
        self.dtype = dtype
        self.tokens = embed(config.vocabulary)
        self.positions = embed(config.positions)
        self.types = embed(config.types)
        self.norm = _layer_norm(config)(config.embedding_features, rngs=rngs)
        project = None
        if config.family == "albert":
            project = _dense(config.embedding_features, config.features, dtype=dtype, rngs=rngs)
        self.project = nnx.data(project)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        types: Int[Array, "B T"] | None = None,
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the embedding of each token.

        Args:
          tokens: Token ids.
          types: Token type of each token. None means type 0 for all tokens.
          dropout_rate: Dropout rate of the embeddings. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        length = tokens.shape[1]
        if length > self.max_length:
            raise ValueError(
                f"tokens must have at most {self.max_length} columns, one for each position of the "
                f"model; got {length}."
            )
        first = self.first_position
        positions = self.positions.embedding[...][first : first + length]
        if types is None:
            type_vectors = self.types.embedding[...][None, :1]
        else:
            type_vectors = _look_up(self.types.embedding[...], types)
        x = _look_up(self.tokens.embedding[...], tokens) + positions[None] + type_vectors
        x = dropout(self.norm(x), dropout_rate, rngs)
        x = x if self.dtype is None else x.astype(self.dtype)
        return x if self.project is None else self.project(x)


class PretrainedEncoder(nnx.Module):
    """BERT, RoBERTa or ALBERT encoder.

    The constructor draws random parameters. `models.pretrained.load` returns an encoder with
    pre-trained parameters.

    Args:
      config: Configuration of the encoder.
      variant: Function that makes the attention module of one layer, e.g.
        `functools.partial(DistanceAware, num_heads)`. It is called as `variant(rngs=rngs)`, once
        for each layer with its own parameters. None means dot-product attention.
      implementation: Implementation of `attention`, such as "xla". None selects the fastest.
      precision: Precision of the matrix products of attention layers, including their dense layers:
        see `attention`. None means the default of JAX.
      dtype: Dtype of the computation. None uses the dtype of the parameters, float32.
      remat: If True, the backward pass recomputes each layer instead of storing its residuals.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        config: PretrainedConfig,
        *,
        variant: Callable[..., nnx.Module] | None = None,
        implementation: str | None = None,
        precision: Any = None,
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
                kernel_init=normal_init,
                dropout_rate=config.dropout_rate,
                attention_dropout_rate=config.attention_dropout_rate,
                hidden_dropout=False,
                implementation=implementation,
                precision=precision,
                dtype=dtype,
                rngs=rngs,
            )
            for _ in range(config.groups)
        )
        pooler = None
        if config.pooler:
            pooler = _dense(config.features, config.features, dtype=dtype, rngs=rngs)
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
        """Encode texts. Return one vector for each token, and the pooled vector of each text.

        Args:
          tokens: Token ids.
          lengths: Number of valid tokens of each text. The rest is padding.
          types: Token type of each token, from 0 to `config.types` - 1. None means type 0 for all.
          dropout_rate: Replaces `dropout_rate` and `attention_dropout_rate` of the configuration.
            May be traced. None keeps the configured rates.
          rngs: Random number generators of dropout. None disables dropout.
          received: If True, also return the attention weights of each key, summed over the queries,
            shape (B, L, N, S).
          weights: If True, also return the attention weights, shape (B, L, N, T, S).
          states: If True, also return the embeddings and the outputs of all layers, shape
            (B, L + 1, T, D).
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
        x = self.embeddings(tokens, types, dropout_rate=rate, rngs=rngs)
        all_states, outputs = [x], []
        for index in range(self.config.layers):
            layer = self.layers[index * self.config.groups // self.config.layers]
            output = apply(layer, x, None if rngs is None else dropout_key(rngs))
            x = output.values
            all_states.append(x)
            outputs.append(output)
        return EncoderOutput(
            x,
            received=stack_layers(outputs, "received"),
            weights=stack_layers(outputs, "weights"),
            states=jnp.stack(all_states, axis=1) if states else None,
            pooled=None if self.pooler is None else jnp.tanh(self.pooler(x[:, 0])),
        )


def _layer_norm(config: PretrainedConfig) -> Callable[..., nnx.LayerNorm]:
    """Return a function that makes layer norms with the epsilon of the configuration."""
    return functools.partial(nnx.LayerNorm, epsilon=config.epsilon, use_fast_variance=False)


def _look_up(table: Float[Array, "R E"], indices: Int[Array, "B T"]) -> Float[Array, "B T E"]:
    """Return `table[indices]`, sharded like `indices`. Rows that do not exist are NaN."""
    sharding = jax.typeof(indices).sharding
    return table.at[indices].get(
        mode="fill", out_sharding=sharding.update(spec=PartitionSpec(*sharding.spec, None))
    )
