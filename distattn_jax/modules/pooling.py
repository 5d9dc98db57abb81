"""Additive attention pooling: a sequence of vectors x_i to one vector (NRMS, Wu et al. 2019).

a_i = softmax_i(q · tanh(W x_i + b)),   pooled = Σ_i a_i x_i
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import masked_softmax, promote
from distattn_jax.attention.validation import validate_lengths


class AdditivePooling(nnx.Module):
    """Weighted sum of token vectors. A small network computes the weight of each token.

    Args:
      features: Width D of the token vectors.
      hidden_features: Width of the tanh layer that scores the tokens.
      dtype: Dtype of the computation. None uses the promoted dtype of inputs and parameters.
      param_dtype: Dtype of the parameters.
      rngs: Random number generators. The stream `params` draws the parameters.
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
        """Return one vector for each sequence. It is 0 for a sequence without valid tokens.

        Args:
          tokens: Token vectors, shape (..., T, D).
          lengths: Number of tokens of each sequence before the padding. None means no padding.
          mask: True for valid tokens. None means that all tokens are valid. If `lengths` is passed
            too, padding is also excluded.
        """
        if not jnp.issubdtype(tokens.dtype, jnp.floating):
            raise ValueError(f"tokens must be floating point; got dtype {tokens.dtype}.")
        if mask is not None and getattr(mask, "dtype", None) != jnp.bool_:
            got = getattr(mask, "dtype", type(mask).__name__)
            raise ValueError(f"mask must be boolean, True for valid tokens; got {got}.")
        if mask is not None and mask.shape != tokens.shape[:-1]:
            raise ValueError(
                f"mask must have one entry for each token, shape {tokens.shape[:-1]}; got "
                f"{mask.shape}."
            )
        scores = self.score(jnp.tanh(self.hidden(tokens)))[..., 0]
        scores = scores.astype(promote(scores.dtype))
        is_valid = jnp.ones(scores.shape, bool) if mask is None else mask
        lengths = validate_lengths("lengths", lengths, scores.shape[:-1], scores.shape[-1])
        if lengths is not None:
            is_valid &= (
                jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
                < (lengths[..., None])
            )
        weights, _ = masked_softmax(scores, is_valid)
        return jnp.einsum("...t,...td->...d", weights, tokens.astype(weights.dtype)).astype(
            tokens.dtype
        )
