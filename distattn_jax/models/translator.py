"""Encoder-decoder Transformer for translation (Vaswani et al. 2017, Shaw et al. 2018)."""

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
from distattn_jax.token_scores import token_logits


class TranslatorOutput(NamedTuple):
    """Output of a translator. Weights that were not requested are None.

    As in `LanguageModelOutput`, `logits` are computed from `features` and `table` at each access.

    Attributes:
      features: Output of the decoder, from which the target token at each position is predicted.
      table: Embeddings of the vocabulary.
      encoder_weights: Self-attention weights of the encoder, from source tokens to source tokens.
      decoder_weights: Self-attention weights of the decoder, from target tokens to target tokens.
      cross_weights: Cross-attention weights of the decoder, from target tokens to source tokens.
    """

    features: Float[Array, "B T D"]
    table: Float[Array, "V D"]
    encoder_weights: Float[Array, "B L N S S"] | None = None
    decoder_weights: Float[Array, "B L N T T"] | None = None
    cross_weights: Float[Array, "B L N T S"] | None = None

    @property
    def logits(self) -> Float[Array, "*M B T V"]:
        """Logits of the target token at each of the T positions, in float32."""
        return token_logits(self.features, self.table)


class Translator(nnx.Module):
    """Encoder-decoder Transformer with any attention method.

    The method applies to the self-attention of encoder and decoder. Cross-attention is always
    dot-product attention. Source embeddings, target embeddings and output layer use the same table.

    Args:
      vocabulary: Size V of the vocabulary, which both languages share. Token id 0 is padding. Id 2
        ends a sentence, and is also the first input of the decoder.
      method: Name of the attention method, a key of `METHODS`.
      sizes: Sizes of encoder and decoder, which have the same number of layers.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `norm`, `implementation`, `precision`, `dtype` and `remat` of `LanguageModel`.
    """

    def __init__(
        self, vocabulary: int, *, method: str, sizes: Sizes, rngs: nnx.Rngs, **arguments: Any
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
        """Return an output with the logits of each target token, given all earlier target tokens.

        Args:
          source: Token ids of the source sentences.
          source_lengths: Number of valid tokens of each source sentence. The rest is padding.
          target_inputs: Token ids of the target sentences, shifted by one position: see
            `shift_right`.
          target_lengths: Number of valid tokens of each target sentence. The rest is padding.
          weights: If True, also return the attention weights.
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
            decoded.features,
            decoded.table,
            encoder_weights=encoded.weights,
            decoder_weights=decoded.weights,
            cross_weights=decoded.cross_weights,
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
        """Apply the encoder to the source sentences. For the arguments, see `__call__`."""
        x = self.decoder.embedding(source, dropout_rate=dropout_rate, rngs=rngs)
        return self.encoder(
            x, lengths=source_lengths, weights=weights, dropout_rate=dropout_rate, rngs=rngs
        )

    def cross_arguments(
        self, encoded: EncoderOutput, source_lengths: Int[Array, " B"], repeat: int = 1
    ) -> dict[str, Any]:
        """Return the arguments `cross_key_values` and `cross_lengths` of the decoder, as a dict.

        Args:
          encoded: Output of the encoder.
          source_lengths: Number of valid tokens of each source sentence.
          repeat: Number of times that each source sentence is repeated along the batch axis, such
            as the number of hypotheses of a beam search.
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
        """Find the best translations of each source sentence by beam search.

        Inside of `nnx.jit`, the whole search is one program on the device.

        Args:
          source: Token ids of the source sentences.
          source_lengths: Number of valid tokens of each source sentence. The rest is padding.
          max_lengths: Largest number of tokens of each translation, at least 1.
          longest: Upper limit of `max_lengths`. Must be a Python integer, because it is an axis
            size.
          beam_size: Number of hypotheses of each sentence. 1 means greedy search.
          length_penalty: Exponent of the length penalty. Larger exponents prefer longer sequences.
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
    """Prepend the end token, which the decoder uses as start token, to every prompt.

    Args:
      batch: Number of examples B.
      prompts: Token ids of the prompts. None means that all prompts are empty.
      lengths: Number of tokens of each prompt. None means that all prompts have length P.

    Returns:
      The new prompts and their lengths.
    """
    end, ones = jnp.full((batch, 1), END_ID), jnp.ones(batch, jnp.int32)
    if prompts is None:
        return end, ones
    return (
        jnp.concatenate([end, prompts], axis=1),
        ones + (prompts.shape[1] if lengths is None else lengths),
    )


def _as_hypotheses(samples: Samples, length_penalty: float | Float[Array, ""]) -> Hypotheses:
    """Convert sampled sequences to the output of a beam search with one hypothesis per example."""
    scores = samples.log_probabilities / length_penalty_of(samples.lengths, length_penalty)
    return Hypotheses(samples.tokens[:, None], samples.lengths[:, None], scores[:, None])


def shift_right(tokens: Int[Array, "B T"], first: int = END_ID) -> Int[Array, "B T"]:
    """Shift tokens by one position to the right, such as [5, 6, 7] to [2, 5, 6].

    The result is the input of a decoder that predicts `tokens`.

    Args:
      tokens: Target tokens.
      first: Token at the first position of the result.
    """
    return jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=first)
