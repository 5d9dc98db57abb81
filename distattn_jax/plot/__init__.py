"""Figures and interactive pages of attention heads, and learning curves, made from arrays."""

from distattn_jax.plot.coefficients import coefficient_curves, coefficient_matrices, mapping_curves
from distattn_jax.plot.curves import learning_curves
from distattn_jax.plot.explore import AttentionPage, AttentionPart, explore
from distattn_jax.plot.heads import head_parameters
from distattn_jax.plot.maps import attention_maps
from distattn_jax.plot.position_curves import position_curves
from distattn_jax.plot.relations import relation_norms, relation_similarities
from distattn_jax.plot.style import METHOD_COLOURS, PALETTE, method_colours, save, use_style

__all__ = [
    "METHOD_COLOURS",
    "PALETTE",
    "AttentionPage",
    "AttentionPart",
    "attention_maps",
    "coefficient_curves",
    "coefficient_matrices",
    "explore",
    "head_parameters",
    "learning_curves",
    "mapping_curves",
    "method_colours",
    "position_curves",
    "relation_norms",
    "relation_similarities",
    "save",
    "use_style",
]
