"""Translate random sentences with a random model, with and without cached keys and values.

There is no end token, so that all translations have the same number of tokens.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from distattn_jax.models import Hypotheses, Translator, beam_search
from distattn_jax.token_ids import END_ID, PADDING_ID

NO_END = -1  # id of an end token that is not in the vocabulary


@functools.partial(jax.jit, static_argnames=("graph", "tokens", "beam_size", "cached"))
def decode(
    graph: Any, params: Any, source: Int[Array, "B S"], *, tokens: int, beam_size: int, cached: bool
) -> Hypotheses:
    """Translate sentences. Every translation has the same number of tokens.

    Args:
      graph: Graph definition of the translator.
      params: Parameters of the translator.
      source: Token ids of the source sentences, without padding.
      tokens: Number of tokens of each translation.
      beam_size: Number of hypotheses of each sentence.
      cached: If True, the keys and values of each token are computed once, and kept in a cache. If
        False, all keys and values are computed again for every new token.
    """
    model: Translator = nnx.merge(graph, params)
    batch, length = source.shape
    lengths = jnp.full(batch, length)
    cross = model.cross_arguments(model.encode(source, lengths), lengths, repeat=beam_size)

    def next_logits_with_cache(last: Array, caches: Any) -> tuple[Array, Any]:
        return model.decoder.next_logits(last, caches, **cross)

    def next_logits_without_cache(last: Array, state: Any) -> tuple[Array, Any]:
        """Append a token to the earlier tokens, and call the decoder with all of them."""
        earlier, counts = state
        inputs = jax.vmap(jax.lax.dynamic_update_index_in_dim, in_axes=(0, 0, 0, None))(
            earlier, last, counts, 0
        )
        logits = model.decoder(inputs, **cross).logits
        return logits[jnp.arange(len(last)), counts], (inputs, counts + 1)

    caches: Any = model.decoder.decoder.init_caches(batch, tokens)
    uncached = (jnp.zeros((batch, tokens), jnp.int32), jnp.zeros(batch, jnp.int32))
    return beam_search(
        next_logits_with_cache if cached else next_logits_without_cache,
        caches if cached else uncached,
        jnp.full(batch, END_ID),
        beam_size=beam_size,
        max_lengths=jnp.full(batch, tokens),
        longest=tokens,
        end=NO_END,
        pad=PADDING_ID,
    )


def time_decoding(
    model: Translator, source: Int[Array, "B S"], *, repeats: int, **arguments: Any
) -> float:
    """Return the duration of the fastest of several calls of `decode`, in seconds.

    Args:
      model: Translator.
      source: Token ids of the source sentences.
      repeats: Number of timed calls, after one call that compiles the program.
      **arguments: Other arguments of `decode`.
    """
    graph, params = nnx.split(model)
    jax.block_until_ready(decode(graph, params, source, **arguments))
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(decode(graph, params, source, **arguments))
        seconds.append(time.perf_counter() - start)
    return min(seconds)
