"""Arrays of one attention call in the form that the GPU kernels read and write.

Vectors have one number per query or key and shape (B, N, L). They are padded to a multiple of all
block sizes, so that a kernel never reads or writes beyond their end. The same holds for tables,
which have one number per relative position. Matrices need no such padding: the copy engine of the
GPU reads zeros beyond their end, and writes nothing there.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from distattn_jax.attention.fused.call_arrays import collect_masks
from distattn_jax.attention.fused.distance_functions import evaluate_at
from distattn_jax.attention.fused.gpu.kernel_body import count_leading_rows
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import BackwardOperands, Operands


class KernelArrays:
    """Arrays of the kernels of one attention call."""

    def __init__(self, operands: Operands, length_multiple: int):
        """Store the operands.

        Args:
          operands: Arrays of the call.
          length_multiple: Vectors are padded to a multiple of this number.
        """
        self.operands, self.length_multiple = operands, length_multiple

    def masks(self, *, is_transposed: bool) -> tuple[dict[str, Array], ...]:
        """Return the masks and segments of rows, of columns and of entries, by name."""
        rows, columns = collect_masks(
            self.operands, self.pad_vector, self.pad_vector, is_transposed=is_transposed
        )
        entries: dict[str, Array] = {}
        mask = self.operands.mask
        if mask is not None:
            entries["mask"] = jnp.swapaxes(mask, 2, 3) if is_transposed else mask
        return rows, columns, entries

    def arrange_by_diagonal(
        self, table: Float[Array, "..."], *, is_transposed: bool
    ) -> Float[Array, "..."]:
        """Arrange a table of relative positions by row - column, and pad rows and columns.

        Element row - column + (padded columns) belongs to entry (row, column) of a padded map.

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
        """Return the gradient of position vectors, in their own order.

        Args:
          gradient: Gradient in the order of `arrange_by_diagonal`, of each example and head.
          positions: Position vectors, which examples or heads may share.
        """
        queries = self.operands.query.shape[1]
        start = self.padded_length(queries) - queries
        gradient = jnp.flip(gradient[:, start : start + positions.shape[1]], axis=1)
        axes = [axis for axis in (0, 2) if positions.shape[axis] == 1]
        return gradient.sum(axis=axes, keepdims=True).astype(positions.dtype)

    def pad(self, backward: BackwardOperands) -> BackwardOperands:
        """Pad the vectors of the backward pass to a multiple of all block sizes."""
        names = ("received_cotangent", "other_delta", "negative_delta")
        vectors = {name: getattr(backward, name) for name in names}
        return backward._replace(
            **{name: self.pad_vector(x) for name, x in vectors.items() if x is not None}
        )

    def pad_vector(self, vector: Num[Array, "#B #N L"]) -> Num[Array, "#B #N _"]:
        """Pad a vector with zeros to a multiple of all block sizes."""
        padding = self.padded_length(vector.shape[-1]) - vector.shape[-1]
        return jnp.pad(vector, ((0, 0), (0, 0), (0, padding)))

    def padded_length(self, length: int) -> int:
        """Return the next multiple of all block sizes."""
        return length + -length % self.length_multiple

    def key_type(self, rows: Float[Array, "B S K W"], width: int) -> jax.ShapeDtypeStruct:
        """Return the type of a gradient of keys or values, with one part for each query head."""
        batch, length, *_ = rows.shape
        return jax.ShapeDtypeStruct(
            (batch, length, self.operands.query.shape[2], width), rows.dtype
        )

    def vector_type(self, rows: Float[Array, "B L N W"]) -> jax.ShapeDtypeStruct:
        """Return the type of a padded vector with one number for each row of each query head."""
        batch, length, *_ = rows.shape
        heads = self.operands.query.shape[2]
        return jax.ShapeDtypeStruct((batch, heads, self.padded_length(length)), jnp.float32)


def tabulate_function(plan: Plan, operands: Operands) -> dict[str, Float[Array, "B N D"]]:
    """Return a table of the distance function f by relative position, as in `Operands.tables`.

    The name of the table is "function". The dict is empty if f is cheap: the kernels then compute f
    from the distances.
    """
    function = plan.scoring.function
    if function is None or function.is_cheap:
        return {}
    distances = operands.table_distances.astype(jnp.float32)
    return {"function": evaluate_at(function, distances, operands.coefficients)}


def shift_rows(
    x: Float[Array, "B L N W"], shift: int, length: int
) -> Float[Array, "B {length} N W"]:
    """Move row i to row i + shift, and cut or pad the rows to `length`."""
    x = x[:, max(-shift, 0) : length - shift]
    start = max(shift, 0)
    return jnp.pad(x, ((0, 0), (start, length - start - x.shape[1]), (0, 0), (0, 0)))


def pad_moving_rows(x: Num[Array, "..."], config: TileConfig) -> Num[Array, "..."]:
    """Pad a matrix or a vector of moving rows, so that a kernel never reads beyond its ends."""
    widths = [(0, 0)] * x.ndim
    widths[2 if x.ndim == 3 else 1] = (count_leading_rows(config), config.block_rows)
    return jnp.pad(x, widths)


def matrix_type(rows: Float[Array, "B L N _"], width: int) -> jax.ShapeDtypeStruct:
    """Return the type of a matrix like `rows` whose last axis has the size `width`."""
    return jax.ShapeDtypeStruct((*rows.shape[:3], width), rows.dtype)
