"""Public functions `attention` and `explain_implementation`, which validate their arguments."""

import inspect
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Bool, Float, Int

from distattn_jax.attention import validation
from distattn_jax.attention.arguments import Attended, AttentionCall, Options
from distattn_jax.attention.dropout import is_off, make_words
from distattn_jax.attention.explanation import Explanation, explain, warn_if_slow
from distattn_jax.attention.implementations import check_name, compute
from distattn_jax.attention.precision import ROUNDED, set_precision, validate_precision
from distattn_jax.attention.sequence_plan import SequenceAxis, ShardedSequence, find_axis
from distattn_jax.attention.sharded_sequence import compute_sharded
from distattn_jax.attention.variants import Variant, promote


def attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K E"],
    variant: Variant,
    *,
    mask: Bool[Array, "#B #N #T #S"] | None = None,
    query_lengths: Int[Array, " B"] | None = None,
    key_lengths: Int[Array, " B"] | None = None,
    is_causal: bool = False,
    query_offset: int | Int[Array, ""] | Int[Array, " B"] = 0,
    dropout_rate: float | Float[Array, ""] = 0.0,
    dropout_key: Array | None = None,
    scale: float | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    query_segments: Int[Array, "B T"] | None = None,
    key_segments: Int[Array, "B S"] | None = None,
    received: bool = False,
    weights: bool = False,
    logsumexp: bool = False,
    precision: Any = None,
    implementation: str | None = None,
    sequence: str | ShardedSequence | None = None,
) -> Attended:
    """Compute attention of any variant, for all heads of a batch.

    A padding query, or a query without a visible key, has output 0 and gradient 0, and adds nothing
    to `received`. Scores and softmax are float32, or float64 if the query or the key is float64.

    Query i has the position i + query_offset, and key j has the position j. Use `query_offset` for
    a memory of earlier keys, for decoding with a cache, and for one shard of the queries. Use
    segments for several sequences packed into one row. Other positions cannot be passed.

    Args:
      query: Queries, shape (B, T, N, H).
      key: Keys, shape (B, S, K, H). K divides N: query head n attends to key head n // (N / K).
      value: Values, shape (B, S, K, E). E may differ from H.
      variant: Attention variant, such as `DotProduct()` or `DistanceAware(...)`.
      mask: True where a query may attend to a key. It has four axes that are broadcast against
        (B, N, T, S), but it is never expanded to that shape in memory. None means no mask.
      query_lengths: Number of queries of each example, shape (B,). Later queries are padding.
      key_lengths: Number of keys of each example, shape (B,). Later keys are padding, and are
        masked.
      is_causal: If True, key j is visible to query i only if j <= i + query_offset.
      query_offset: Position of the first query minus the position of the first key, for example the
        number of cached keys. It is one integer for all examples, or an array with one integer per
        example. It may be traced.
      dropout_rate: Probability of dropping a weight, at least 0 and below 1. It is rounded to a
        multiple of 1/256, but a positive rate is never rounded to 0. It may be traced.
      dropout_key: PRNG key for dropout, required unless `dropout_rate` is 0. Every implementation
        drops the same weights for the same key.
      scale: Factor that multiplies the dot products of queries and keys. None selects the factor of
        the variant: 1 for `Adapted`, and 1/√H for all others.
      local_window_size: Pair (left, right). A query attends to keys at most `left` positions before
        it and at most `right` positions after it. One integer stands for both. None means that keys
        at all distances are visible.
      query_segments: Segment number of each query, shape (B, T), for several sequences packed into
        a row. A query attends only to keys of its own segment. For variants that use positions,
        query i and key i + query_offset must belong to the same segment.
      key_segments: Segment number of each key, shape (B, S). It is required with `query_segments`.
      received: If True, return the attention weights of each key, summed over the queries.
      weights: If True, return the attention weights.
      logsumexp: If True, return log Σ_j exp(score_ij) over the visible keys j of each query i. It
        is needed to merge the outputs of several calls that each have a part of the keys.
      precision: Precision of the matrix products: a `jax.lax.Precision`, a
        `jax.lax.DotAlgorithmPreset`, or the name of one. None means the default of JAX.
        "BF16_BF16_F32" and "F16_F16_F32" round query, key and value to 16 bits on every device, so
        that the fused kernels for 16-bit inputs compute a float32 call. The outputs keep their
        dtypes. Other precisions are settings of JAX for products of float32 numbers: they do not
        change products of 16-bit numbers, and "reference" and "pallas" always use the highest one.
      implementation: "reference", "xla", "cudnn", "pallas" or "pallas_portable". On NVIDIA GPUs
        other than Hopper, "pallas" means "pallas_portable". None selects an implementation that
        supports the device, the dtype and the requested outputs: one of the last three if possible,
        otherwise "xla". Only "xla" and "reference" support forward-mode and second derivatives.
      sequence: Mesh axis that shards the sequence of query, key and value, or a `ShardedSequence`,
        which also names the strategy. None means the axis that shards the query of a mesh with
        Explicit axes, or the axis "sequence" or "context" of a mesh with Auto axes. Inside your own
        `shard_map`, name the axis: query, key, value and segments are then shards, and lengths and
        `query_offset` are those of the whole sequence. A mask of pairs has all keys.

    Returns:
      values: Weighted sum of values for each query, shape (B, T, N, E).
      received: Attention weights summed over the queries, shape (B, N, S), or None.
      weights: Attention weights, shape (B, N, T, S), or None.
      logsumexp: Shape (B, N, T), or None. It is -inf for a query without a visible key.

      Dropout affects `values` only.
    """
    precision = validate_precision(precision)
    call, axis = prepare_call(
        query,
        key,
        value,
        variant,
        mask=mask,
        query_lengths=query_lengths,
        key_lengths=key_lengths,
        is_causal=is_causal,
        query_offset=query_offset,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        scale=scale,
        local_window_size=local_window_size,
        query_segments=query_segments,
        key_segments=key_segments,
        received=received,
        weights=weights,
        logsumexp=logsumexp,
        precision=precision,
        sequence=sequence,
    )
    if implementation is None:
        warn_if_slow(call)
    with set_precision(precision):
        if axis is None:
            attended = compute(call, implementation)
        else:
            attended = compute_sharded(call, implementation, axis)
    if precision in ROUNDED:
        attended = _restore_dtypes(attended, query, key, value)
    return _shard_queries_like(call.query, attended)


def explain_implementation(
    query: Float[Array, "B T N H"] | jax.ShapeDtypeStruct,
    key: Float[Array, "B S K H"] | jax.ShapeDtypeStruct,
    value: Float[Array, "B S K E"] | jax.ShapeDtypeStruct,
    variant: Variant,
    **arguments: Any,
) -> Explanation:
    """Return which implementation `attention` chooses on GPU, TPU and CPU, and why.

    `print` shows the result as a table. Nothing is computed: every array, also an array of the
    variant, may be a `jax.ShapeDtypeStruct`. The GPU or TPU is the one of this machine. If there is
    none, a Hopper GPU and a TPU v5e are assumed. The version of JAX is the installed one.

    Example:
      >>> x = jax.ShapeDtypeStruct((8, 2048, 16, 64), "float32")
      >>> print(explain_implementation(x, x, x, DotProduct(), weights=True).cpu.implementation)
      xla

    Args:
      query: Queries, shape (B, T, N, H).
      key: Keys, shape (B, S, K, H).
      value: Values, shape (B, S, K, E).
      variant: Attention variant.
      **arguments: Other arguments of `attention`.
    """
    bound = inspect.signature(attention).bind(query, key, value, variant, **arguments)
    bound.apply_defaults()
    implementation = bound.arguments.pop("implementation")
    check_name(implementation)
    bound.arguments["precision"] = validate_precision(bound.arguments["precision"])
    leaves, structure = jax.tree.flatten(bound.arguments)
    is_abstract = [isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves]
    explanations = []

    def trace(abstract: list[Array]) -> None:
        traced = iter(abstract)
        filled = [
            next(traced) if is_a else leaf for is_a, leaf in zip(is_abstract, leaves, strict=True)
        ]
        call, axis = prepare_call(**jax.tree.unflatten(structure, filled))
        explanations.append(explain(call, implementation, axis))

    jax.eval_shape(trace, list(itertools.compress(leaves, is_abstract)))
    return explanations[0]


def prepare_call(
    query: Any,
    key: Any,
    value: Any,
    variant: Any,
    *,
    mask: Any,
    query_lengths: Any,
    key_lengths: Any,
    is_causal: Any,
    query_offset: Any,
    dropout_rate: Any,
    dropout_key: Any,
    scale: Any,
    local_window_size: Any,
    query_segments: Any,
    key_segments: Any,
    received: Any,
    weights: Any,
    logsumexp: Any,
    precision: str | None,
    sequence: Any,
) -> tuple[AttentionCall, SequenceAxis | None]:
    """Validate the arguments of `attention`, and convert them to arrays.

    Query, key and value are rounded if `precision`, a result of `validate_precision`, says so. The
    second result is the mesh axis that shards the sequence, or None.
    """
    validation.check_arrays(query, key, value)
    dtype = None if precision is None else ROUNDED.get(precision)
    query, key, value = (jnp.asarray(x, dtype) for x in (query, key, value))
    axis = find_axis(query, key, sequence)
    shards = 1 if axis is None else axis.manual_shards
    batch, queries, heads, width = query.shape
    keys, value_width = value.shape[1], value.shape[3]
    call_shape = (batch, queries, keys)
    validation.check_variant(variant, heads, width, value_width)
    validation.check_flags(
        is_causal=is_causal, received=received, weights=weights, logsumexp=logsumexp
    )
    query_segments, key_segments = validation.validate_segments(
        call_shape, query_segments, key_segments
    )
    offset = validation.validate_offset(query_offset, call_shape)
    aligned = isinstance(query_offset, int) and query_offset == 0
    validation.check_packing(variant, query_segments, key_segments, offset, aligned)
    dropout_words = None
    if not is_off(dropout_rate):
        validation.check_dropout(dropout_rate, dropout_key)
        assert dropout_key is not None, "check_dropout requires a key"
        dropout_words = make_words(dropout_key)
    dtype = promote(jnp.promote_types(query.dtype, key.dtype))
    if dtype == jnp.float64:
        query, key = query.astype(dtype), key.astype(dtype)
    call = AttentionCall(
        query=query,
        key=key,
        value=value,
        variant=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), variant),
        mask=validation.validate_mask(mask, (batch, heads, queries, keys), shards),
        query_lengths=validation.validate_lengths(
            "query_lengths", query_lengths, (batch,), queries * shards
        ),
        key_lengths=validation.validate_lengths(
            "key_lengths", key_lengths, (batch,), keys * shards
        ),
        query_segments=query_segments,
        key_segments=key_segments,
        offset=offset,
        dropout_rate=None if dropout_words is None else jnp.asarray(dropout_rate, jnp.float32),
        dropout_words=dropout_words,
        options=Options(
            scale=validation.validate_scale(scale, variant.default_scale(width)),
            is_causal=bool(is_causal),
            window=validation.validate_window(local_window_size),
            aligned=aligned,
            received=bool(received),
            weights=bool(weights),
            logsumexp=bool(logsumexp),
        ),
    )
    return call, axis


def _restore_dtypes(attended: Attended, query: Array, key: Array, value: Array) -> Attended:
    """Convert outputs of rounded inputs to the dtypes that they would have without rounding."""
    dtype = jax.dtypes.canonicalize_dtype(promote(jnp.promote_types(query.dtype, key.dtype)))
    values = attended.values.astype(jax.dtypes.canonicalize_dtype(value.dtype))
    scores = jax.tree.map(lambda output: output.astype(dtype), attended[1:])
    return Attended(values, *scores)


def _shard_queries_like(query: Array, attended: Attended) -> Attended:
    """Shard the outputs along the axis of queries like the query, on a mesh with Explicit axes."""
    sharding = jax.typeof(query).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types or sharding.spec[1] is None:
        return attended

    def shard(output: Array, axis: int) -> Array:
        names = list(jax.typeof(output).sharding.spec)
        names[axis] = sharding.spec[1]
        return reshard(output, NamedSharding(sharding.mesh, PartitionSpec(*names)))

    return attended._replace(
        values=shard(attended.values, 1),
        weights=None if attended.weights is None else shard(attended.weights, 2),
        logsumexp=None if attended.logsumexp is None else shard(attended.logsumexp, 2),
    )
