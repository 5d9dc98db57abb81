"""Arrays of one attention call in the form that the TPU kernels read and write.

The kernels need positions in the lanes. Queries, keys, values and their gradients are transposed
from (B, L, N, W) to (B, N, W, L), and vectors have the shape (B, N, 1, L). Lengths are padded to
multiples of the tile sizes. Keys are also needed with positions in the sublanes, (B, N, L, W): the
left factor of a matrix product has one row per key.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from distattn_jax.attention.fused.call_arrays import collect_masks
from distattn_jax.attention.fused.operands import BackwardOperands, Operands
from distattn_jax.attention.fused.tpu.registers import LANES, SUBLANES
from distattn_jax.attention.fused.tpu.tile_configs import TileConfig


class KernelArrays:
    """Arrays of the kernels of one attention call."""

    def __init__(self, operands: Operands, config: TileConfig):
        """Transpose and pad the operands.

        Args:
          operands: Arrays of the call.
          config: Tile sizes.
        """
        self.operands = operands
        self.queries, self.keys = operands.query.shape[1], operands.key.shape[1]
        self.padded_queries = self.queries + -self.queries % config.queries
        self.padded_keys = self.keys + -self.keys % config.keys
        self.query = _transpose(operands.query, self.padded_queries)
        self.key = _transpose(operands.key, self.padded_keys)
        self.key_rows = jnp.swapaxes(self.key, 2, 3)  # The compiler removes unused copies.
        self.value = _transpose(operands.value, self.padded_keys)

    def transpose_queries(self, query: Float[Array, "B T N H"]) -> Float[Array, "B N H _"]:
        """Transpose and pad a matrix with one row per query."""
        return _transpose(query, self.padded_queries)

    def query_inputs(self, backward: BackwardOperands) -> dict[str, Array]:
        """Return the inputs of a gradient kernel that belong to queries, besides the queries."""
        assert backward.negative_delta is not None, "`query_gradient` computes it"
        return {
            "values_cotangent": _transpose(backward.values_cotangent, self.padded_queries),
            "logsumexp": backward.logsumexp[:, :, None],
            "negative_delta": self.pad_queries(backward.negative_delta),
        }

    def received_cotangent(self, backward: BackwardOperands) -> dict[str, Array]:
        """Return the cotangent of the received attention by its name, or an empty dict."""
        cotangent = backward.received_cotangent
        return {} if cotangent is None else {"received_cotangent": self.pad_keys(cotangent)}

    def masks(self, *, is_transposed: bool) -> tuple[dict[str, Array], ...]:
        """Return the masks and segments of rows, of columns and of entries, by name."""
        rows, columns = collect_masks(
            self.operands, self.pad_queries, self.pad_keys, is_transposed=is_transposed
        )
        entries: dict[str, Array] = {}
        if self.operands.mask is not None:
            mask = jnp.swapaxes(self.operands.mask[:, :, : self.queries, : self.keys], 2, 3)
            padding = (self.padded_keys - self.keys, self.padded_queries - self.queries)
            widths = ((0, 0), (0, 0), (0, padding[0]), (0, padding[1]))
            entries["mask"] = jnp.pad(mask, widths)
        return rows, columns, entries

    def arrange_by_diagonal(self, table: Float[Array, "B N D"]) -> Float[Array, "B N 1 _"]:
        """Return a table in which element `padded_keys` + query - key belongs to an entry.

        Args:
          table: One number for each relative position, as in `Operands.tables`.
        """
        length = self.padded_keys + self.padded_queries
        before = self.padded_keys - self.keys
        after = max(0, length - before - table.shape[2])
        return jnp.pad(table, ((0, 0), (0, 0), (before, after)))[:, :, None, :length]

    def arrange_positions(self, positions: Float[Array, "#B D #N H"]) -> Float[Array, "#B #N H _"]:
        """Return position vectors, where column `padded_queries` + key - query is of an entry.

        Args:
          positions: Position vectors, as in `Operands.positions`.
        """
        length = self.padded_keys + self.padded_queries
        before = self.padded_queries - self.queries
        flipped = jnp.flip(positions, axis=1)
        padding = ((0, 0), (before, max(0, length - before - flipped.shape[1])), (0, 0), (0, 0))
        return jnp.transpose(jnp.pad(flipped, padding)[:, :length], (0, 2, 3, 1))

    def restore_positions(
        self, gradient: Float[Array, "#B N _ 128"], positions: Float[Array, "#B D #N H"]
    ) -> Float[Array, "#B D #N H"]:
        """Return the gradient of the position vectors from the output of a kernel.

        Args:
          gradient: Output `positions` of the kernel `query_gradient`.
          positions: Position vectors, as in `Operands.positions`.
        """
        batch, heads, _, lanes = gradient.shape
        groups = gradient.reshape(batch, heads, -1, positions.shape[3], lanes)
        by_diagonal = jnp.transpose(groups, (0, 2, 4, 1, 3)).reshape(
            batch, -1, heads, positions.shape[3]
        )
        before = self.padded_queries - self.queries
        flipped = by_diagonal[:, before : before + positions.shape[1]]
        missing = positions.shape[1] - flipped.shape[1]
        result = jnp.flip(jnp.pad(flipped, ((0, 0), (0, missing), (0, 0), (0, 0))), axis=1)
        return result if positions.shape[2] == heads else result.sum(axis=2, keepdims=True)

    def arrange_by_relation(self, array: Float[Array, "#B _ N R"]) -> Float[Array, "#B N _ _"]:
        """Return an array by relation with one row per relation and one column per query.

        The number of relations is rounded up to a multiple of 8. An array that all queries share,
        whose second axis has the size 1, has 128 equal columns.
        """
        length = self.padded_queries
        if array.shape[1] == 1:
            length = LANES
            array = jnp.broadcast_to(array, (array.shape[0], LANES, *array.shape[2:]))
        padding = -array.shape[3] % SUBLANES
        return _transpose(jnp.pad(array, ((0, 0), (0, 0), (0, 0), (0, padding))), length)

    def pad_queries(self, vector: Num[Array, "#B #N _"]) -> Num[Array, "#B #N 1 _"]:
        """Pad a vector of one number per query with zeros, and insert an axis of size 1."""
        return _pad_vector(vector, self.padded_queries)

    def pad_keys(self, vector: Num[Array, "#B #N _"]) -> Num[Array, "#B #N 1 _"]:
        """Pad a vector of one number per key with zeros, and insert an axis of size 1."""
        return _pad_vector(vector, self.padded_keys)

    def query_type(self, width: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
        """Return the type of an output with one column per query."""
        batch, heads = self.query.shape[:2]
        return jax.ShapeDtypeStruct((batch, heads, width, self.padded_queries), dtype)

    def key_type(self, width: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
        """Return the type of an output with one column per key, for every query head."""
        batch, heads = self.query.shape[:2]
        return jax.ShapeDtypeStruct((batch, heads, width, self.padded_keys), dtype)


def restore(x: Float[Array, "B N W _"], length: int) -> Float[Array, "B {length} N W"]:
    """Transpose an output of a kernel to (B, L, N, W), and remove its padding."""
    return jnp.transpose(x, (0, 3, 1, 2))[:, :length]


def _transpose(x: Float[Array, "B L N W"], length: int) -> Float[Array, "B N W {length}"]:
    """Transpose a matrix for the kernels, and pad its positions with zeros."""
    x = jnp.transpose(x, (0, 2, 3, 1))
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, length - x.shape[3])))


def _pad_vector(vector: Num[Array, "#B #N L"], length: int) -> Num[Array, "#B #N 1 {length}"]:
    padding = length - vector.shape[2]
    return jnp.pad(vector, ((0, 0), (0, 0), (0, padding)))[:, :, None]
