"""Causal language model: predicts the next token from all tokens before it.

With `cross_attention=True`, the model also attends to the output of an encoder. A translator uses
such a model as its decoder.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.methods import Sizes, get_method
from distattn_jax.models.sampling import Samples, sample
from distattn_jax.modules import Decoder, KeyValueCache, add_positions
from distattn_jax.modules.dropout import Rate, Rngs, dropout
from distattn_jax.modules.layer_stack import KeyValue
from distattn_jax.token_ids import END_ID, PADDING_ID
from distattn_jax.token_scores import token_logits


class LanguageModelOutput(NamedTuple):
    """Output of a language model. Fields that were not requested are None.

    `logits` are computed from the fields `features` and `table` at each access, because an array
    (B, T, V) may not fit into memory. `train.score_tokens` computes losses without this array.

    Attributes:
      features: Output of the decoder, from which the next token is predicted.
      table: Embeddings of the vocabulary.
      weights: Self-attention weights, for each layer and head.
      cross_weights: Cross-attention weights over the E positions of the encoder, for each layer and
        head.
      caches: New cache of each layer, with the keys and values of this call appended.
    """

    features: Float[Array, "B T D"]
    table: Float[Array, "V D"]
    weights: Float[Array, "B L N T S"] | None = None
    cross_weights: Float[Array, "B L N T E"] | None = None
    caches: tuple[KeyValueCache, ...] | None = None

    @property
    def logits(self) -> Float[Array, "*M B T V"]:
        """Logits of the next token, after each of the T tokens, in float32."""
        return token_logits(self.features, self.table)


class TokenEmbedding(nnx.Module):
    """Table of token embeddings, for the inputs and for the logits of a language model.

    The inputs are the embeddings multiplied by √D.

    Args:
      vocabulary: Size V of the vocabulary.
      features: Width D of the embeddings.
      position_scale: Factor that multiplies the sinusoidal position encodings, which are added to
        the inputs. None adds no encodings. A JAX array is stored like a parameter, but never
        trained.
      dtype: Dtype of the computation. None uses the dtype of the parameters, float32.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        vocabulary: int,
        features: int,
        *,
        position_scale: float | Float[Array, ""] | None,
        dtype: Any,
        rngs: nnx.Rngs,
    ):
        self.features = features
        is_array = isinstance(position_scale, jax.Array)
        self.position_scale = nnx.data(nnx.Param(position_scale)) if is_array else position_scale
        self.embedding = nnx.Embed(
            vocabulary,
            features,
            embedding_init=jax.nn.initializers.normal(features**-0.5),
            dtype=dtype,
            rngs=rngs,
        )

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        *,
        first: int | Int[Array, " B"] = 0,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the scaled embeddings of tokens, plus position encodings if the model uses them.

        Args:
          tokens: Token ids.
          first: Position of the first token: one integer for all examples, or one for each example.
          dropout_rate: Dropout rate of the embeddings. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        # The embeddings are rounded after the lookup, so that the gradient of the table, a sum over
        # all tokens, is a sum of float32 numbers.
        table = self.embedding.embedding[...]
        x = jnp.take(table, tokens, axis=0).astype(self.embedding.dtype)
        x = x * math.sqrt(self.features)
        scale = self.position_scale
        if isinstance(scale, nnx.Param):
            scale = jax.lax.stop_gradient(scale[...])
        if scale is not None:
            x = add_positions(x, first, scale=scale)
        return dropout(x, dropout_rate, rngs)


class LanguageModel(nnx.Module):
    """Causal Transformer language model with any attention method.

    The output layer uses the same table as the token embeddings.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding, id 2 ends a text.
      method: Name of the attention method, a key of `METHODS`.
      sizes: Sizes of the model.
      cross_attention: If True, every layer also attends to the output of an encoder.
      norm: Place of the layer norms, "after" or "before": see `TransformerLayer`.
      implementation: Implementation of `attention`, such as "xla". None selects the fastest.
      precision: Precision of the matrix products of attention layers, including their dense layers:
        see `attention`. None means the default of JAX.
      dtype: Dtype of the computation. None uses the dtype of the parameters, float32.
      remat: If True, the backward pass recomputes each layer instead of storing its residuals.
      rngs: Random number generators. The stream `params` draws the parameters.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        method: str,
        sizes: Sizes,
        cross_attention: bool = False,
        norm: str = "after",
        implementation: str | None = None,
        precision: Any = None,
        dtype: Any = None,
        remat: bool = False,
        rngs: nnx.Rngs,
    ):
        selected = get_method(method)
        self.embedding = TokenEmbedding(
            vocabulary,
            sizes.features,
            position_scale=selected.position_scale(sizes),
            dtype=dtype,
            rngs=rngs,
        )
        self.decoder = Decoder(
            **selected.stack_arguments(sizes),
            cross_attention=cross_attention,
            norm=norm,
            implementation=implementation,
            precision=precision,
            dtype=dtype,
            remat=remat,
            rngs=rngs,
        )

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"] | None = None,
        *,
        caches: Sequence[KeyValueCache] | None = None,
        cross_key_values: Sequence[KeyValue] | None = None,
        cross_lengths: Int[Array, " B"] | None = None,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        weights: bool = False,
    ) -> LanguageModelOutput:
        """Return an output with the logits of the next token, after each of the T tokens.

        Args:
          tokens: Token ids.
          lengths: Number of valid tokens of each text. The rest is padding.
          caches: Cache of each layer, with the keys and values of earlier tokens: see `Decoder`.
          cross_key_values: Keys and values of the cross-attention of each layer: see `Decoder`.
          cross_lengths: Number of valid positions of the encoder, for each example.
          weights: If True, also return the attention weights.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        first = 0 if caches is None else caches[0].lengths
        x = self.embedding(tokens, first=first, dropout_rate=dropout_rate, rngs=rngs)
        decoded = self.decoder(
            x,
            lengths=lengths,
            caches=caches,
            cross_key_values=cross_key_values,
            cross_lengths=cross_lengths,
            weights=weights,
            dropout_rate=dropout_rate,
            rngs=rngs,
        )
        return LanguageModelOutput(
            decoded.values,
            self.embedding.embedding.embedding[...],
            weights=decoded.weights,
            cross_weights=decoded.cross_weights,
            caches=decoded.caches,
        )

    def next_logits(
        self, tokens: Int[Array, " B"], caches: Sequence[KeyValueCache], **cross: Any
    ) -> tuple[Float[Array, "B V"], tuple[KeyValueCache, ...]]:
        """Append one token to each text. Return the logits of the next token, and the new caches.

        Args:
          tokens: Token to append to each text.
          caches: Cache of each layer, with the keys and values of earlier tokens.
          **cross: Arguments `cross_key_values` and `cross_lengths` of `__call__`.
        """
        output = self(tokens[:, None], caches=caches, **cross)
        assert output.caches is not None
        return output.logits[:, 0], output.caches

    def read_prompts(
        self,
        prompts: Int[Array, "B P"],
        lengths: Int[Array, " B"],
        *,
        new_tokens: int,
        **cross: Any,
    ) -> tuple[Int[Array, " B"], tuple[KeyValueCache, ...]]:
        """Compute the keys and values of the prompts, to continue the prompts with `next_logits`.

        Args:
          prompts: Token ids. Prompts of different lengths are padded at the end.
          lengths: Number of tokens of each prompt, at least 1.
          new_tokens: Largest number of tokens that will be appended to a prompt.
          **cross: Arguments `cross_key_values` and `cross_lengths` of `__call__`.

        Returns:
          The last token of each prompt, and caches of all earlier tokens. They are the arguments of
          the first call of `next_logits`.
        """
        batch, longest = prompts.shape
        caches = self.decoder.init_caches(batch, longest + new_tokens)
        if longest > 1:
            read = self(prompts, lengths - 1, caches=caches, **cross)
            assert read.caches is not None
            caches = read.caches
        last = jnp.take_along_axis(prompts, lengths[:, None] - 1, axis=1)[:, 0]
        return last, caches

    def generate(
        self,
        prompts: Int[Array, "B P"],
        lengths: Int[Array, " B"],
        *,
        new_tokens: int,
        key: Array | None = None,
        temperature: float | Float[Array, ""] = 1.0,
        top_p: float | Float[Array, ""] = 1.0,
    ) -> Samples:
        """Continue each prompt by sampling one token at a time.

        Inside of `nnx.jit`, the whole loop is one program on the device.

        Args:
          prompts: Token ids. Prompts of different lengths are padded at the end.
          lengths: Number of tokens of each prompt, at least 1.
          new_tokens: Largest number of tokens to append. A text ends earlier at the end token.
          key: PRNG key. None takes the most probable token every time.
          temperature: Divisor of the logits, above 0.
          top_p: Sample from the smallest set of most probable tokens whose total probability is at
            least `top_p`.

        Returns:
          The new tokens, without the prompts.
        """
        last, caches = self.read_prompts(prompts, lengths, new_tokens=new_tokens)
        return sample(
            self.next_logits,
            caches,
            last,
            max_lengths=jnp.full(len(last), new_tokens),
            longest=new_tokens,
            end=END_ID,
            pad=PADDING_ID,
            key=key,
            temperature=temperature,
            top_p=top_p,
        )
