"""News recommender that scores candidate titles for a user (NRMS, Wu et al. 2019).

title vector = encoder and pooling over the words of a title
user vector  = encoder and pooling over the title vectors of the clicked titles
score        = user vector · title vector of the candidate
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from distattn_jax.models.text_encoder import SequenceEncoder, TextEncoder
from distattn_jax.modules.dropout import Rate, Rngs


class RankingOutput(NamedTuple):
    """Output of a ranking model.

    Attributes:
      scores: Score of each of the C candidates. Candidates with higher scores rank higher.
    """

    scores: Float[Array, "B C"]


class NewsRecommender(nnx.Module):
    """Model that scores candidate titles for a user, given the titles that the user has clicked.

    Args:
      vocabulary: Size V of the vocabulary. Token id 0 is padding.
      rngs: Random number generators. The stream `params` draws the parameters.
      **arguments: `method`, `sizes`, `implementation`, `precision`, `dtype` and `remat` of
        `TextEncoder`.
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
        *,
        dropout_rate: Rate = 0.0,
        rngs: Rngs | None = None,
    ) -> RankingOutput:
        """Return the score of each candidate in float32. Scores are 0 for a user without clicks.

        Args:
          history: Token ids of the K titles that each user has clicked.
          history_words: Number of valid words of each clicked title. The rest is padding.
          clicks: Number of valid titles in the history of each user. The rest is padding.
          candidates: Token ids of the C titles to score.
          candidate_words: Number of valid words of each candidate. The rest is padding.
          dropout_rate: Dropout rate of the whole model. May be traced.
          rngs: Random number generators of dropout. None disables dropout.
        """
        batch, clicked, length = history.shape
        titles = jnp.concatenate([history, candidates], axis=1).reshape(-1, length)
        words = jnp.concatenate([history_words, candidate_words], axis=1).reshape(-1)
        vectors = self.titles(titles, words, dropout_rate=dropout_rate, rngs=rngs).vector.reshape(
            batch, clicked + candidates.shape[1], -1
        )
        user = self.user(vectors[:, :clicked], clicks, dropout_rate=dropout_rate, rngs=rngs).vector
        return RankingOutput(jnp.einsum("bd,bcd->bc", user, vectors[:, clicked:]))
