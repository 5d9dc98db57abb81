"""Flax NNX modules for Transformers with any attention variant.

`DistanceAware`, `TwoSided`, `DistanceBias`, `RelativePosition`, `TransformerXL` and `Adapted`
contain the trainable parameters of the attention variant with the same name in
`distattn_jax.attention`. Calling such a module returns the variant with the current parameters.
"""

from distattn_jax.modules.adapted import Adapted
from distattn_jax.modules.attention_fn import as_attention_fn
from distattn_jax.modules.distance_aware import DistanceAware
from distattn_jax.modules.distance_bias import DistanceBias
from distattn_jax.modules.dropout import dropout
from distattn_jax.modules.feed_forward import FeedForward
from distattn_jax.modules.initializers import (
    alternating_signs,
    negative_weights,
    sign_combinations,
)
from distattn_jax.modules.key_value_cache import KeyValueCache
from distattn_jax.modules.layer_stack import Decoder, DecoderOutput, Encoder
from distattn_jax.modules.memory import SegmentMemory
from distattn_jax.modules.multi_head import MultiHeadAttention
from distattn_jax.modules.pooling import AdditivePooling
from distattn_jax.modules.positions import add_positions
from distattn_jax.modules.relative_position import RelativePosition
from distattn_jax.modules.transformer_layer import EncoderOutput, TransformerLayer
from distattn_jax.modules.transformer_xl import TransformerXL
from distattn_jax.modules.two_sided import TwoSided

__all__ = [
    "Adapted",
    "AdditivePooling",
    "Decoder",
    "DecoderOutput",
    "DistanceAware",
    "DistanceBias",
    "Encoder",
    "EncoderOutput",
    "FeedForward",
    "KeyValueCache",
    "MultiHeadAttention",
    "RelativePosition",
    "SegmentMemory",
    "TransformerLayer",
    "TransformerXL",
    "TwoSided",
    "add_positions",
    "alternating_signs",
    "as_attention_fn",
    "dropout",
    "negative_weights",
    "sign_combinations",
]
