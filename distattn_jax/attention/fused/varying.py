"""Inside someone's own shard_map: which arrays differ between devices, and over which axes.

There JAX checks that what is computed differs over the axes that its operands differ over. Kernels
know nothing of that, neither of what goes in nor of what comes out.
"""

from typing import TypeVar

import jax

Tree = TypeVar("Tree")


def axes_of(tree: object) -> frozenset[str]:
    """The axes of the mesh over which any of the arrays differs between devices."""
    leaves = jax.tree.leaves(tree)
    return frozenset().union(*(_axes(leaf) for leaf in leaves))


def over(axes: frozenset[str], tree: Tree) -> Tree:
    """The same arrays, said to differ over these axes."""

    def one(leaf):
        missing = axes - _axes(leaf)
        return jax.lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jax.tree.map(one, tree)


def _axes(leaf: jax.Array) -> frozenset[str]:
    return jax.typeof(leaf).manual_axis_type.varying
