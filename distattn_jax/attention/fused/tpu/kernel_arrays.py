"""Arrays of one attention call in the layout that the TPU kernels read and write.

The kernels need queries and keys along the last axis, which lies in the lanes of the registers.
Arrays such as queries, keys, values and their gradients are therefore transposed from (B, L, N, W)
to (B, N, W, L), where L is the number of queries or keys. Vectors have the shape (B, N, 1, L). L is
padded to a multiple of the tile size.

Some kernels read the keys as (B, N, L, W) instead, with one key per sublane, because the left
factor of a matrix product has one row per key.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.tpu.bands import count_rows
from distattn_jax.attention.fused.tpu.registers import LANES, SUBLANES
from distattn_jax.attention.fused.tpu.relation_tiles import GRADIENT
from distattn_jax.attention.fused.tpu.tile_configs import TileConfig


class KernelArrays:
    """Conversion of the arrays of one attention call to the layout of the TPU kernels, and back.

    Attributes:
      operands: Arrays of the call.
      queries: Number of queries.
      keys: Number of keys.
      padded_queries: Number of queries, rounded up to a multiple of the tile size.
      padded_keys: Number of keys, rounded up to a multiple of the tile size.
    """

    def __init__(self, operands: Operands, config: TileConfig):
        self.operands = operands
        self.queries, self.keys = operands.query.shape[1], operands.key.shape[1]
        self.padded_queries = self.queries + -self.queries % config.queries
        self.padded_keys = self.keys + -self.keys % config.keys

    def arrange(self, arrays: dict[str, Array], *, is_keys: bool) -> dict[str, Array]:
        """Convert matrices and vectors from the layout of `KernelCall` to that of the kernels.

        Matrices (B, L, N, W) become (B, N, W, L), and vectors (B, N, L) become (B, N, 1, L). L is
        padded to a multiple of the tile size.

        Args:
          arrays: Dict from name to array.
          is_keys: True if the arrays belong to keys, False if they belong to queries.
        """
        length = self.padded_keys if is_keys else self.padded_queries
        return {
            name: _pad_vector(x, length) if x.ndim == 3 else _transpose(x, length)
            for name, x in arrays.items()
        }

    def mask_entries(self) -> dict[str, Array]:
        """Return {"mask": mask}, or an empty dict if `Operands.mask` is None.

        The mask has the shape (B, N, keys, queries): one row per key and one column per query, both
        padded.
        """
        if self.operands.mask is None:
            return {}
        mask = jnp.swapaxes(self.operands.mask[:, :, : self.queries, : self.keys], 2, 3)
        padding = (self.padded_keys - self.keys, self.padded_queries - self.queries)
        return {"mask": jnp.pad(mask, ((0, 0), (0, 0), (0, padding[0]), (0, padding[1])))}

    def arrange_by_diagonal(self, table: Float[Array, "#B N D"]) -> Float[Array, "#B N 1 _"]:
        """Pad a table of the relative position, so that it covers the padded queries and keys.

        Element `padded_keys` + i - j of the result belongs to query i and key j.
        """
        length = self.padded_keys + self.padded_queries
        before = self.padded_keys - self.keys
        after = max(0, length - before - table.shape[2])
        return jnp.pad(table, ((0, 0), (0, 0), (before, after)))[:, :, None, :length]

    def arrange_positions(self, positions: Float[Array, "#B D #N H"]) -> Float[Array, "#B #N H _"]:
        """Transpose and pad the position vectors, so that they cover the padded queries and keys.

        Column `padded_queries` + j - i of the result belongs to query i and key j.
        """
        length = self.padded_keys + self.padded_queries
        before = self.padded_queries - self.queries
        flipped = jnp.flip(positions, axis=1)
        padding = ((0, 0), (before, max(0, length - before - flipped.shape[1])), (0, 0), (0, 0))
        return jnp.transpose(jnp.pad(flipped, padding)[:, :length], (0, 2, 3, 1))

    def arrange_by_relation(self, array: Float[Array, "B T N R"]) -> Float[Array, "B N _ _"]:
        """Transpose (B, queries, N, relations) to (B, N, relations, queries), with padding.

        The number of relations is rounded up to a multiple of 8.
        """
        padding = -array.shape[3] % SUBLANES
        padded = jnp.pad(array, ((0, 0), (0, 0), (0, 0), (0, padding)))
        return _transpose(padded, self.padded_queries)

    def output_types(self, call: KernelCall) -> dict[str, jax.ShapeDtypeStruct]:
        """Return a dict from name to shape and dtype of each output that a kernel writes."""
        types = {}
        batch, _, heads, _ = self.operands.query.shape
        length = self.padded_keys if call.score_map.is_transposed else self.padded_queries
        for name, x in call.output_types.items():
            width = 1 if len(x.shape) == 3 else x.shape[3]
            types[name] = jax.ShapeDtypeStruct((batch, heads, width, length), x.dtype)
        return (
            types
            | self._relation_types(call)
            | self._table_types(call)
            | self._position_types(call)
        )

    def restore_outputs(self, outputs: dict[str, Array], call: KernelCall) -> dict[str, Array]:
        """Convert the outputs of a kernel to the layout of `KernelCall`. Vectors stay padded."""
        length = self.keys if call.score_map.is_transposed else self.queries
        restored = {
            name: outputs[name][:, :, 0] if len(x.shape) == 3 else _restore(outputs[name], length)
            for name, x in call.output_types.items()
        }
        relations = 2 * call.score_map.scoring.clip_distance + 1
        if "relation_weights" in outputs:
            weights = _restore(outputs["relation_weights"], length)
            restored["relation_weights"] = weights[..., :relations]
        if GRADIENT in outputs:
            gradient = _restore(outputs[GRADIENT], length)
            restored["relation_products"] = gradient[..., :relations]
        for name in self._table_types(call):
            multiplier = call.score_map.scoring.gradient_multiplier(None)
            restored[name] = self._restore_table(outputs[name]) * multiplier
        if "positions" in outputs:
            restored["positions"] = self._restore_positions(outputs["positions"], call)
        return restored

    def _relation_types(self, call: KernelCall) -> dict[str, jax.ShapeDtypeStruct]:
        """Return {name: shape and dtype} of the output that has one row per relation.

        This output is `relation_weights` of the kernel `forward`, or the gradient of the relation
        products of `query_gradient`. The dict is empty if the kernel has no such output.
        """
        batch, _, heads, _ = self.operands.query.shape
        scoring = call.score_map.scoring
        rows = count_rows(scoring.clip_distance)
        by_query = jax.ShapeDtypeStruct((batch, heads, rows, self.padded_queries), jnp.float32)
        if call.name == "forward" and scoring.has_relation_weights:
            return {"relation_weights": by_query}
        if call.name == "query_gradient" and scoring.has_relation_products:
            return {GRADIENT: by_query}
        return {}

    def _table_types(self, call: KernelCall) -> dict[str, jax.ShapeDtypeStruct]:
        """Return {name: shape and dtype} of the gradients of `Operands.position_tables`.

        The dict is empty if the kernel does not compute these gradients.
        """
        if call.name != "query_gradient":
            return {}
        batch, _, heads, _ = self.operands.query.shape
        rows = (self.padded_queries + self.padded_keys) // LANES * SUBLANES
        shape = (batch, heads, rows, LANES)
        return dict.fromkeys(call.position_tables, jax.ShapeDtypeStruct(shape, jnp.float32))

    def _restore_table(self, sums: Float[Array, "B N _ 128"]) -> Float[Array, "B N D"]:
        """Convert sums along diagonals to the order of `Operands.factor_table`.

        Args:
          sums: Groups of 8 equal rows, stacked on axis 2. The rows of a group have the sums of 128
            consecutive diagonals.
        """
        by_diagonal = sums[:, :, ::SUBLANES].reshape(*sums.shape[:2], -1)
        length, before = self.queries + self.keys + 1, self.padded_queries - self.queries
        flipped = by_diagonal[:, :, before : before + length]
        missing = length - flipped.shape[2]
        return jnp.flip(jnp.pad(flipped, ((0, 0), (0, 0), (0, missing))), axis=2)

    def _position_types(self, call: KernelCall) -> dict[str, jax.ShapeDtypeStruct]:
        """Return {"positions": shape and dtype} of the gradient of the position vectors.

        The dict is empty if the kernel does not compute this gradient.
        """
        positions = self.operands.positions
        if call.name != "query_gradient" or positions is None:
            return {}
        heads, width = self.operands.query.shape[2:]
        rows = (self.padded_queries + self.padded_keys) // LANES * width
        # Shared vectors of all heads are summed after the kernel, before they are rounded.
        dtype = positions.dtype if positions.shape[2] == heads else jnp.float32
        return {"positions": jax.ShapeDtypeStruct((positions.shape[0], heads, rows, LANES), dtype)}

    def _restore_positions(
        self, gradient: Float[Array, "#B N _ 128"], call: KernelCall
    ) -> Float[Array, "#B D #N H"]:
        """Convert the output `positions` of a kernel to the gradient of `Operands.positions`.

        Args:
          gradient: Matrices of shape (H, 128), stacked on axis 2. Each has one column for each of
            128 consecutive diagonals, and one row for each component of a position vector.
          call: Call of the kernel.
        """
        positions, scoring = self.operands.positions, call.score_map.scoring
        assert positions is not None, "the kernel has computed their gradient"
        batch, heads, _, lanes = gradient.shape
        groups = gradient.reshape(batch, heads, -1, positions.shape[3], lanes)
        by_diagonal = jnp.transpose(groups, (0, 2, 4, 1, 3)).reshape(
            batch, -1, heads, positions.shape[3]
        )
        before = self.padded_queries - self.queries
        flipped = by_diagonal[:, before : before + positions.shape[1]]
        missing = positions.shape[1] - flipped.shape[1]
        result = jnp.flip(jnp.pad(flipped, ((0, 0), (0, missing), (0, 0), (0, 0))), axis=1)
        result = result if positions.shape[2] == heads else result.sum(axis=2, keepdims=True)
        return (result * scoring.scale).astype(positions.dtype)


def _restore(x: Float[Array, "B N W _"], length: int) -> Float[Array, "B {length} N W"]:
    """Transpose an output of a kernel to (B, L, N, W), and remove its padding."""
    return jnp.transpose(x, (0, 3, 1, 2))[:, :length]


def _transpose(x: Float[Array, "B L N W"], length: int) -> Float[Array, "B N W {length}"]:
    """Transpose (B, L, N, W) to (B, N, W, L), and pad L with zeros to `length`."""
    x = jnp.transpose(x, (0, 2, 3, 1))
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, length - x.shape[3])))


def _pad_vector(vector: Num[Array, "#B #N L"], length: int) -> Num[Array, "#B #N 1 {length}"]:
    padding = length - vector.shape[2]
    return jnp.pad(vector, ((0, 0), (0, 0), (0, padding)))[:, :, None]
