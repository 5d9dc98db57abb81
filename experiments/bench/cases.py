"""Cases of the benchmark, and their random input arrays.

A case is one attention variant with the options of its call. `CASES` are timed by default.
`BY_HAND_CASES` compare "xla" with attention written by hand, and `SHARDED_CASES` share a sequence
between all devices.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float

from distattn_jax.attention import IMPLEMENTATIONS, Attended, Variant
from experiments.bench.by_hand import FUNCTIONS
from experiments.bench.shapes import Shape
from experiments.bench.variants import (
    GLOBAL,
    LOCAL,
    adapted,
    distance_aware,
    distance_bias,
    dot_product,
    inverse_square,
    relative_position,
    sine_bias,
    transformer_xl,
    two_sided,
)

MakeVariant = Callable[..., Variant]  # of a shape and a PRNG key
SMALL_WEIGHT = 0.005  # |w| of heads whose mapping does not saturate within 2,048 tokens
VISIBLE = 0.9  # probability that a random mask shows an entry


class Case(NamedTuple):
    """Attention variant with the options of its call.

    Attributes:
      variant: Function that makes the attention variant from the sizes of the inputs and a PRNG
        key.
      implementation: Name of the implementation. None lets `attention` choose. "by_hand" and
        "jax_nn" are the functions of `experiments.bench.by_hand`.
      received: If True, also compute the received attention and its gradient. Received attention
        is the attention that each key receives, summed over queries.
      mask: "keys" hides random keys from all queries, with a mask of shape (B, 1, 1, S). "pairs"
        hides random pairs of query and key, with a mask of shape (B, 1, T, S). "" hides nothing.
      segments: Number of sequences of equal length that are packed into a row.
      window: Largest distance of a visible key, divided by the length. 1/8 means L/8 positions on
        each side. 0 means no window.
      group: Number of query heads that share a key head.
      dropout_rate: Probability of dropping a weight.
      strategy: "ring" or "gather" if the sequence is sharded over all devices. "" means that one
        device has the whole sequence.
    """

    variant: MakeVariant
    implementation: str | None = None
    received: bool = False
    mask: str = ""
    segments: int = 1
    window: float = 0.0
    group: int = 1
    dropout_rate: float = 0.0
    strategy: str = ""


REFERENCE_CASE = "vanilla_cudnn"  # Ratios are relative to the time of this case.
CASES = {
    REFERENCE_CASE: Case(dot_product, "cudnn"),
    "vanilla": Case(dot_product, "pallas"),
    "vanilla_received": Case(dot_product, received=True),
    "vanilla_dropout": Case(dot_product, dropout_rate=0.1),
    "vanilla_xla": Case(dot_product, "xla"),
    "distance_aware": Case(distance_aware),
    "distance_aware_local": Case(partial(distance_aware, weights=(LOCAL, LOCAL))),
    "distance_aware_global": Case(partial(distance_aware, weights=(GLOBAL, GLOBAL))),
    "distance_aware_exact": Case(partial(distance_aware, tolerance=0.0)),
    "distance_aware_unsaturated": Case(
        partial(distance_aware, weights=(-SMALL_WEIGHT, SMALL_WEIGHT))
    ),
    "distance_aware_everywhere": Case(partial(distance_aware, largest_weighted_distance=4.0)),
    "distance_aware_received": Case(distance_aware, received=True),
    "distance_aware_key_mask": Case(distance_aware, mask="keys"),
    "distance_aware_pair_mask": Case(distance_aware, mask="pairs"),
    "distance_aware_segments": Case(distance_aware, segments=8),
    "distance_aware_window": Case(distance_aware, window=1 / 8),
    "distance_aware_grouped": Case(distance_aware, group=4),
    "distance_aware_dropout": Case(distance_aware, dropout_rate=0.1),
    "distance_aware_mapping": Case(partial(distance_aware, mapping=inverse_square)),
    "distance_aware_xla": Case(distance_aware, "xla"),
    "relative_position": Case(relative_position),
    "relative_position_keys": Case(partial(relative_position, values=False)),
    "relative_position_64": Case(partial(relative_position, max_distance=64)),
    "transformer_xl": Case(transformer_xl),
    "adapted": Case(adapted),
    "alibi": Case(partial(distance_bias, function="alibi")),
    "kerple_log": Case(partial(distance_bias, function="kerple_log")),
    "kerple_power": Case(partial(distance_bias, function="kerple_power")),
    "t5_bias": Case(partial(distance_bias, function="t5_buckets")),
    "two_sided": Case(two_sided),
    "two_sided_bias": Case(partial(two_sided, weights=None)),
    "two_sided_buckets": Case(partial(two_sided, bias=("t5_buckets", "kerple_power"))),
    "two_sided_forgetting": Case(
        partial(two_sided, weights=(LOCAL, LOCAL), bias=("alibi",)),
    ),
    "own_bias_2": Case(partial(sine_bias, parameters=2)),
    "own_bias_12": Case(partial(sine_bias, parameters=12)),
}
EXTRA_CASES = ("relative_position_64", "own_bias_2", "own_bias_12")  # not in the table
DEFAULT_CASES = tuple(name for name in CASES if name not in EXTRA_CASES)
# Cases that compare "xla" with attention written by hand.
BY_HAND = "by_hand"
COMPARED = {
    "vanilla": Case(dot_product),
    "vanilla_key_mask": Case(dot_product, mask="keys"),
    "distance_aware": Case(distance_aware),
    "distance_aware_key_mask": Case(distance_aware, mask="keys"),
    "distance_aware_pair_mask": Case(distance_aware, mask="pairs"),
    **{
        name: CASES[name]
        for name in (
            *("relative_position", "relative_position_keys", "transformer_xl", "adapted"),
            *("alibi", "kerple_log", "kerple_power", "t5_bias", "two_sided"),
        )
    },
}
BY_HAND_CASES = {
    f"{name}_{implementation}": case._replace(implementation=implementation)
    for name, case in COMPARED.items()
    for implementation in (BY_HAND, "jax_nn", "xla")
    if implementation != "jax_nn" or case.variant is dot_product
}
# Cases that check the fused kernels of a device: all variants and options, in each form of the
# kernels. On a GPU other than Hopper, both forms are the portable form.
FORMS = {"fused": "pallas", "portable": "pallas_portable"}
CHECK_CASES = {
    f"{name}_{form}": case._replace(implementation=implementation)
    for form, implementation in FORMS.items()
    for name, case in CASES.items()
    if case.implementation in (None, "pallas")
}
# Cases for several devices, which share each sequence.
SHARDED_CASES = {
    f"{name}_{strategy}": Case(make_variant, strategy=strategy)
    for name, make_variant in (("vanilla", dot_product), ("distance_aware", distance_aware))
    for strategy in ("ring", "gather")
}
ALL_CASES = CASES | BY_HAND_CASES | CHECK_CASES | SHARDED_CASES
# Dot-product attention to which the cases of a user's own shape are compared: the first of these
# cases that is timed is the baseline of the shape.
BASELINES = (REFERENCE_CASE, "vanilla_jax_nn", "vanilla_xla")
TIMED_BASELINES = BASELINES[:2]  # These are timed with all `--cases`, where they can run.
# Cases that are timed by default at a user's own shape: each attention variant once.
OWN_SHAPE_CASES = (
    *(*BASELINES, "vanilla", "distance_aware", "relative_position", "transformer_xl"),
    *("adapted", "alibi"),
)
DEVICES = {  # by implementation
    "pallas": "an NVIDIA GPU or a TPU",
    "pallas_portable": "an NVIDIA GPU",
    "cudnn": "an NVIDIA GPU",
}


class Operands(NamedTuple):
    """Inputs of an attention call and of its backward pass.

    Attributes:
      query: Queries.
      key: Keys.
      value: Values.
      variant: Attention variant with its parameters.
      cotangent: Cotangent of the outputs, which is the input of the backward pass.
      arguments: Dict of the other array arguments of `attention`, such as the mask. They have no
        gradient.
    """

    query: Float[Array, "B L N H"]
    key: Float[Array, "B L K H"]
    value: Float[Array, "B L K H"]
    variant: Variant
    cotangent: Attended
    arguments: dict[str, Array]


def draw_operands(shape: Shape, case: Case, dtype: str) -> Operands:
    """Draw the inputs of a case from a normal distribution.

    All cases of a shape have equal queries and cotangents.

    Args:
      shape: Sizes of the arrays.
      case: Case to time. If it computes the received attention (the attention that each key
        receives, summed over queries), a cotangent of the received attention is drawn too.
      dtype: Name of the dtype of query, key, value and the cotangent of the output.
    """
    batch, heads, length, width, _ = shape
    *keys, received_key, variant_key, argument_key = jax.random.split(jax.random.key(0), 7)
    key_heads = heads // case.group
    query, key, value, cotangent = (
        jax.random.normal(random, (batch, length, count, width), dtype)
        for random, count in zip(keys, (heads, key_heads, key_heads, heads), strict=True)
    )
    received = jax.random.normal(received_key, (batch, heads, length)) if case.received else None
    variant = case.variant(shape, variant_key)
    arguments = _draw_arguments(shape, case, argument_key)
    return Operands(query, key, value, variant, Attended(cotangent, received), arguments)


def make_sequence_mesh() -> Mesh:
    """Return the mesh of all devices, whose axis shards the sequence of `SHARDED_CASES`."""
    return jax.make_mesh((jax.device_count(),), ("sequence",), axis_types=(AxisType.Auto,))


def shard(operands: Operands, case: Case) -> Operands:
    """Shard the sequence over all devices if the case has a strategy.

    Args:
      operands: Inputs of the case, or their shapes and dtypes.
      case: Case to time.
    """
    if not case.strategy:
        return operands
    mesh = make_sequence_mesh()

    def place(leaf: Any, spec: P) -> Any:
        sharding = NamedSharding(mesh, spec)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        return jax.device_put(leaf, sharding)

    sequence: Any = P(None, "sequence")
    specs = jax.tree.map(lambda _: P(), operands)._replace(
        query=sequence, key=sequence, value=sequence, cotangent=Attended(sequence)
    )
    return jax.tree.map(place, operands, specs)


def _draw_arguments(shape: Shape, case: Case, key: Array) -> dict[str, Array]:
    """Return the mask, the segments and the dropout key of a case, if the case has them."""
    arguments: dict[str, Array] = {}
    if case.mask:
        arguments["mask"] = _draw_mask(shape, case.mask, key)
    if case.segments > 1:
        row = jnp.arange(shape.length, dtype=jnp.int32) * case.segments // shape.length
        segments = jnp.broadcast_to(row, (shape.batch, shape.length))
        arguments |= {"query_segments": segments, "key_segments": segments}
    if case.dropout_rate:
        arguments["dropout_key"] = key
    return arguments


def _draw_mask(shape: Shape, kind: str, key: Array) -> Bool[Array, "B 1 #T S"]:
    """Return a random mask of keys, or of pairs of query and key. See `Case.mask`."""
    queries = {"keys": 1, "pairs": shape.length}[kind]
    return jax.random.bernoulli(key, VISIBLE, (shape.batch, 1, queries, shape.length))


def missing_device(case: Case) -> str | None:
    """Return a description of the device that a case needs, or None if the case can run here."""
    if case.strategy and jax.device_count() == 1:
        return "several devices"
    name = case.implementation
    if name is None or name in FUNCTIONS:
        return None
    platforms = [each.platform for each in IMPLEMENTATIONS[name]]
    backend = jax.default_backend()
    can_run = {None, "cuda" if backend == "gpu" else backend} & {*platforms}
    return None if can_run else DEVICES[name]
