"""Encoder-decoder Transformer that translates (Vaswani et al. 2017, Shaw et al. 2018)."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.beam_search import (
    BEAM_SIZE,
    LENGTH_PENALTY,
    Hypotheses,
    beam_search,
    length_penalty_of,
)
from distattn_jax.models.language_model import LanguageModel
from distattn_jax.models.methods import Sizes, get_method
from distattn_jax.models.sampling import Samples, sample
from distattn_jax.modules import Encoder, EncoderOutput
from distattn_jax.modules.dropout import Rate, Rngs
from distattn_jax.token_ids import END_ID, PADDING_ID


class TranslatorOutput(NamedTuple):
    """Output of a translator. Weights that were not requested are None.

    Attributes:
      logits: For each token of `target_inputs`, the unnormalized log-probabilities of the next
        token.
      encoder_weights: Attention weights of the source tokens over the source tokens.
      decoder_weights: Attention weights of the target tokens over the target tokens.
      cross_weights: Attention weights of the target tokens over the source tokens.
    """

    logits: Float[Array, "B T V"]
    encoder_weights: Float[Array, "B L N S S"] | None = None
    decoder_weights: Float[Array, "B L N T T"] | None = None
    cross_weights: Float[Array, "B L N T S"] | None = None


class Translator(nnx.Module):
    """Encoder-decoder Transformer with any attention method.

    The self-attention of encoder and decoder uses the method. Cross-attention is always dot-product
    attention. The embeddings of source and target and the output layer share one table.

    Args:
      vocabulary: Size V of the vocabulary of both languages. Token id 0 is padding. Id 2 ends a
        sentence, and is also the first input of the decoder.
      method: Name of the attention method, a key of `METHODS`.
      sizes: Sizes of encoder and decoder, which have the same number of layers.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `norm`, `implementation` and `dtype` of `LanguageModel`.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        method: str,
        sizes: Sizes,
        rngs: nnx.Rngs,
        **arguments: Any,
    ):
        stack_arguments = get_method(method).stack_arguments(sizes)
        self.encoder = Encoder(**stack_arguments, rngs=rngs, **arguments)
        self.decoder = LanguageModel(
            vocabulary, method=method, sizes=sizes, cross_attention=True, rngs=rngs, **arguments
        )

    def __call__(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        target_inputs: Int[Array, "B T"],
        target_lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        weights: bool = False,
    ) -> TranslatorOutput:
        """Return the logits of the target tokens.

        Args:
          source: Token ids of the source sentences.
          source_lengths: Number of valid source tokens. The rest is padding.
          target_inputs: Target tokens, shifted by one position with `shift_right`.
          target_lengths: Number of valid target tokens. The rest is padding.
          weights: Also return the attention weights.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        encoded = self.encode(
            source, source_lengths, weights=weights, dropout_rate=dropout_rate, rngs=rngs
        )
        decoded = self.decoder(
            target_inputs,
            target_lengths,
            **self.cross_arguments(encoded, source_lengths),
            weights=weights,
            dropout_rate=dropout_rate,
            rngs=rngs,
        )
        return TranslatorOutput(
            decoded.logits, encoded.weights, decoded.weights, decoded.cross_weights
        )

    def encode(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
        weights: bool = False,
    ) -> EncoderOutput:
        """Return the output of the encoder. `__call__` describes the arguments."""
        x = self.decoder.embedding(source, dropout_rate=dropout_rate, rngs=rngs)
        return self.encoder(
            x, lengths=source_lengths, weights=weights, dropout_rate=dropout_rate, rngs=rngs
        )

    def cross_arguments(
        self, encoded: EncoderOutput, source_lengths: Int[Array, " B"], repeat: int = 1
    ) -> dict[str, Any]:
        """Return the arguments of the decoder that describe the source sentences.

        Args:
          encoded: Output of the encoder.
          source_lengths: Number of valid source tokens.
          repeat: Number of consecutive rows of the decoder that each source sentence fills, such as
            the number of its hypotheses.
        """
        arguments = {
            "cross_key_values": self.decoder.decoder.project_cross(encoded.values),
            "cross_lengths": source_lengths,
        }
        return jax.tree.map(lambda x: jnp.repeat(x, repeat, axis=0), arguments)

    def translate(
        self,
        source: Int[Array, "B S"],
        source_lengths: Int[Array, " B"],
        *,
        max_lengths: Int[Array, " B"],
        longest: int,
        beam_size: int = BEAM_SIZE,
        length_penalty: float | Float[Array, ""] = LENGTH_PENALTY,
        prompts: Int[Array, "B P"] | None = None,
        prompt_lengths: Int[Array, " B"] | None = None,
    ) -> Hypotheses:
        """Find the best translations by beam search.

        Inside of `nnx.jit`, the whole search is one program on the device.

        Args:
          source: Token ids of the source sentences.
          source_lengths: Number of valid source tokens. The rest is padding.
          max_lengths: Largest number of target tokens of each sentence, at least 1.
          longest: Upper limit of `max_lengths`. Must be a Python integer, because it is an axis
            size.
          beam_size: Number of hypotheses. 1 means greedy search.
          length_penalty: Exponent of the length penalty.
          prompts: First tokens of the translations, without a start token. The results contain only
            the tokens after the prompts. None means no prompts.
          prompt_lengths: Number of valid tokens of each prompt, possibly 0. If None, all prompts
            have length P.
        """
        if beam_size < 1:
            raise ValueError(f"beam_size must be at least 1; got {beam_size}.")
        encoded = self.encode(source, source_lengths)
        last, caches = self.decoder.read_prompts(
            *_prepend_end(len(source), prompts, prompt_lengths),
            new_tokens=longest,
            **self.cross_arguments(encoded, source_lengths),
        )
        next_logits = functools.partial(
            self.decoder.next_logits,
            **self.cross_arguments(encoded, source_lengths, repeat=beam_size),
        )
        limits: dict[str, Any] = {
            "max_lengths": max_lengths,
            "longest": longest,
            "end": END_ID,
            "pad": PADDING_ID,
        }
        if beam_size == 1:
            return _as_hypotheses(sample(next_logits, caches, last, **limits), length_penalty)
        options: dict[str, Any] = {"beam_size": beam_size, "length_penalty": length_penalty}
        return beam_search(next_logits, caches, last, **options, **limits)


def _prepend_end(
    batch: int, prompts: Int[Array, "B P"] | None, lengths: Int[Array, " B"] | None
) -> tuple[Int[Array, "B inputs"], Int[Array, " B"]]:
    """Prepend the end token to every prompt, and return the prompts and their lengths.

    The decoder starts from the end token. If `prompts` is None, the prompts are empty. If `lengths`
    is None, all prompts have length P.
    """
    end, ones = jnp.full((batch, 1), END_ID), jnp.ones(batch, jnp.int32)
    if prompts is None:
        return end, ones
    return (
        jnp.concatenate([end, prompts], axis=1),
        ones + (prompts.shape[1] if lengths is None else lengths),
    )


def _as_hypotheses(samples: Samples, length_penalty: float | Float[Array, ""]) -> Hypotheses:
    """Return one hypothesis for each sampled sequence."""
    scores = samples.log_probabilities / length_penalty_of(samples.lengths, length_penalty)
    return Hypotheses(samples.tokens[:, None], samples.lengths[:, None], scores[:, None])


def shift_right(tokens: Int[Array, "B T"], first: int = END_ID) -> Int[Array, "B T"]:
    """Shift tokens by one position, to make the inputs of a decoder that predicts `tokens`.

    Args:
      tokens: Target tokens.
      first: Token at the first position.
    """
    return jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=first)
