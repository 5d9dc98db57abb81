"""Table of the variants that the kernels compute, one module for each of them.

A variant is looked up by its exact type: a subclass may have other scores. `register` adds an entry
for a variant of your own.
"""

from distattn_jax.attention import variants
from distattn_jax.attention.fused.kernel_view import KernelView
from distattn_jax.attention.fused.variants.distance_aware import DistanceAwareView
from distattn_jax.attention.fused.variants.distance_bias import DistanceBiasView
from distattn_jax.attention.fused.variants.dot_product import AsDotProductView, DotProductView
from distattn_jax.attention.fused.variants.relative_position import RelativePositionView
from distattn_jax.attention.fused.variants.transformer_xl import TransformerXLView

KERNEL_VIEWS: dict[type[variants.Variant], KernelView] = {
    variants.DotProduct: DotProductView(),
    variants.DistanceAware: DistanceAwareView(),
    variants.DistanceBias: DistanceBiasView(),
    variants.RelativePosition: RelativePositionView(),
    variants.TransformerXL: TransformerXLView(),
}
AS_DOT_PRODUCT = AsDotProductView()


def register(variant: type[variants.Variant], view: KernelView) -> None:
    """Let the kernels compute a variant, also in place of an earlier entry."""
    KERNEL_VIEWS[variant] = view


def find_view(variant: variants.Variant) -> KernelView | None:
    """Return how the kernels see a variant, or None if they cannot compute it."""
    fallback = None if variant.as_dot_product is None else AS_DOT_PRODUCT
    return KERNEL_VIEWS.get(type(variant), fallback)
