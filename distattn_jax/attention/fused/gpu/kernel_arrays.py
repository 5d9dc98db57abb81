"""Arrays of one attention call in the form that the GPU kernels read and write.

A vector has one number per query or per key for each head. Its shape is (B, N, L). It is padded to
a multiple of all block and tile sizes, so that a kernel never reads or writes beyond its end. A
table, which has one number per relative position, is padded for the same reason. Matrices of shape
(B, L, N, W) need no such padding: the copy engine of the GPU (TMA) reads zeros beyond their end,
and writes nothing there.
"""

import jax.numpy as jnp
from jax import ShapeDtypeStruct
from jaxtyping import Array, Float, Int, Num

from distattn_jax.attention.fused.distance_functions import evaluate_at, unstack_coefficients
from distattn_jax.attention.fused.gpu import diagonal_sums
from distattn_jax.attention.fused.gpu.block_order import BlockOrder
from distattn_jax.attention.fused.gpu.kernel_body import count_leading_rows
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.saturation import LARGEST_FAR_BIAS
from distattn_jax.attention.fused.score_map import ScoreMap

BIAS_WEIGHTS = "bias_weights"


class KernelArrays:
    """Methods that convert the operands of one attention call to inputs of the GPU kernels.

    Attributes:
      operands: Arrays of the call.
      length_multiple: Least common multiple of the block sizes and tile sizes of all kernels. The
        length of each vector is padded to a multiple of this number.
    """

    def __init__(self, operands: Operands, length_multiple: int):
        self.operands, self.length_multiple = operands, length_multiple

    def mask_entries(self, score_map: ScoreMap, config: TileConfig) -> dict[str, Array]:
        """Return {"mask": mask}, or an empty dict if `Operands.mask` is None.

        The mask has the shape (B, N, rows, columns) of the score map, where B or N may be 1. It is
        `Operands.mask`, transposed if the rows of the score map are keys. For the kernel
        `position_gradient`, rows of zeros are added: see `KernelInputs.moving`.
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
        """Convert a table by relative position to a table by diagonal of the score map.

        The diagonal of entry (row, column) of the score map is d = row - column + C, where C is the
        padded number of columns. Element d of the result belongs to diagonal d. If the rows are
        keys, the order of the table is reversed. Elements for padded rows or columns are 0.

        Args:
          table: One number or vector for each relative position i - j of query i and key j: a table
            of `Operands.position_tables`, shape (B, N, D), or `Operands.positions`, shape
            (B, D, N, H). B may be 1. The result has the same axes, with a longer axis D.
          is_transposed: True if the rows of the score map are keys, and its columns are queries.
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

    def weigh_bias(self, config: TileConfig) -> dict[str, Float[Array, "#B N D"]]:
        """Return {BIAS_WEIGHTS: 2^bias} by diagonal, for tiles whose scores are the bias.

        The number is 0 where the bias is so large that it does not occur in such tiles.
        """
        bias = self.operands.bias_table
        assert bias is not None, "other calls have no such tiles"
        weights = jnp.where(jnp.abs(bias) <= LARGEST_FAR_BIAS, jnp.exp2(bias), 0.0)
        weights = self.arrange_by_diagonal(weights, is_transposed=False)
        padding = diagonal_sums.count_diagonals(config.columns)  # The last tile may need it.
        return {BIAS_WEIGHTS: jnp.pad(weights, ((0, 0), (0, 0), (0, padding)))}

    def table_type(self, order: BlockOrder) -> ShapeDtypeStruct:
        """Return the type of the gradient of a table of `Operands.position_tables` in the kernel.

        It has one row of D numbers for each warpgroup of each thread block: see
        `KernelBody.summed`.
        """
        rows, columns = (self.padded_length(x.shape[1]) for x in self.operands[:2])
        length = rows + columns + order.config.rows  # The last tile may reach beyond the diagonals.
        count = order.thread_blocks * order.config.warpgroups
        shape = (count, length + -length % diagonal_sums.THREADS)
        return ShapeDtypeStruct(shape, jnp.float32)

    def sum_table(
        self, parts: Float[Array, "_ _"], order: BlockOrder, shares: Int[Array, "G 3"] | None
    ) -> Float[Array, "B N D"]:
        """Add up the parts of the gradient of a position table, and remove the padding.

        Args:
          parts: Output of the kernel, whose type is `table_type`.
          order: Thread blocks of the kernel.
          shares: `KernelInputs.shares`.
        """
        rows, columns = (x.shape[1] for x in self.operands[:2])
        start = self.padded_length(columns) - columns
        parts = parts[:, start : start + rows + columns + 1]
        parts = parts.reshape(order.thread_blocks, order.config.warpgroups, -1)
        if shares is None:
            total = parts.reshape(order.pairs, -1, parts.shape[-1]).sum(axis=1)
        else:
            counts = (shares[:, :1] == jnp.arange(order.pairs)[None]).sum(axis=0)
            first = jnp.cumsum(counts) - counts
            total = jnp.zeros((order.pairs, parts.shape[-1]), jnp.float32)
            for i in range(order.most_parts):
                part = parts[jnp.minimum(first + i, order.thread_blocks - 1)]
                total += jnp.where((i < counts)[:, None], part.sum(axis=1), 0.0)
        return total.reshape(order.batch, order.heads, -1)

    def sum_positions(
        self, gradient: Float[Array, "B _ N H"], positions: Float[Array, "#B D #N H"]
    ) -> Float[Array, "#B D #N H"]:
        """Compute the gradient of `Operands.positions` from a gradient by diagonal.

        The order of `Operands.positions` is restored, and the padding is removed. If all examples
        share the position vectors, the gradient is summed over the examples. The same holds for
        heads.

        Args:
          gradient: Gradient for each example and head. Axis 1 is the diagonal, as in the result of
            `arrange_by_diagonal` with `is_transposed`.
          positions: `Operands.positions`.
        """
        queries = self.operands.query.shape[1]
        start = self.padded_length(queries) - queries
        gradient = jnp.flip(gradient[:, start : start + positions.shape[1]], axis=1)
        axes = [axis for axis in (0, 2) if positions.shape[axis] == 1]
        return gradient.sum(axis=axes, keepdims=True).astype(positions.dtype)

    def pad_vectors(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Return the same dict, with zeros added at the end of each vector.

        A vector is an array with three axes, shape (B, N, L). L is padded to a multiple of
        `length_multiple`. All other arrays stay unchanged.
        """

        def pad(x: Array) -> Array:
            return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % self.length_multiple)))

        return {name: pad(x) if x.ndim == 3 else x for name, x in arrays.items()}

    def pad_types(self, types: dict[str, ShapeDtypeStruct]) -> dict[str, ShapeDtypeStruct]:
        """Return the types of the results of `pad_vectors`, given the types of its arguments."""
        return {
            name: ShapeDtypeStruct((*x.shape[:2], self.padded_length(x.shape[2])), x.dtype)
            if len(x.shape) == 3
            else x
            for name, x in types.items()
        }

    def padded_length(self, length: int) -> int:
        """Round a length up to a multiple of `length_multiple`."""
        return length + -length % self.length_multiple


def tabulate_function(plan: Plan, operands: Operands) -> dict[str, Float[Array, "#B N D"]]:
    """Return {"function": table}, where the table contains the distance function f of each head.

    The table has the value of f for each relative position, times the height of the head, in the
    order of `Operands.factor_table`. The dict is empty if the scoring has no f. It is also empty if
    f is cheap to evaluate: the kernels then compute f from the distances.
    """
    function = plan.scoring.function
    if function is None or function.is_cheap:
        return {}
    distances = operands.table_distances.astype(jnp.float32)
    height = unstack_coefficients(operands.coefficients).height[..., None]
    return {"function": evaluate_at(function, distances, operands.coefficients) * height}


def shift_rows(
    x: Float[Array, "B L N W"], shift: int, length: int
) -> Float[Array, "B {length} N W"]:
    """Return an array y of `length` rows with y[:, i + shift] = x[:, i] for each row i of x.

    Rows of x that move to an index below 0 or above length - 1 are dropped. Rows of y that receive
    no row of x are 0. `shift` may be negative.
    """
    x = x[:, max(-shift, 0) : length - shift]
    start = max(shift, 0)
    return jnp.pad(x, ((0, 0), (start, length - start - x.shape[1]), (0, 0), (0, 0)))


def pad_moving_rows(x: Num[Array, "..."], config: TileConfig) -> Num[Array, "..."]:
    """Add rows of zeros to an array of `KernelInputs.moving`.

    The number of these rows is `count_leading_rows(config)` before the first row, and
    `config.block_rows` after the last row.

    Args:
      x: Vector of shape (B, N, L) or matrix of shape (B, L, N, W), where L is the number of rows.
    """
    widths = [(0, 0)] * x.ndim
    widths[2 if x.ndim == 3 else 1] = (count_leading_rows(config), config.block_rows)
    return jnp.pad(x, widths)
