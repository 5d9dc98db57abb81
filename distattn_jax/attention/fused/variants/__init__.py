"""Variants that the kernels compute, with one module for each variant.

Importing this package imports all of its modules. Each module registers a `KernelView`.
"""

import importlib
import pkgutil

from distattn_jax.attention.fused.kernel_view import KERNEL_VIEWS, KernelView
from distattn_jax.attention.fused.variants.dot_product import AsDotProductView
from distattn_jax.attention.variants import Variant

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")


def find_view(variant: Variant) -> KernelView | None:
    """Return the `KernelView` of a variant, or None if the kernels cannot compute the variant."""
    fallback = None if variant.as_dot_product is None else AsDotProductView()
    return KERNEL_VIEWS.get(type(variant), fallback)
