"""Dot-product attention (Vaswani et al. 2017; DA-Transformer eq. 2).

    score_ij = q_i · k_j / √H

Cost: T S H products for the scores, T S E for the values; the same in every variant below.
It knows no position: give the model position embeddings, or none.
"""

import math

from distattn_jax.attention.variants.variant import Variant, product, variant


@variant
class DotProduct(Variant):
    """softmax(QKᵀ/√H) V. It has no arrays of its own."""

    def scores(self, query, key, relative_positions):
        return product(query, key) / math.sqrt(query.shape[-1])

    def as_dot_product(self, query, key, offset):
        return query, key
