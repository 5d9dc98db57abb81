"""Additive attention pooling: many tokens to one vector (as in NRMS, Wu et al. 2019).

a_i = softmax_i(q · tanh(W x_i + b)),   pooled = Σ_i a_i x_i
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import masked_softmax


class AdditivePooling(nnx.Module):
    """Weighs tokens by a small network and sums them; tokens that are padding do not count.

    Args:
      features: D, the width of a token.
      hidden_features: width of the tanh layer.
      dtype: dtype of the computation (None: that of inputs and parameters).
      param_dtype: dtype of the parameters.
      rngs: draws the parameters.
    """

    def __init__(
        self,
        features: int,
        hidden_features: int = 200,
        *,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ):
        dtypes = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden = nnx.Linear(features, hidden_features, **dtypes)
        self.score = nnx.Linear(hidden_features, 1, use_bias=False, **dtypes)

    def __call__(
        self,
        tokens: Float[Array, "*batch T D"],
        *,
        lengths: Int[Array, "*batch"] | None = None,
        mask: Bool[Array, "*batch T"] | None = None,
    ) -> Float[Array, "*batch D"]:
        """The pooled vector; 0 where no token counts.

        Args:
          tokens: what is pooled.
          lengths: right padding: tokens from there on do not count.
          mask: True where a token counts.
        """
        scores = self.score(jnp.tanh(self.hidden(tokens)))[..., 0].astype(jnp.float32)
        counts = jnp.ones(scores.shape, bool) if mask is None else mask
        if lengths is not None:
            counts &= (
                jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
                < (lengths[..., None])
            )
        weights = masked_softmax(scores, counts)
        return jnp.einsum("...t,...td->...d", weights, tokens.astype(weights.dtype)).astype(
            tokens.dtype
        )
