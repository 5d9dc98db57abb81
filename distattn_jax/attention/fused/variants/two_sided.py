"""Attention with own functions of the distance before and after the query, in the kernels.

The factor f and the bias g are functions of the relative position: a relative position has a side
and a distance. Each of them is stored in a table: see `position_tables`. A head leaves out the keys
that it forgets (see `forgetting`). It treats the scores of distant keys as the bias if their factor
is 0, and skips these keys if their bias is constant (see `saturation`).
"""

import dataclasses
import functools

import jax.numpy as jnp

from distattn_jax.attention.fused.distance_functions import LOG2E
from distattn_jax.attention.fused.kernel_view import KernelForm, KernelView, register
from distattn_jax.attention.fused.position_tables import bound_change, bound_table, make_table
from distattn_jax.attention.fused.scoring import DotProductScoring, TableScoring
from distattn_jax.attention.fused.variants.distance_aware import select_tolerance
from distattn_jax.attention.fused.variants.distance_bias import select_buckets
from distattn_jax.attention.variants import (
    T5Buckets,
    TwoSided,
    alibi,
    constant,
    kerple_log,
    kerple_power,
    mappings,
)

# Biases that never become constant, so that distant keys have different scores.
FALLING = frozenset((alibi, kerple_log, kerple_power))


@register(TwoSided)
class TwoSidedView(KernelView):
    """`KernelView` of attention with own functions of the distance on the two sides of a query."""

    def make_form(self, variant, block):
        has_factor, has_bias = variant.weight is not None, bool(variant.bias)
        form = KernelForm(
            TableScoring(block.scale, has_factor, has_bias, variant.rectify),
            block.query,
            block.key,
            tolerance=select_tolerance(variant.tolerance, block),
        )
        if not (has_factor or has_bias or variant.rectify):
            return form._replace(scoring=DotProductScoring(block.scale))
        variant = _with_bucket_products(variant)
        if has_factor:
            factor_only = dataclasses.replace(variant, bias=(), bias_parameters=())
            arguments = (TwoSided.factor, factor_only, block, LOG2E * block.scale)
            joins = variant.mapping in mappings.MAPPINGS.values()
            form = form._replace(factor_table=make_table(*arguments, joins_gradients=joins))
            if form.tolerance is not None:
                form = form._replace(factor_bound=bound_table(*arguments))
        if has_bias:
            bias_only = dataclasses.replace(variant, weight=None, shape=())
            arguments = (TwoSided.bias_sum, bias_only, block, LOG2E)
            joins = FALLING.union((constant,)).issuperset(variant.bias)
            form = form._replace(bias_table=make_table(*arguments, joins_gradients=joins))
            if form.tolerance is not None:
                form = form._replace(bias_bound=bound_table(*arguments))
            if form.factor_bound is not None and FALLING.isdisjoint(variant.bias):
                form = form._replace(bias_change=bound_change(*arguments))
        return form

    def forgets(self, variant):
        biases = frozenset(variant.bias)
        if biases.isdisjoint(FALLING) or not biases <= FALLING | {constant}:
            return None
        if variant.weight is None:
            return jnp.bool_(True)
        if variant.mapping not in (mappings.learnable_sigmoid, mappings.sigmoid):
            return None
        return (variant.weight <= 0).all()

    def may_lose_digits(self, variant):
        """Return True for the mapping `exponent`, as for `DistanceAware`."""
        return variant.weight is not None and variant.mapping == mappings.exponent


def _with_bucket_products(variant: TwoSided) -> TwoSided:
    """Return the same variant, with the biases of T5 as matrix products: see `select_buckets`."""
    functions = (
        functools.partial(select_buckets, x) if isinstance(x, T5Buckets) else x
        for x in variant.bias
    )
    return dataclasses.replace(variant, bias=tuple(functions))
