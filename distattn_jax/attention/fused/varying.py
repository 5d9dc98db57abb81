"""Varying axes of arrays inside a `shard_map`.

Inside a `shard_map`, JAX tracks the mesh axes over which each array varies between devices, and
checks that all operands of an operation vary over the same axes. A Pallas kernel does not pass this
information from its inputs to its outputs, so its outputs are marked explicitly.
"""

from typing import TypeVar

import jax

Tree = TypeVar("Tree")


def varying_axes(tree: object) -> frozenset[str]:
    """Return the mesh axes over which at least one array of the tree varies."""
    leaves = jax.tree.leaves(tree)
    return frozenset().union(*(_leaf_axes(leaf) for leaf in leaves))


def mark_varying(tree: Tree, axes: frozenset[str]) -> Tree:
    """Return the tree with all of its arrays marked as varying over the given mesh axes."""

    def mark(leaf):
        missing = axes - _leaf_axes(leaf)
        return jax.lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jax.tree.map(mark, tree)


def _leaf_axes(leaf: jax.Array) -> frozenset[str]:
    """Return the mesh axes over which an array varies."""
    return jax.typeof(leaf).manual_axis_type.varying
