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

from distattn_jax.attention import (
    clip,
    early_add,
    exponent,
    late_add,
    late_multiply,
    linear,
    sigmoid,
)
from distattn_jax.modules import Adapted, DistanceAware, RelativePosition, TransformerXL
from distattn_jax.modules.initializers import both_signs

Number = float | Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the parameters of a model depend on; by default those of the DA-Transformer paper.

    Attributes:
      heads: N.
      head_features: H.
      features: D.
      layers: L.
      hidden_features: width inside the feed-forward networks (None: 4 D).
      embedding_features: width of the embeddings.
      pooling_features: width of the pooling's tanh layer.
      max_distance: k of `relative_position`.
      initial_weight: mean |w| of `distance_aware` at first, half of the heads negative; may be
        traced.
      initial_shape: its v at first; may be traced.
    """

    heads: int = 16
    head_features: int = 16
    features: int = 256
    layers: int = 1
    hidden_features: int | None = None
    embedding_features: int = 300
    pooling_features: int = 200
    max_distance: int = 16
    initial_weight: Number = 0.1
    initial_shape: Number = 0.0


def _distance_aware(sizes: Sizes, *, rngs: nnx.Rngs, **form: Any) -> DistanceAware:
    """`form`: another mapping, whose own initial shape it then has, or another adjustment."""
    if "mapping" not in form:
        form["shape"] = sizes.initial_shape
    return DistanceAware(
        sizes.heads, weight_init=both_signs(sizes.initial_weight), rngs=rngs, **form
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
      layer_arguments: arguments of `TransformerLayer` that the method's paper asks for.
      has_distance_weights: whether its heads have w (and, most of them, v).
    """

    title: str
    variant: Callable[..., nnx.Module] | None = None
    positions: bool = False
    layer_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    has_distance_weights: bool = False

    def of(self, sizes: Sizes) -> Callable[..., nnx.Module] | None:
        """What `Encoder` takes as its `variant`."""
        return None if self.variant is None else functools.partial(self.variant, sizes)


def _other_form(title: str, **form: Any) -> Method:
    variant = functools.partial(_distance_aware, **form)
    return Method(f"DA, {title}", variant, has_distance_weights=True)


METHODS = {
    "no_positions": Method("no positions"),
    "vanilla": Method("Transformer", positions=True),
    "relative_position": Method("Transformer-RPR", _relative_position),
    "transformer_xl": Method("Transformer-XL", _transformer_xl),
    "adapted": Method(
        "Adapted Transformer",
        _adapted,
        layer_arguments={"project_key": False, "project_out": False},
    ),
    "distance_aware": Method("DA-Transformer", _distance_aware, has_distance_weights=True),
    # Section 4.3 of the paper: other mappings. Section 4.4: other places for the coefficient.
    "distance_aware_clip": _other_form("clip", mapping=clip),
    "distance_aware_linear": _other_form("linear", mapping=linear),
    "distance_aware_exponent": _other_form("exponent", mapping=exponent),
    "distance_aware_sigmoid": _other_form("sigmoid", mapping=sigmoid),
    "distance_aware_early_add": _other_form("early add", adjust=early_add),
    "distance_aware_late_multiply": _other_form("late multiply", adjust=late_multiply),
    "distance_aware_late_add": _other_form("late add", adjust=late_add),
}


def method_of(name: str) -> Method:
    """The method of this name."""
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {name!r}.")
    return METHODS[name]
