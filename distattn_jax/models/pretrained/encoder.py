"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and ALBERT (Lan et al. 2020) in Flax NNX.

x₀ = norm(token + position + type)                  ALBERT: a dense layer widens x₀ to D
y = norm(x + attention(x)),   x = norm(y + W₂ act(y W₁ + b₁) + b₂)          in each layer
pooled = tanh(x_CLS W + b)

The first position of RoBERTa is its padding id plus 1. ALBERT applies the same layer several times.
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
    """Normalized sum of token, position and type embeddings, computed in float32.

    For ALBERT, a dense layer widens the embeddings to the width D of the encoder.

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
        """Return the embeddings.

        Args:
          tokens: Token ids.
          types: Token types. None means type 0 for all tokens.
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
    """BERT, RoBERTa or ALBERT encoder with random parameters.

    `models.pretrained.load` returns an encoder with pre-trained parameters.

    Args:
      config: Configuration of the encoder.
      variant: Called as `variant(rngs=rngs)` once for each layer that has its own parameters, to
        make the module that builds the attention variant. None means dot-product attention.
      implementation: Implementation of the attention. None selects the fastest.
      dtype: Dtype of the computation. None uses the dtype of the parameters, float32.
      remat: Recompute each layer in the backward pass instead of storing its residuals.
      rngs: Random number generators. The stream `params` draws the parameters.
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
                kernel_init=normal_init,
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
        """Encode texts.

        Args:
          tokens: Token ids.
          lengths: Number of valid tokens of each text. The rest is padding.
          types: Token types, below `config.types`. None means type 0 for all tokens.
          dropout_rate: Replaces `dropout_rate` and `attention_dropout_rate` of the configuration.
            May be traced. None keeps the configured rates.
          rngs: Random number generators of dropout. None disables dropout.
          received: Also return the attention that each key receives, shape (B, L, N, S).
          weights: Also return the attention weights, shape (B, L, N, T, S).
          states: Also return the embeddings and the outputs of all layers, shape (B, L + 1, T, D).
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
    """Return a constructor of layer norms with the epsilon of the configuration."""
    return functools.partial(nnx.LayerNorm, epsilon=config.epsilon, use_fast_variance=False)


def _look_up(table: Float[Array, "R E"], indices: Int[Array, "B T"]) -> Float[Array, "B T E"]:
    """Return `table[indices]`, sharded like the indices, with NaN for indices outside the table."""
    sharding = jax.typeof(indices).sharding
    return table.at[indices].get(
        mode="fill", out_sharding=sharding.update(spec=PartitionSpec(*sharding.spec, None))
    )
