"""Tile configurations of the GPU kernels, and the shared memory that they need."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.mosaic.gpu.core import artificial_shared_memory_limit

from distattn_jax.attention.fused.distance_functions import LINEAR, SIGMOID
from distattn_jax.attention.fused.gpu.kernels import make_kernels
from distattn_jax.attention.fused.gpu.portable import tile_loop, tile_selection
from distattn_jax.attention.fused.gpu.tile_selection import (
    count_shared_memory,
    select_tile_configs,
)
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import BackwardOperands, Operands
from distattn_jax.attention.fused.scoring import (
    DistanceScoring,
    DotProductScoring,
    PositionScoring,
    RelationScoring,
    TableScoring,
)
from distattn_jax.attention.fused.visible_columns import Window
from tests.attention.cases import needs_kernels

pytestmark = needs_kernels
KIB = 1024
HOPPER, AMPERE, ADA = 227 * KIB, 163 * KIB, 99 * KIB  # shared memory of a thread block
SCORINGS = {
    "dot product": DotProductScoring(1.0),
    "tabulated function": DistanceScoring(1.0, SIGMOID, False),
    "computed function": DistanceScoring(1.0, LINEAR, True),
    "factor and bias": TableScoring(1.0, has_factor=True, has_bias=True, is_rectified=True),
    "relations": RelationScoring(1.0, 16, True, True),
    "relation products": RelationScoring(1.0, 16, True, False),
    "tables of relations": RelationScoring(1.0, 64, True, True, multiplies_tables=True),
    "positions": PositionScoring(1.0),
}


def make_call(
    scoring,
    *,
    length=768,
    width=64,
    mask=None,
    segments=False,
    received=False,
    dropout=False,
    trained_key_width=None,
    value_width=None,
):
    """Return the plan of a call and the types of its operands. `mask` is "keys", "pairs" or None.

    A persistent kernel has more blocks than an H200 has processors.
    """

    def make_type(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct((32, *shape), dtype)

    heads = 8
    matrix = make_type(length, heads, width, dtype=jnp.bfloat16)
    relations = 2 * scoring.clip_distance + 1
    rows, example = make_type(length, dtype=jnp.int32), make_type(dtype=jnp.int32)
    operands = Operands(
        query=matrix,
        key=matrix,
        value=make_type(length, heads, value_width or width, dtype=jnp.bfloat16),
        coefficients=jax.ShapeDtypeStruct((1, heads, 4), jnp.float32),
        query_lengths=example,
        key_lengths=example,
        offset=example,
        key_mask=make_type(1, length, dtype=jnp.bool) if mask == "keys" else None,
        mask=make_type(1, length, length, dtype=jnp.int8) if mask == "pairs" else None,
        query_segments=rows if segments else None,
        key_segments=rows if segments else None,
        dropout_words=make_type(heads, 5, dtype=jnp.uint32) if dropout else None,
        dropout_scale=make_type(heads, 1) if dropout else None,
        **dict.fromkeys(scoring.table_names, make_type(heads, 2 * length + 1)),
        relation_products=make_type(length, heads, relations)
        if scoring.has_relation_products
        else None,
        position_query=matrix if scoring.has_positions else None,
        positions=make_type(2 * length + 1, heads, width, dtype=jnp.bfloat16)
        if scoring.has_positions
        else None,
    )
    plan = Plan(
        scoring,
        Window(),
        received,
        logsumexp=False,
        tolerance=None,
        trained_key_width=trained_key_width,
    )
    return plan, operands


def needed_bytes(plan, operands, configs):
    kernels = configs._fields if plan.scoring.has_positions else configs._fields[:-1]
    return {
        kernel: count_shared_memory(kernel, plan, operands, getattr(configs, kernel))
        for kernel in kernels
    }


@pytest.mark.parametrize("scoring", SCORINGS.values(), ids=SCORINGS)
def test_the_kernels_of_every_call_fit_into_shared_memory(scoring, without_shape_checker):
    # The checks of types would take most of the time.
    switches = ("segments", "received", "dropout")
    # Kernels multiply tables only of heads up to 64 wide.
    widths = (16, 32, 64) if scoring.multiplies_tables else (16, 32, 64, 128)
    for length, width, mask, *values in itertools.product(
        (768, 2048), widths, (None, "keys", "pairs"), *[(False, True)] * 3
    ):
        arguments = {"length": length, "width": width, "mask": mask}
        arguments |= dict(zip(switches, values, strict=True))
        plan, operands = make_call(scoring, **arguments)
        needed = needed_bytes(plan, operands, select_tile_configs(plan, operands, HOPPER))
        assert max(needed.values()) <= HOPPER, (arguments, needed)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [None, "keys", "pairs"])
@pytest.mark.parametrize("received", [False, True])
def test_wide_keys_with_a_constant_part_fit_into_shared_memory(mask, segments, received):
    for width, trained, value_width in [(128, 64, 64), (256, 128, 128), (256, 64, 64)]:
        plan, operands = make_call(
            SCORINGS["dot product"],
            width=width,
            value_width=value_width,
            trained_key_width=trained,
            mask=mask,
            segments=segments,
            received=received,
        )
        needed = needed_bytes(plan, operands, select_tile_configs(plan, operands, HOPPER))
        assert max(needed.values()) <= HOPPER, (width, needed)


def test_smaller_chips_get_smaller_tiles():
    for limit, width in itertools.product((AMPERE, ADA), (16, 32, 64, 128)):
        for name in ("dot product", "tabulated function", "relations"):
            plan, operands = make_call(SCORINGS[name], width=width, received=True, mask="pairs")
            needed = needed_bytes(plan, operands, select_tile_configs(plan, operands, limit))
            assert max(needed.values()) <= limit, (limit, width, name, needed)


@pytest.mark.parametrize(("limit", "width"), [(ADA, 128), (ADA, 64)])
def test_tiles_that_fit_nowhere_are_reported(limit, width):
    with pytest.raises(ValueError, match=f"must fit into {limit} bytes of shared memory"):
        select_tile_configs(*make_call(SCORINGS["positions"], width=width), limit)


def run_kernel(kernel, plan, operands):
    """Run one kernel with zeros as inputs from other kernels."""
    batch, length, heads, _ = operands.query.shape
    vector = jnp.zeros((batch, heads, length))
    values = jnp.zeros((batch, length, heads, operands.value.shape[-1]), operands.value.dtype)
    received = vector if plan.received else None
    backward = BackwardOperands(values, received, vector, values, vector, vector)
    if plan.scoring.has_relation_weights:
        relations = jnp.zeros((batch, length, heads, 2 * plan.scoring.clip_distance + 1))
        backward = backward._replace(relation_cotangent=relations)
    arguments = {"forward": (), "received": (vector,), "attention_given": (vector, vector)}
    return getattr(make_kernels(plan, operands), kernel)(*arguments.get(kernel, (backward,)))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dot product", {"mask": "keys"}),
        ("factor and bias", {"width": 128, "segments": True}),
        ("relations", {"width": 16, "dropout": True}),
        ("positions", {"mask": "pairs", "segments": True}),
        ("positions", {"width": 128, "dropout": True}),
    ],
)
def test_the_number_of_bytes_is_that_of_mosaic(name, arguments):
    plan, operands = make_call(SCORINGS[name], received=True, **arguments)
    for kernel, size in needed_bytes(plan, operands, select_tile_configs(plan, operands)).items():
        traced = jax.jit(functools.partial(run_kernel, kernel, plan)).trace(operands)
        with artificial_shared_memory_limit(1), pytest.raises(ValueError, match=f"={size} >"):
            traced.lower(lowering_platforms=("cuda",))


SMALL_TABLES = RelationScoring(1.0, 16, True, True, multiplies_tables=True)


def is_refused(name, shared_memory, width):
    """Return True if `attention` refuses a call, or does not let the kernels multiply tables."""
    is_large = (name == "positions" and width > 64) or name == "tables of relations"
    return is_large and shared_memory < 164 * KIB


@pytest.mark.parametrize("name", [*SCORINGS, "small tables"])
@pytest.mark.parametrize("memory", [100, 164, 228])
def test_the_portable_kernels_of_every_call_fit_into_shared_memory(
    name, memory, without_shape_checker
):
    scoring = SCORINGS.get(name, SMALL_TABLES)
    widths = (16, 64) if scoring.multiplies_tables else (16, 64, 128)
    for width, mask in itertools.product(widths, (None, "pairs")):
        if is_refused(name, memory * KIB, width):
            continue
        options = dict.fromkeys(("segments", "received", "dropout"), mask is not None)
        plan, operands = make_call(scoring, width=width, mask=mask, **options)
        configs = tile_selection.select_tile_configs(plan, operands, memory * KIB)
        for kernel, config in configs._asdict().items():
            if kernel != "position_gradient" or scoring.has_positions:
                size = count_shared_memory(kernel, plan, operands, config, tile_loop.allocate)
                assert size < memory * KIB, (kernel, config)


def test_the_portable_kernels_of_very_wide_keys_fit_into_shared_memory():
    plan, operands = make_call(
        SCORINGS["dot product"],
        width=256,
        value_width=128,
        trained_key_width=128,
        mask="pairs",
        received=True,
    )
    configs = tile_selection.select_tile_configs(plan, operands, 100 * KIB)
    assert configs.key_gradient.stages == 1
