"""Arrays of one attention call in the form that the GPU kernels read and write.

Vectors have one number per query or key and shape (B, N, L). They are padded to a multiple of all
block sizes, so that a kernel never reads or writes beyond their end. The same holds for tables,
which have one number per relative position. Matrices need no such padding: the copy engine of the
GPU reads zeros beyond their end, and writes nothing there.
"""

import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jaxtyping import Array, Float, Num

from distattn_jax.attention.fused.distance_functions import evaluate_at
from distattn_jax.attention.fused.gpu.kernel_body import count_leading_rows
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.score_map import ScoreMap


class KernelArrays:
    """Conversion of the operands of one attention call to arrays for the GPU kernels.

    Attributes:
      operands: Arrays of the call.
      length_multiple: Least common multiple of all block and tile sizes. The lengths of vectors are
        padded to a multiple of this number.
    """

    def __init__(self, operands: Operands, length_multiple: int):
        self.operands, self.length_multiple = operands, length_multiple

    def mask_entries(self, score_map: ScoreMap, config: TileConfig) -> dict[str, Array]:
        """Return {"mask": mask}, or an empty dict if `Operands.mask` is None.

        The mask has one entry for each row and column of the score map: `Operands.mask` is
        transposed if the rows are keys. In the kernel `position_gradient`, the mask is also padded:
        see `KernelInputs.moving`.
        """
        if self.operands.mask is None:
            return {}
        mask = self.operands.mask
        mask = jnp.swapaxes(mask, 2, 3) if score_map.is_transposed else mask
        if score_map.has_moving_rows:
            rows = (count_leading_rows(config), config.block_rows)
            mask = jnp.pad(mask, ((0, 0), (0, 0), rows, (0, 0)))
        return {"mask": mask}

    def arrange_by_diagonal(
        self, table: Float[Array, "..."], *, is_transposed: bool
    ) -> Float[Array, "..."]:
        """Pad a table of relative positions, and sort it by the diagonals of the score map.

        Entry (row, column) of the score map uses element row - column + C of the result, where C
        is the padded number of columns.

        Args:
          table: One number or vector for each relative position, as in `Operands.tables` or
            `Operands.positions`.
          is_transposed: True if the rows of the score map are keys.
        """
        rows, columns = self.operands.query.shape[1], self.operands.key.shape[1]
        axis = 2 if table.ndim == 3 else 1
        if is_transposed:
            rows, columns, table = columns, rows, jnp.flip(table, axis=axis)
        padding = self.padded_length(columns) - columns, self.padded_length(rows) - rows
        # Seven more numbers make the length a multiple of 8, as the copy engine requires.
        widths = [(0, 0)] * table.ndim
        widths[axis] = (padding[0], padding[1] + 7)
        return jnp.pad(table, widths)

    def sum_positions(
        self, gradient: Float[Array, "B _ N H"], positions: Float[Array, "#B D #N H"]
    ) -> Float[Array, "#B D #N H"]:
        """Return the gradient of `positions`, summed over all examples or heads that share them.

        Args:
          gradient: Gradient for each example and head, with the axis of relative positions padded
            and sorted as in the result of `arrange_by_diagonal`.
          positions: `Operands.positions`.
        """
        queries = self.operands.query.shape[1]
        start = self.padded_length(queries) - queries
        gradient = jnp.flip(gradient[:, start : start + positions.shape[1]], axis=1)
        axes = [axis for axis in (0, 2) if positions.shape[axis] == 1]
        return gradient.sum(axis=axes, keepdims=True).astype(positions.dtype)

    def pad_vectors(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Pad the vectors in a dict with zeros, to a multiple of `length_multiple`.

        Vectors are the arrays with three axes, shape (B, N, L). All other arrays stay unchanged.
        """

        def pad(x: Array) -> Array:
            return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % self.length_multiple)))

        return {name: pad(x) if x.ndim == 3 else x for name, x in arrays.items()}

    def pad_types(self, types: dict[str, ShapeDtypeStruct]) -> dict[str, ShapeDtypeStruct]:
        """Return the types of arrays after `pad_vectors`, given a dict of their types."""
        return {
            name: ShapeDtypeStruct((*x.shape[:2], self.padded_length(x.shape[2])), x.dtype)
            if len(x.shape) == 3
            else x
            for name, x in types.items()
        }

    def padded_length(self, length: int) -> int:
        """Round a length up to a multiple of `length_multiple`."""
        return length + -length % self.length_multiple


def tabulate_function(plan: Plan, operands: Operands) -> dict[str, Float[Array, "B N D"]]:
    """Return {"function": table}, where the table contains the distance function f of each head.

    The table has one number for each relative position, as in `Operands.tables`. The dict is empty
    if there is no f, or if f is cheap to evaluate: the kernels then compute f from the distances.
    """
    function = plan.scoring.function
    if function is None or function.is_cheap:
        return {}
    distances = operands.table_distances.astype(jnp.float32)
    return {"function": evaluate_at(function, distances, operands.coefficients)}


def shift_rows(
    x: Float[Array, "B L N W"], shift: int, length: int
) -> Float[Array, "B {length} N W"]:
    """Move row i to row i + shift, and cut the result or pad it with zeros to `length` rows."""
    x = x[:, max(-shift, 0) : length - shift]
    start = max(shift, 0)
    return jnp.pad(x, ((0, 0), (start, length - start - x.shape[1]), (0, 0), (0, 0)))


def pad_moving_rows(x: Num[Array, "..."], config: TileConfig) -> Num[Array, "..."]:
    """Add zeros before the first and after the last row of an array of `KernelInputs.moving`."""
    widths = [(0, 0)] * x.ndim
    widths[2 if x.ndim == 3 else 1] = (count_leading_rows(config), config.block_rows)
    return jnp.pad(x, widths)
