"""Attention as a pure function of arrays, with seven attention variants."""

import warnings
from typing import Any

from distattn_jax.attention import variants
from distattn_jax.attention.arguments import Attended
from distattn_jax.attention.call import attention, explain_implementation
from distattn_jax.attention.explanation import Choice, Explanation, SlowAttentionWarning
from distattn_jax.attention.implementations import IMPLEMENTATIONS
from distattn_jax.attention.precision import PRECISIONS
from distattn_jax.attention.rotary import Rotary, rotate
from distattn_jax.attention.sequence_order import from_balanced_order, to_balanced_order
from distattn_jax.attention.sequence_plan import ShardedSequence
from distattn_jax.attention.softmax import masked_softmax
from distattn_jax.attention.variants import *  # noqa: F403  all names that a variant exports

__all__ = [
    "IMPLEMENTATIONS",
    "PRECISIONS",
    "Attended",
    "Choice",
    "Explanation",
    "Rotary",
    "ShardedSequence",
    "SlowAttentionWarning",
    "attention",
    "explain_implementation",
    "from_balanced_order",
    "masked_softmax",
    "rotate",
    "to_balanced_order",
]
__all__ += variants.__all__


def __getattr__(name: str) -> Any:
    """Look up an attribute by its old name, and emit a DeprecationWarning."""
    if name == "Mapping":
        message = "attention.Mapping is deprecated: use attention.MappingFunction."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return variants.MappingFunction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
