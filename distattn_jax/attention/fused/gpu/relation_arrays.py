"""Arrays with one number for each query and relation, as inputs and outputs of the kernels.

The module `relations` of the package `fused` defines relations and end relations. The module
`relation_tiles` describes how the kernels read and write these arrays. The module `relation_rows`
describes the arrays of kernels that multiply the tables of relations.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from distattn_jax import hash
from distattn_jax.attention.fused.gpu import relation_rows
from distattn_jax.attention.fused.gpu.kernel_body import TABLE_PADDING
from distattn_jax.attention.fused.gpu.relation_tiles import SUFFIXES
from distattn_jax.attention.fused.gpu.tile_configs import TileConfig
from distattn_jax.attention.fused.kernel_calls import RELATION_MATRICES, KernelCall
from distattn_jax.attention.fused.kernels import Plan
from distattn_jax.attention.fused.operands import Operands
from distattn_jax.attention.fused.relations import AFTER, BEFORE, end_sides
from distattn_jax.attention.fused.tile_runs import TileSchedule

Outputs = dict[str, Array]


class RelationArrays:
    """Converts arrays with one number for each query and relation, for the kernels of one call.

    Before a kernel, `inputs` makes the inputs of the kernel. After a kernel, `assemble` combines
    its outputs. In all inputs and outputs, the number of queries is padded to a multiple of
    `length_multiple`, so that a kernel never reads or writes beyond the end of an array. A relation
    is a clipped relative position, numbered from 0 to 2k, where k is the clip distance: see the
    module `relations`.
    """

    def __init__(self, plan: Plan, operands: Operands, length_multiple: int):
        self.operands = operands
        batch, length, heads, _ = operands.query.shape
        self.padding = -length % length_multiple
        self.scoring = plan.scoring
        self.sides = end_sides(is_causal=plan.window.is_causal)
        self.vector_shape = (batch, heads, length + self.padding)

    def inputs(
        self, arrays: dict[str, Float[Array, "B T N R"]]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Convert the arrays of `KernelCall.relations` to inputs of a kernel.

        Args:
          arrays: Dict from name to array. R = 2k + 1 is the number of relations.

        Returns:
          Two dicts. The first contains the padded arrays under the same names, shape
          (B, padded T, N, R). The second contains vectors of shape (B, N, padded T): the numbers of
          relation 0 under the name of the array plus "_before", and those of relation 2k under the
          name plus "_after". A vector whose numbers are all 0 is absent. Both dicts are empty if
          `arrays` is empty.
        """
        matrices, vectors = {}, {}
        for name, array in arrays.items():
            if name in RELATION_MATRICES:  # an output of `query_gradient`, already padded
                matrices[name] = array
                continue
            array = jnp.pad(array, ((0, 0), (0, self.padding), (0, 0), (0, 0)))
            matrices[name] = array
            for side in self._vector_sides(name):
                end = array[..., 0 if side == BEFORE else -1]
                vectors[name + SUFFIXES[side]] = jnp.moveaxis(end, 1, 2)
        return matrices, vectors

    def table_inputs(self, kernel: str) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the tables that a kernel multiplies, as fields of `KernelInputs`.

        Returns:
          Two dicts: `KernelInputs.tables`, and additions to `KernelInputs.gathered`. Both are empty
          if the kernel multiplies no tables: see `relation_rows`.
        """
        tables: dict[str, Array] = {}
        if not self.scoring.multiplies_tables or kernel not in ("forward", "query_gradient"):
            return tables, {}
        key_table, value_table = self.operands.key_table, self.operands.value_table
        if key_table is not None:
            tables["key_table"] = self._arrange_table(key_table)
        if value_table is None:
            return tables, {}
        tables["value_table"] = self._arrange_table(value_table[:, 1:])
        # XLA may pass a slice of an array to a kernel without a copy. The kernel refuses a slice
        # that is not aligned. A padded slice is always a copy.
        first_value = jnp.pad(value_table[:, :1], ((0, 0), (0, 1), (0, 0)))
        return tables, {"first_value": jnp.moveaxis(first_value[None], 1, 2)}

    def _arrange_table(self, table: Float[Array, "#N R W"]) -> Float[Array, "1 _ #N W"]:
        """Convert a table without relation 0 to an array of `KernelInputs.tables`.

        The array has more rows than the kernels read, so that it is never a slice of another array.
        """
        rows = relation_rows.count_columns(self.scoring.clip_distance) + TABLE_PADDING
        table = jnp.pad(table, ((0, 0), (0, rows - table.shape[1]), (0, 0)))
        table = table.astype(self.operands.query.dtype)
        return jnp.moveaxis(table[None], 1, 2)

    def table_gradients(
        self, outputs: Outputs, values_cotangent: Float[Array, "B T N E"]
    ) -> dict[str, Float[Array, "#N R W"]]:
        """Return the gradients of the tables, from the outputs of the kernel `query_gradient`.

        The gradients are matrix products: see `relation_rows`. The result is a dict with the keys
        "key_table" and "value_table". It is empty if the kernels multiply no tables.
        """
        gradients: dict[str, Array] = {}
        operands, relations = self.operands, 2 * self.scoring.clip_distance
        if not self.scoring.multiplies_tables:
            return gradients
        if operands.key_table is not None:
            gradient = _sum_products(
                outputs[relation_rows.GRADIENT], operands.query, operands.key_table
            )
            gradients["key_table"] = self.scoring.scale * gradient[:, :relations]
        if operands.value_table is not None:
            gradient = _sum_products(
                outputs[relation_rows.WEIGHTS], values_cotangent, operands.value_table
            )
            first = relation_rows.count_columns(self.scoring.clip_distance)
            gradients["value_table"] = jnp.concatenate(
                (gradient[:, first : first + 1], gradient[:, :relations]), axis=1
            )
        return gradients

    def vector_names(self, *, has_cotangent: bool) -> list[str]:
        """Return the names of the vectors by relation that a kernel reads.

        They are in the second dict that `inputs` returns. If the kernels multiply tables, they are
        outputs of the kernel `query_gradient` instead.

        Args:
          has_cotangent: True if the kernel reads the cotangent of the relation weights.
        """
        names = ["relation_products"] * self.scoring.has_relation_products
        names += ["relation_cotangent"] * has_cotangent
        return [name + SUFFIXES[side] for name in names for side in self._vector_sides(name)]

    def _vector_sides(self, name: str) -> list[int]:
        """Return the end relations for which `inputs` makes a vector from an array.

        The result is a list of BEFORE, which stands for relation 0, and AFTER, which stands for
        relation 2k. A side is absent if all numbers of its vector would be 0. The relation products
        of relation 0 are 0. Without dropout, the cotangent of relation 0 is also 0: see
        `derivative`. Under a causal mask, AFTER is absent, because no key has relation 2k.

        Args:
          name: Name of the array: "relation_products" or "relation_cotangent".
        """
        has_before = name == "relation_cotangent" and self.operands.dropout_words is not None
        return [side for side in self.sides if side == AFTER or has_before]

    def output_types(self, kernel: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the types of those outputs of a kernel that depend on relations.

        The result is a dict from name to type. It is empty if the kernel has no such outputs.

        Args:
          kernel: Name of the kernel.
        """
        if self.scoring.multiplies_tables:
            return self._table_output_types(kernel)
        if kernel == "forward" and self.scoring.has_relation_weights:
            return self._types("band_scores", [f"weight{SUFFIXES[side]}" for side in self.sides])
        if kernel == "query_gradient" and self.scoring.has_relation_products:
            return self._types("band_gradient", ["gradient_after"] if AFTER in self.sides else [])
        return {}

    def _table_output_types(self, kernel: str) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the result of `output_types` for kernels that multiply tables."""
        vector_type = jax.ShapeDtypeStruct(self.vector_shape, jnp.float32)
        has_weights = self.scoring.has_relation_weights
        if kernel == "forward" and has_weights:
            return {f"weight{SUFFIXES[side]}": vector_type for side in self.sides}
        if kernel != "query_gradient":
            return {}
        (batch, heads, length), dtype = self.vector_shape, self.operands.query.dtype
        columns = relation_rows.count_columns(self.scoring.clip_distance)
        widths = {
            relation_rows.WEIGHTS: columns + relation_rows.FIRST_COLUMNS,
            relation_rows.GRADIENT: columns,
        }
        return {
            **dict.fromkeys(self.vector_names(has_cotangent=has_weights), vector_type),
            **{
                name: jax.ShapeDtypeStruct((batch, length, heads, width), dtype)
                for name, width in widths.items()
            },
        }

    def _types(self, matrix: str, vectors: list[str]) -> dict[str, jax.ShapeDtypeStruct]:
        batch, heads, length = self.vector_shape
        shape = (batch, length, heads, 2 * self.scoring.clip_distance + 1)
        vector_type = jax.ShapeDtypeStruct(self.vector_shape, jnp.float32)
        return {
            matrix: jax.ShapeDtypeStruct(shape, jnp.float32),
            **dict.fromkeys(vectors, vector_type),
        }

    def assemble(self, outputs: Outputs, call: KernelCall, config: TileConfig) -> Outputs:
        """Combine the outputs of a kernel that depend on relations into one array.

        The result is {"relation_weights": W} for the kernel `forward`, and
        {"relation_products": dP} for the kernel `query_gradient`. W and dP have shape
        (B, T, N, 2k + 1): see the module `relations`. The dict is empty if no output of the kernel
        depends on relations.
        """
        if "band_scores" in outputs:
            is_written = self._find_written_entries(call.schedule, config)
            return {"relation_weights": self._assemble_weights(outputs, is_written)}
        if "band_gradient" in outputs:
            is_written = self._find_written_entries(call.schedule, config)
            return {"relation_products": self._assemble_gradient(outputs, is_written)}
        return {}

    def _assemble_weights(
        self, outputs: Outputs, is_kept: Bool[Array, "#B T #N R"]
    ) -> Float[Array, "B T N R"]:
        """Compute the relation weights W from the outputs of the forward kernel.

        The output `band_scores` contains scores, from which the weights are computed. Masked
        entries have the score -1e30 and thus the weight 0.

        Args:
          outputs: Dict from name to output of the kernel.
          is_kept: True for each query and relation whose score the kernel has written.
        """
        operands = self.operands
        scores = outputs["band_scores"][:, : operands.query.shape[1]]
        logsumexp = _as_column(outputs["logsumexp"], scores)
        weights = jnp.exp2(scores * self.scoring.score_multiplier(None) - logsumexp)
        if operands.dropout_words is not None and operands.dropout_scale is not None:
            weights *= operands.dropout_scale[:, None]
            is_kept &= self._find_kept_entries(operands.dropout_words)
        ends = outputs["weight_before"], outputs.get("weight_after")
        return _add_ends(weights, is_kept, ends)

    def _assemble_gradient(
        self, outputs: Outputs, is_written: Bool[Array, "#B T #N R"]
    ) -> Float[Array, "B T N R"]:
        """Compute the gradient of the relation products from the outputs of `query_gradient`.

        The gradient of relation 0 is 0, because the relation products of relation 0 are always 0:
        see the module `relations`.

        Args:
          outputs: Dict from name to output of the kernel.
          is_written: True for each query and relation whose gradient the kernel has written.
        """
        gradient = outputs["band_gradient"][:, : self.operands.query.shape[1]]
        gradient = _add_ends(gradient, is_written, (None, outputs.get("gradient_after")))
        return gradient * self.scoring.scale

    def _find_written_entries(self, schedule: TileSchedule, config: TileConfig) -> Array:
        """Return a mask that is True where a kernel has written a number, shape (B, T, N, R).

        Each relation from 1 to 2k - 1 of a query belongs to one key. The kernel writes the number
        of this query and relation when it visits the tile that contains the key. If it does not
        visit the tile, the number is undefined, and the mask is False. For relations 0 and 2k, do
        not use the mask. B or N is 1 if all examples or heads visit the same tiles.
        """
        query, key = self._indices()
        first, end = (
            jnp.repeat(bound * config.columns, config.block_rows // schedule.parts, axis=2)
            for bound in (schedule.start, schedule.end)
        )
        return (key >= _as_column(first, query)) & (key < _as_column(end, query))

    def _find_kept_entries(self, dropout_words: UInt32[Array, "B N 5"]) -> Bool[Array, "B T N R"]:
        """Return a mask that is True for each query and relation whose weight is kept by dropout.

        The weight is that of the only key in the relation. For relations 0 and 2k, which can have
        several keys, do not use the mask.
        """
        query, key = self._indices()
        words = jnp.moveaxis(dropout_words, -1, 0)[:, :, None, :, None]
        query_word, key_word, *first, threshold = words
        first_query, first_key = (index.astype(jnp.int32) for index in first)
        query_hash, query_shift = hash.hash_indices(query_word, first_query + query, shift=16)
        key_hash, key_shift = hash.hash_indices(key_word, first_key + key, shift=8)
        return hash.is_kept(query_hash ^ key_hash, query_shift + key_shift, threshold)

    def _indices(self) -> tuple[Int[Array, "1 T 1 1"], Int[Array, "#B T 1 R"]]:
        """Return the index of each query, and the index of the key for each query and relation.

        Relations r are numbered from 0 to 2k, where k is the largest distance that has a relation
        of its own. Query i and the key with index i + offset + r - k have the relation r. The
        index may be negative or beyond the last key: then there is no such key. The relations 0
        and 2k have further keys, which are farther away.
        """
        k, offset = self.scoring.clip_distance, self.operands.offset
        query = jnp.arange(self.operands.query.shape[1], dtype=jnp.int32)[None, :, None, None]
        distance = jnp.arange(-k, k + 1, dtype=jnp.int32)[None, None, None, :]
        return query, query + offset[:, None, None, None] + distance


def _sum_products(
    rows: Float[Array, "B _ N R"], vectors: Float[Array, "B T N W"], table: Float[Array, "#N _ _"]
) -> Float[Array, "#N R W"]:
    """Return Σ_i rows[i, r] vectors[i] for each relation r, over all queries i, in float32.

    If all heads share `table`, the result is also summed over the heads.
    """
    equation = "btnr,btnw->rw" if table.shape[0] == 1 else "btnr,btnw->nrw"
    rows = rows[:, : vectors.shape[1]]
    result = jnp.einsum(equation, rows, vectors, preferred_element_type=jnp.float32)
    return result.reshape(table.shape[0], *result.shape[-2:])


def _add_ends(
    inner: Float[Array, "B T N R"],
    is_written: Bool[Array, "#B T #N R"],
    ends: tuple[Array | None, Array | None],
) -> Float[Array, "B T N R"]:
    """Return `inner` with the numbers of the relations 0 and 2k replaced by those in `ends`.

    Args:
      inner: Array for all 2k + 1 relations. Only the relations 1 to 2k - 1 are used.
      is_written: False for the numbers of `inner` that are undefined. They are replaced by 0.
      ends: Two arrays of shape (B, N, padded T): the numbers of relation 0 and those of relation
        2k. None stands for zeros.
    """
    relation = jnp.arange(inner.shape[-1])[None, None, None, :]
    result = jnp.where(is_written, inner, 0)
    for end, index in zip(ends, (0, inner.shape[-1] - 1), strict=True):
        column = jnp.float32(0) if end is None else _as_column(end, inner)
        result = jnp.where(relation == index, column, result)
    return result


def _as_column(vector: Array, rows: Array) -> Array:
    """Convert a vector (B, N, padded T) to an array (B, T, N, 1), where T is rows.shape[1]."""
    return jnp.moveaxis(vector[:, :, : rows.shape[1]], 1, 2)[..., None]
