"""Arrays that the fused kernels receive."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int8, UInt32

# Logsumexp of a query without a visible key: its weights 2^(score - logsumexp) are all 0. It is
# finite, because infinity minus infinity would be NaN.
EMPTY_LOGSUMEXP = 1e30


def select_precision(dtype: Any) -> lax.Precision | None:
    """Return the precision of the matrix products of a call, given the dtype of its queries.

    The result is the highest precision for float32, because a TPU rounds float32 numbers to
    bfloat16 by default. For all other dtypes it is None, the default precision.
    """
    return lax.Precision.HIGHEST if dtype == jnp.float32 else None


class Operands(NamedTuple):
    """Input arrays of the kernels.

    Only these fields have gradients: `query`, `key`, `value`, `coefficients`, `factor_table`,
    `bias_table`, `key_table`, `value_table`, `relation_products`, `position_query` and `positions`.
    A relation is a relative position, clipped at the distance k: see `relations`. Where the type of
    an array has #B or #N, this axis has size 1 if all examples or heads share the array.

    Attributes:
      query: Queries. Keys and values have the same dtype.
      key: Keys. K divides N: query head n attends to key head n // (N / K).
      value: Values with as many heads as the keys.
      coefficients: C numbers of the scoring for each head, which all examples share.
        `DistanceScoring`: those of `Coefficients`, in this order (C is 5). Others: C is 0.
      query_lengths: Number of queries of each example before the padding.
      key_lengths: Number of keys of each example before the padding.
      offset: Position of query 0 minus the position of key 0.
      key_mask: True for visible keys, False for masked and padded keys. None if the call has no
        mask of keys. At most one of `key_mask`, `query_mask` and `mask` is not None.
      query_mask: True for queries that attend to keys. None if the call has no mask of queries.
      mask: 1 where a query may attend to a key, otherwise 0. Its last two axes are queries and
        keys, padded to multiples of 16. None if the call has no mask of pairs.
      query_segments: Segment of each query. A key is visible only to queries of its own segment.
        None means one segment.
      key_segments: Segment of each key. None means one segment.
      dropout_words: Five numbers for each head: the seeds with which the indices of queries and of
        keys are hashed, the indices of query 0 and of key 0 in the whole sequence, and a threshold.
        Dropout drops an entry if its hash, one byte, is below the threshold. None disables dropout.
      dropout_scale: Factor of the kept weights. None disables dropout.
      factor_table: Function F of the relative position by which `TableScoring` multiplies q · k.
        The number at index x belongs to the queries i and keys j with i - j = x - S. x is from 0 to
        T + S, so that D is T + S + 1. None for other scorings, or without such a function.
      bias_table: Function G of the relative position that `TableScoring` adds, in the layout of
        `factor_table`. None for other scorings, or without such a function.
      factor_bound: Upper bound of |F| and of the absolute derivative of F by each of its
        parameters, for each number of `factor_table`. It determines the radius (see `saturation`)
        or the reach (see `forgetting`). None if neither is needed.
      bias_bound: Upper bound of |G| and of the absolute derivative of G by each of its parameters,
        for each number of `bias_table`. It determines the reach. None if no reach is needed.
      bias_change: Upper bound of |G - G∞| and of the same difference of the derivatives of G, for
        each number of `bias_table`. G∞ is the number at the largest distance on the same side. It
        determines the radius. None if no radius is needed.
      far_weights: Unnormalised weight 2^G∞ of a key before the query, and of a key after the query,
        in a head with `is_zero_beyond_radius` (see `skipped_tiles`). None means 1.
      reach: Largest distance of a key before a query, and of a key after a query, that kernels may
        not skip: see `forgetting`. None means that they skip no keys because of the distance.
      radius: Smallest distance from which on the distance function is treated as constant: see
        `saturation`. One number, or one for keys before and one for keys after the query. If None,
        the function is evaluated at all distances.
      is_zero_beyond_radius: True for a head whose products q · k beyond the radius are all treated
        as 0: the scores are 0, G or G∞ (see `skipped_tiles`). None means no such heads.
      has_small_scores: True for a head whose scores are all small: see `small_scores`. None means
        that no bound of the scores is known.
      key_table: Vectors that are added to the keys, one for each relation. None adds nothing. With
        `Scoring.multiplies_tables`, the kernels read the table without relation 0, whose vector was
        subtracted from the other vectors. All other kernels read `relation_products` instead.
      value_table: Vectors that are added to the values, one for each relation. None adds nothing.
        Only kernels with `Scoring.multiplies_tables` read the table. All others return relation
        weights.
      relation_products: One number for each query and each of R = 2k + 1 relations, added to q · k
        if query and key have that relation. The numbers of relation 0 are 0. None adds nothing.
      position_query: Queries that are multiplied by position vectors, for `PositionScoring`. None
        for other scorings.
      positions: Position vectors of `PositionScoring`. The vector at index x belongs to the queries
        i and keys j with i - j = x - S. x is from 0 to T + S, so that D is T + S + 1. Examples or
        heads may share the vectors. None for other scorings.
    """

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K E"]
    coefficients: Float[Array, "1 N C"]
    query_lengths: Int[Array, "#B"]
    key_lengths: Int[Array, "#B"]
    offset: Int[Array, "#B"]
    key_mask: Bool[Array, "#B #N S"] | None = None
    query_mask: Bool[Array, "#B #N T"] | None = None
    mask: Int8[Array, "#B #N _ _"] | None = None
    query_segments: Int[Array, "B T"] | None = None
    key_segments: Int[Array, "B S"] | None = None
    dropout_words: UInt32[Array, "B N 5"] | None = None
    dropout_scale: Float[Array, "B N 1"] | None = None
    factor_table: Float[Array, "#B N D"] | None = None
    bias_table: Float[Array, "#B N D"] | None = None
    factor_bound: Float[Array, "#B N D"] | None = None
    bias_bound: Float[Array, "#B N D"] | None = None
    bias_change: Float[Array, "#B N D"] | None = None
    far_weights: Float[Array, "#B N 2"] | None = None
    reach: Int[Array, "B N 2"] | None = None
    radius: Int[Array, "#B #N *sides"] | None = None
    is_zero_beyond_radius: Bool[Array, "B N"] | None = None
    has_small_scores: Bool[Array, "B N"] | None = None
    key_table: Float[Array, "#N R H"] | None = None
    value_table: Float[Array, "#N R E"] | None = None
    relation_products: Float[Array, "B T N R"] | None = None
    position_query: Float[Array, "B T N H"] | None = None
    positions: Float[Array, "#B D #N H"] | None = None

    @property
    def position_tables(self) -> dict[str, Float[Array, "#B N D"]]:
        """Tables of functions of the relative position that the call has, by name of the field."""
        tables = {"factor_table": self.factor_table, "bias_table": self.bias_table}
        return {name: table for name, table in tables.items() if table is not None}

    @property
    def table_distances(self) -> Int[Array, "#B 1 D"]:
        """Distance between query and key for each index x of a table: |x - S + offset|.

        See `factor_table`. S is the number of keys.
        """
        return jnp.abs(self.table_positions)

    @property
    def table_positions(self) -> Int[Array, "#B 1 D"]:
        """Position of the query minus position of the key for each index x: x - S + offset."""
        relative = jnp.arange(-self.key.shape[1], self.query.shape[1] + 1, dtype=jnp.int32)
        return (relative[None, :] + self.offset[:, None])[:, None, :]


class BackwardOperands(NamedTuple):
    """Inputs of the backward kernels in addition to `Operands`.

    O_i = Σ_j A_ij V_j is the attention output of query i, where A are the attention weights and V
    are the values of the keys.

    Attributes:
      values_cotangent: Cotangent dO of the attention output O. It is not the cotangent of V.
      received_cotangent: Cotangent g of the attention that each key receives, Σ_i A_ij. None if the
        call did not request the received attention.
      logsumexp: Logsumexp of the scores of each query, to base 2. Its last axis may be padded.
      values: Attention output O of the forward pass.
      other_delta: Σ_j A_ij g_j - dz_i for each query i, where dz is the cotangent of the logsumexp.
        With relation weights W (see `relations`), Σ_r W_ir G_ir is added. None means 0.
      negative_delta: -D_i = -(`other_delta` + dO_i · O_i) for each query i. The last axis may be
        padded. None before the kernel `query_gradient` runs, because this kernel may compute -D.
      relation_cotangent: Cotangent G of the relation weights. None if there are no such weights, or
        if the kernels multiply the tables (see `Scoring.multiplies_tables`).
      end_weights: Relation weights of relation 0 and of relation 2k, one number per query. The last
        axis may be padded. None if the kernels do not multiply the tables. The second is None
        under a causal mask.
      relation_vectors: Vectors by relation that the kernel `query_gradient` computes for
        `key_gradient`, by name. None before `query_gradient` runs.
      relation_matrices: Arrays by relation that the kernel `query_gradient` computes for
        `key_gradient`, by name. None before `query_gradient` runs.
    """

    values_cotangent: Float[Array, "B T N E"]
    received_cotangent: Float[Array, "B N _"] | None
    logsumexp: Float[Array, "B N _"]
    values: Float[Array, "B T N E"]
    other_delta: Float[Array, "B N T"] | None = None
    negative_delta: Float[Array, "B N _"] | None = None
    relation_cotangent: Float[Array, "B T N R"] | None = None
    end_weights: tuple[Float[Array, "B N _"], Float[Array, "B N _"] | None] | None = None
    relation_vectors: dict[str, Float[Array, "B N _"]] | None = None
    relation_matrices: dict[str, Float[Array, "B _ N _"]] | None = None
