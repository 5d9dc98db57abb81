"""Dot-product attention (Vaswani et al. 2017; DA-Transformer eq. 2).

    score_ij = q_i · k_j / √H

Cost: T S H multiplications for the scores and T S E for the weighted sums of values.
The scores do not depend on positions: add position embeddings to the input if order matters.
"""

from distattn_jax.attention.variants.variant import Variant, product, variant


@variant
class DotProduct(Variant):
    """Dot-product attention, softmax(QKᵀ/√H) V. This variant has no parameters."""

    uses_positions = False

    def scores(self, query, key, relative_positions, scale):
        return scale * product(query, key)

    def as_dot_product(self, query, key, offset):
        return query, key
