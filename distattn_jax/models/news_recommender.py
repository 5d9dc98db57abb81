"""News for a reader: how well candidates fit what was clicked (NRMS, Wu et al. 2019: MIND).

title vector = words attended to and pooled,   user vector = clicked titles attended to and pooled,
score of a candidate = user vector · title vector
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.text_encoder import SequenceEncoder, TextEncoder


class RankingOutput(NamedTuple):
    """A score for each candidate."""

    scores: Float[Array, "B C"]


class NewsRecommender(nnx.Module):
    """Scores candidates for readers; any of `METHODS` attends, to words and to clicks.

    Args:
      vocabulary: V; token 0 is padding.
      rngs: draws the parameters.
      **arguments: `method`, `sizes`, `implementation` and `dtype`, as in `SequenceEncoder`.
    """

    def __init__(self, vocabulary: int, *, rngs: nnx.Rngs, **arguments: Any):
        self.titles = TextEncoder(vocabulary, rngs=rngs, **arguments)
        self.user = SequenceEncoder(rngs=rngs, **arguments)

    def __call__(
        self,
        history: Int[Array, "B K T"],
        history_words: Int[Array, "B K"],
        clicks: Int[Array, " B"],
        candidates: Int[Array, "B C T"],
        candidate_words: Int[Array, "B C"],
        **arguments: Any,
    ) -> RankingOutput:
        """The scores, float32; a reader without history gives 0 to all.

        Args:
          history: tokens of the K titles clicked before, padded on the right.
          history_words: how many tokens of each are its own.
          clicks: how many titles of a history are its own.
          candidates: tokens of the C titles to be scored.
          candidate_words: how many tokens of each are its own.
          **arguments: `dropout_rate` and `rngs`, as in `SequenceEncoder`.
        """
        batch, clicked, length = history.shape
        every = jnp.concatenate([history, candidates], axis=1).reshape(-1, length)
        words = jnp.concatenate([history_words, candidate_words], axis=1).reshape(-1)
        vectors = self.titles(every, words, **arguments).vector.reshape(
            batch, clicked + candidates.shape[1], -1
        )
        user = self.user(vectors[:, :clicked], clicks, **arguments).vector
        return RankingOutput(jnp.einsum("bd,bcd->bc", user, vectors[:, clicked:]))
