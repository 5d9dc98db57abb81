"""Variants that the kernels compute: one module for each of them.

Importing this package imports all of its modules, which register their kernel views.
"""

import importlib
import pkgutil

from distattn_jax.attention.fused.kernel_view import KERNEL_VIEWS, KernelView
from distattn_jax.attention.fused.variants.dot_product import AsDotProductView
from distattn_jax.attention.variants import Variant

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")


def find_view(variant: Variant) -> KernelView | None:
    """Return how the kernels see a variant, or None if they cannot compute it."""
    fallback = None if variant.as_dot_product is None else AsDotProductView()
    return KERNEL_VIEWS.get(type(variant), fallback)
