"""Pictures of heads and of runs: arrays in, a matplotlib figure out."""

from distattn_jax.plot.bars import grouped_bars
from distattn_jax.plot.coefficients import (
    coefficient_curves,
    coefficient_matrices,
    mapping_curves,
)
from distattn_jax.plot.components import head_components
from distattn_jax.plot.curves import learning_curves
from distattn_jax.plot.heads import head_parameters
from distattn_jax.plot.maps import attention_maps
from distattn_jax.plot.profiles import distance_profile
from distattn_jax.plot.style import METHOD_COLOURS, PALETTE, method_colours, save, styled
from distattn_jax.plot.sweeps import sweep
from distattn_jax.plot.timings import timing_bars

__all__ = [
    "METHOD_COLOURS",
    "PALETTE",
    "attention_maps",
    "coefficient_curves",
    "coefficient_matrices",
    "distance_profile",
    "grouped_bars",
    "head_components",
    "head_parameters",
    "learning_curves",
    "mapping_curves",
    "method_colours",
    "save",
    "styled",
    "sweep",
    "timing_bars",
]
