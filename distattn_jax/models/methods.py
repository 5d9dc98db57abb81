"""Attention methods that experiments compare in otherwise equal models, in the dict `METHODS`.

A method is an attention variant with its options. The methods `vanilla` and `relative_and_absolute`
add sinusoidal position encodings to the embeddings. The method `switched_positions` adds them if
`Sizes.sinusoids` is 1. The method `rotary` rotates queries and keys by their positions. The method
`no_positions` has no information about positions and serves as a baseline. All other methods use
attention variants that depend on relative positions.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from distattn_jax.attention import (
    BiasFunction,
    Rotary,
    alibi,
    clip,
    constant,
    early_add,
    exponent,
    kerple_log,
    kerple_power,
    late_add,
    late_multiply,
    linear,
    sigmoid,
    t5_buckets,
)
from distattn_jax.modules import (
    Adapted,
    DistanceAware,
    DistanceBias,
    RelativePosition,
    TransformerXL,
    TwoSided,
    alternating_signs,
    negative_weights,
    sign_combinations,
)

Number = float | int | Float[Array, ""]
SAME_AS_KEYS = -2  # as `value_distance`, means `key_distance`
# A head of two-sided attention has few parameters, which start far from where they end. With the
# learning rate of other parameters, they would not get there.
TWO_SIDED_RATE = 5.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes and initial values of a model. The default sizes are those of Wu et al. 2021.

    Attributes:
      heads: Number of attention heads N.
      head_features: Width H of each head.
      features: Width D of the encoder or decoder.
      layers: Number of layers L.
      hidden_features: Width inside the feed-forward networks. None means 4 D.
      embedding_features: Width of the token embeddings.
      inner_dropout: If True, dropout is also applied to attention weights and to the hidden units
        of the feed-forward networks. If False, dropout is applied only to embeddings, and to the
        outputs of attention and feed-forward networks.
      pooling_features: Width of the tanh layer of additive pooling.
      max_distance: Distance at which the methods `relative_*` and `switched_positions` clip
        relative positions. Each relative position up to this distance has its own vector.
      shared_tables: If True, all heads of a layer share the position vectors of these methods.
      key_distance: Distance at which the method `switched_positions` clips relative positions for
        the keys, if it is below `max_distance`. -1 sets the position vectors of the keys to 0. May
        be traced.
      value_distance: Like `key_distance`, but for the values. -2 means `key_distance`.
      sinusoids: 1 if the method `switched_positions` adds sinusoidal position encodings, 0 if it
        does not. May be traced.
      initial_weight: Mean of |w| at the start of training, where w is the distance weight of a head
        in the methods `distance_aware*` and `two_sided*`. Half of the heads start with a negative
        w. May be traced.
      local_heads: If True, all heads of these methods start with a negative w. They are then local
        heads, whose time is linear in the length of a text.
      initial_shape: Initial value of the parameter v of `attention.learnable_sigmoid`, in the
        methods `distance_aware*` and `two_sided*` that use this mapping. May be traced.
      rotary: Options of the rotation in the method `rotary`.
      window: Largest distance of a key that a query attends to. 0 means keys at all distances.
    """

    heads: int = 16
    head_features: int = 16
    features: int = 256
    layers: int = 1
    hidden_features: int | None = None
    embedding_features: int = 300
    inner_dropout: bool = True
    pooling_features: int = 200
    max_distance: int = 16
    shared_tables: bool = False
    key_distance: Number = 16
    value_distance: Number = SAME_AS_KEYS
    sinusoids: Number = 0
    initial_weight: Number = 0.1
    initial_shape: Number = 0.0
    local_heads: bool = False
    rotary: Rotary = Rotary()
    window: int = 0


def _distance_aware(sizes: Sizes, *, rngs: nnx.Rngs, **options: Any) -> DistanceAware:
    """Make a distance-aware attention module. `options` are arguments of `DistanceAware`.

    With the default mapping, `learnable_sigmoid`, the initial value of its parameter v is
    `sizes.initial_shape`. Other mappings have their own initial values.
    """
    if "mapping" not in options:
        options["shape"] = sizes.initial_shape
    make_init = negative_weights if sizes.local_heads else alternating_signs
    return DistanceAware(
        sizes.heads, weight_init=make_init(sizes.initial_weight), rngs=rngs, **options
    )


def _two_sided(sizes: Sizes, *, rngs: nnx.Rngs, **options: Any) -> TwoSided:
    """Make a module with functions for each side. `options` are arguments of `TwoSided`."""
    if "mapping" not in options:
        options["shape"] = sizes.initial_shape
    make_init = negative_weights if sizes.local_heads else sign_combinations
    return TwoSided(sizes.heads, weight_init=make_init(sizes.initial_weight), rngs=rngs, **options)


def _relative_position(sizes: Sizes, *, rngs: nnx.Rngs, **options: Any) -> RelativePosition:
    """Make a relative position attention module. `options` are arguments of `RelativePosition`."""
    return RelativePosition(
        sizes.heads,
        sizes.head_features,
        sizes.max_distance,
        shared=sizes.shared_tables,
        rngs=rngs,
        **options,
    )


def _switched_positions(sizes: Sizes, *, rngs: nnx.Rngs) -> RelativePosition:
    """Make a relative position attention module with the clipping distances in `sizes`."""
    same = jnp.equal(sizes.value_distance, SAME_AS_KEYS)
    value_distance = jnp.where(same, sizes.key_distance, sizes.value_distance)
    distances = {"key_distance": sizes.key_distance, "value_distance": value_distance}
    return _relative_position(sizes, rngs=rngs, **distances)


def _transformer_xl(sizes: Sizes, *, rngs: nnx.Rngs) -> TransformerXL:
    """Make a Transformer-XL attention module."""
    return TransformerXL(sizes.heads, sizes.head_features, sizes.features, rngs=rngs)


def _adapted(sizes: Sizes, *, rngs: nnx.Rngs) -> Adapted:
    """Make an adapted attention module (TENER)."""
    return Adapted(sizes.heads, sizes.head_features, rngs=rngs)


def _distance_bias(sizes: Sizes, *, function: BiasFunction, rngs: nnx.Rngs) -> DistanceBias:
    """Make an attention module with a bias that is a function of the relative position."""
    return DistanceBias(sizes.heads, function=function, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class Method:
    """Attention method: an attention variant, and the options that its paper uses with it.

    Attributes:
      title: Name of the method in tables and figures.
      summary: One line about the method, for --help.
      variant: Function that makes the attention module of one layer. It is called as
        `variant(sizes, rngs=rngs)`. None means dot-product attention.
      positions: True if sinusoidal position encodings are added to the embeddings.
      has_switches: True if `key_distance`, `value_distance` and `sinusoids` of `Sizes` determine
        the position information that a model uses. These numbers may be traced, so that one
        compiled program can train models with different position information.
      layer_arguments: Additional arguments of `TransformerLayer`.
      has_distance_weights: True if the attention of each head has a distance weight w.
      rotates: True if the queries and keys of self-attention are rotated by their positions.
      position_rate: Learning rate of the parameters of the attention variant, divided by the
        learning rate of other parameters.
    """

    title: str
    summary: str
    variant: Callable[..., nnx.Module] | None = None
    positions: bool = False
    has_switches: bool = False
    layer_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    has_distance_weights: bool = False
    rotates: bool = False
    position_rate: float = 1.0

    def position_scale(self, sizes: Sizes) -> Number | None:
        """Return the factor of the sinusoidal position encodings, or None to add no encodings."""
        if self.has_switches:
            return jnp.asarray(sizes.sinusoids, jnp.float32)
        return 1.0 if self.positions else None

    def stack_arguments(self, sizes: Sizes) -> dict[str, Any]:
        """Return the arguments of `Encoder` or `Decoder` for this method and the given sizes."""
        return {
            "num_layers": sizes.layers,
            "features": sizes.features,
            "num_heads": sizes.heads,
            "head_features": sizes.head_features,
            "hidden_features": sizes.hidden_features,
            "attention_dropout": sizes.inner_dropout,
            "hidden_dropout": sizes.inner_dropout,
            "variant": None if self.variant is None else functools.partial(self.variant, sizes),
            "rotary": sizes.rotary if self.rotates else None,
            "local_window_size": sizes.window or None,
            **self.layer_arguments,
        }


def _distance_aware_method(title: str, change: str, **options: Any) -> Method:
    """Return a method with distance-aware attention. `options` are those of `DistanceAware`."""
    variant = functools.partial(_distance_aware, **options)
    return Method(f"DA, {title}", f"distance_aware, {change}", variant, has_distance_weights=True)


def _two_sided_method(title: str, change: str, **options: Any) -> Method:
    """Return a form of the method `two_sided`. `options` are arguments of `TwoSided`."""
    variant = functools.partial(_two_sided, **options)
    has_weights = options.get("mapping", ...) is not None
    title, summary = f"Two-sided, {title}", f"two_sided, {change}"
    return Method(
        title,
        summary,
        variant,
        has_distance_weights=has_weights,
        position_rate=TWO_SIDED_RATE,
    )


def _distance_bias_method(title: str, summary: str, function: BiasFunction) -> Method:
    """Return a method that adds a function of the relative position to the scores."""
    return Method(title, summary, functools.partial(_distance_bias, function=function))


METHODS = {
    "no_positions": Method("no positions", "dot products without positions, a baseline"),
    "vanilla": Method(
        "Transformer",
        "dot products, with sinusoids of positions (Vaswani et al. 2017)",
        positions=True,
    ),
    "relative_position": Method(
        "Transformer-RPR",
        "learned vectors of relative positions, for keys and values (Shaw et al. 2018)",
        _relative_position,
    ),
    "transformer_xl": Method(
        "Transformer-XL",
        "projected sinusoids of relative positions (Dai et al. 2019)",
        _transformer_xl,
    ),
    "adapted": Method(
        "Adapted Transformer",
        "TENER: unprojected sinusoids of relative positions (Yan et al. 2019)",
        _adapted,
        layer_arguments={"project_key": False, "project_out": False},
    ),
    "distance_aware": Method(
        "DA-Transformer",
        "scores times a learned sigmoid of the distance (Wu et al. 2021)",
        _distance_aware,
        has_distance_weights=True,
    ),
    # Variants of Shaw et al.: with position vectors of keys or of values only (Table 3), with
    # relative and absolute positions (section 4.2), and with any of these kinds.
    "relative_position_keys": Method(
        "RPR, keys only",
        "relative_position, for keys only",
        functools.partial(_relative_position, values=False),
    ),
    "relative_position_values": Method(
        "RPR, values only",
        "relative_position, for values only",
        functools.partial(_relative_position, keys=False),
    ),
    "relative_and_absolute": Method(
        "RPR and sinusoids",
        "relative_position, with sinusoids of positions",
        _relative_position,
        positions=True,
    ),
    "switched_positions": Method(
        "switched positions",
        "kinds of positions that options select, side by side in one program",
        _switched_positions,
        has_switches=True,
    ),
    # Other mappings, section 4.3 of the DA-Transformer paper.
    "distance_aware_clip": _distance_aware_method(
        "clip", "clipped distance as the factor", mapping=clip
    ),
    "distance_aware_linear": _distance_aware_method(
        "linear", "linear function as the factor", mapping=linear
    ),
    "distance_aware_exponent": _distance_aware_method(
        "exponent", "exponential as the factor", mapping=exponent
    ),
    "distance_aware_sigmoid": _distance_aware_method(
        "sigmoid", "sigmoid without a learned shape", mapping=sigmoid
    ),
    # Other adjustments of the scores or weights, section 4.4.
    "distance_aware_early_add": _distance_aware_method(
        "early add", "sigmoid added to the scores", adjust=early_add
    ),
    "distance_aware_late_multiply": _distance_aware_method(
        "late multiply", "sigmoid times the softmax weights", adjust=late_multiply
    ),
    "distance_aware_late_add": _distance_aware_method(
        "late add", "sigmoid plus the softmax weights", adjust=late_add
    ),
    # A remedy of our own: near keys keep their share of the attention in long texts.
    "distance_aware_score_bias": _distance_aware_method(
        "score bias", "learned bias of scores, for long texts", score_bias=1.0
    ),
    # Biases of the scores. Each layer has its own parameters.
    "alibi": _distance_bias_method(
        "ALiBi", "scores minus a learned slope times the distance (Press et al. 2022)", alibi
    ),
    "kerple_log": _distance_bias_method(
        "KERPLE, logarithm",
        "scores minus a logarithm of the distance (Chi et al. 2022)",
        kerple_log,
    ),
    "kerple_power": _distance_bias_method(
        "KERPLE, power", "scores minus a power of the distance (Chi et al. 2022)", kerple_power
    ),
    "t5_bias": _distance_bias_method(
        "T5 bias",
        "scores plus learned biases of buckets of relative positions (Raffel et al. 2020)",
        t5_buckets,
    ),
    "rotary": Method(
        "RoPE",
        "dot products of queries and keys rotated by their positions (Su et al. 2021)",
        rotates=True,
    ),
    # Our own extension of distance-aware attention. Each of its other forms changes one part.
    "two_sided": Method(
        "Two-sided",
        "distance_aware plus a bias, with parameters for keys before and after the query",
        _two_sided,
        has_distance_weights=True,
        position_rate=TWO_SIDED_RATE,
    ),
    "two_sided_tied": _two_sided_method(
        "tied sides", "both sides share their parameters", tied=True
    ),
    "two_sided_no_constant": _two_sided_method(
        "no constant", "bias without the constants of the sides", bias=(kerple_power,)
    ),
    "two_sided_no_decay": _two_sided_method(
        "no decay", "bias of constants only, without a decay", bias=(constant,)
    ),
    "two_sided_linear_decay": _two_sided_method(
        "linear decay", "decay of ALiBi instead of a power", bias=(constant, alibi)
    ),
    "two_sided_log_decay": _two_sided_method(
        "log decay", "logarithm of KERPLE instead of a power", bias=(constant, kerple_log)
    ),
    "two_sided_buckets": _two_sided_method(
        "buckets", "buckets of T5 instead of constants", bias=(t5_buckets, kerple_power)
    ),
    "two_sided_no_relu": _two_sided_method(
        "no ReLU", "scores with their signs instead of ReLU", rectify=False
    ),
    "two_sided_no_factor": _two_sided_method(
        "no factor", "bias only, without the factor f", mapping=None
    ),
    "two_sided_same_rate": Method(
        "Two-sided, same rate",
        "two_sided, with one learning rate for all parameters",
        _two_sided,
        has_distance_weights=True,
    ),
}


def get_method(name: str) -> Method:
    """Return the method with this name in `METHODS`. Raise a ValueError for an unknown name."""
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {name!r}.")
    return METHODS[name]
