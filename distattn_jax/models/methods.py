"""The attentions by name: what each brings into a model that is otherwise the same.

Sinusoids are added for the vanilla Transformer only; the others know distance by themselves, and
`no_positions` knows nothing of where its words are: the floor that every comparison needs.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.modules import Adapted, DistanceAware, RelativePosition, TransformerXL
from distattn_jax.modules.initializers import both_signs

Number = float | Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What a variant's parameters depend on.

    Attributes:
      heads: N.
      head_features: H.
      features: D.
      max_distance: k of `relative_position`.
      initial_weight: mean |w| of `distance_aware` at first, half of the heads negative; may be
        traced.
      initial_shape: its v at first; may be traced.
    """

    heads: int
    head_features: int
    features: int
    max_distance: int = 16
    initial_weight: Number = 0.1
    initial_shape: Number = 0.0


def _distance_aware(sizes: Sizes, *, rngs: nnx.Rngs) -> DistanceAware:
    return DistanceAware(
        sizes.heads,
        weight_init=both_signs(sizes.initial_weight),
        shape=sizes.initial_shape,
        rngs=rngs,
    )


def _relative_position(sizes: Sizes, *, rngs: nnx.Rngs) -> RelativePosition:
    return RelativePosition(sizes.heads, sizes.head_features, sizes.max_distance, rngs=rngs)


def _transformer_xl(sizes: Sizes, *, rngs: nnx.Rngs) -> TransformerXL:
    return TransformerXL(sizes.heads, sizes.head_features, sizes.features, rngs=rngs)


def _adapted(sizes: Sizes, *, rngs: nnx.Rngs) -> Adapted:
    return Adapted(sizes.heads, sizes.head_features, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class Method:
    """One row of a comparison.

    Attributes:
      title: how tables and figures call it.
      variant: makes the module that builds the variant of one layer; None: dot product.
      positions: whether sinusoids are added to the embeddings.
      block: arguments of `EncoderBlock` that the method's paper asks for.
    """

    title: str
    variant: Callable[..., nnx.Module] | None = None
    positions: bool = False
    block: dict[str, Any] = dataclasses.field(default_factory=dict)

    def of(self, sizes: Sizes) -> Callable[..., nnx.Module] | None:
        """What `Encoder` takes as its `variant`."""
        return None if self.variant is None else functools.partial(self.variant, sizes)


METHODS = {
    "no_positions": Method("no positions"),
    "vanilla": Method("Transformer", positions=True),
    "relative_position": Method("Transformer-RPR", _relative_position),
    "transformer_xl": Method("Transformer-XL", _transformer_xl),
    "adapted": Method(
        "Adapted Transformer", _adapted, block={"project_key": False, "project_out": False}
    ),
    "distance_aware": Method("DA-Transformer", _distance_aware),
}
