"""Implementations "pallas" and "pallas_portable": fused kernels of the package `fused`.

"pallas" has kernels for Hopper GPUs and for TPUs. "pallas_portable" has kernels for all NVIDIA GPUs
from compute capability 8.0 on.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from distattn_jax.attention import devices
from distattn_jax.attention.arguments import Attended, AttentionCall
from distattn_jax.attention.dropout import drop_threshold, kept_scale, make_head_words
from distattn_jax.attention.fused import attend, interpreter, mesh
from distattn_jax.attention.fused.kernel_view import Block
from distattn_jax.attention.fused.kernels import KernelFactory
from distattn_jax.attention.fused.relations import MAX_TABLE_DISTANCE
from distattn_jax.attention.fused.variants import find_view
from distattn_jax.attention.fused.variants.dot_product import written_width
from distattn_jax.attention.fused.visible_columns import UNBOUNDED, Window
from distattn_jax.attention.variants import Variant

OLDEST_JAX = (0, 11)
HOPPER = 9  # compute capability: only this generation has the matrix instructions of the kernels
AMPERE = 8.0  # compute capability: older generations lack the instructions of the portable form
BLACKWELL = 10.0  # compute capability: B200 and newer, and RTX 50
# The portable form of the kernels for GPUs has not run on any chip but Hopper. False lets
# `implementation=None` never choose it. It can still be named.
CHOOSES_PORTABLE = True
KIB = 1024
SMALL_SHARED_MEMORY, LARGE_SHARED_MEMORY = 100 * KIB, 164 * KIB
# Bytes of shared memory of a processor of a GPU by compute capability, except for 100 KiB.
SHARED_MEMORY = {8.0: 164 * KIB, 8.7: 164 * KIB, 9.0: 228 * KIB, 10.0: 228 * KIB, 10.3: 228 * KIB}
MAX_SMALL_TABLE_DISTANCE = 16  # of tables of relations in 100 KiB of shared memory
OLD_TPUS = ("TPU v2", "TPU v3", "TPU v4")  # too little memory near the processor
GPU_WIDTHS = (16, 32, 64, 128)  # widths of heads in the kernels
# Keys with appended constants may be wider, because the constants need no gradient.
GPU_KEY_WIDTHS = (*GPU_WIDTHS, 2 * GPU_WIDTHS[-1])
GPU_DROPOUT_MULTIPLE = 16  # See `fused.gpu.dropout_tiles`.
TPU_WIDTHS = tuple(range(16, 257, 16))


def run_on_gpu(call: AttentionCall) -> Attended:
    """Compute attention with the kernels for GPUs."""
    # Import the kernels only here: importing Pallas takes long, and an old JAX lacks Mosaic GPU.
    from distattn_jax.attention.fused.gpu.kernels import make_kernels

    return _run(call, make_kernels, GPU_KEY_WIDTHS, MAX_TABLE_DISTANCE)


def run_portably(call: AttentionCall) -> Attended:
    """Compute attention with the portable form of the kernels for GPUs."""
    from distattn_jax.attention.fused.gpu.portable.kernels import make_factory

    memory = _find_shared_memory()
    distance = MAX_TABLE_DISTANCE if memory >= LARGE_SHARED_MEMORY else MAX_SMALL_TABLE_DISTANCE
    is_blackwell = any(x >= BLACKWELL for x in devices.local_machine().cuda_capabilities)
    factory = make_factory(memory, is_blackwell=is_blackwell)
    return _run(call, factory, GPU_KEY_WIDTHS, distance)


def run_on_tpu(call: AttentionCall) -> Attended:
    """Compute attention with the kernels for TPUs."""
    from distattn_jax.attention.fused.tpu.kernels import make_kernels

    return _run(call, make_kernels, TPU_WIDTHS)


def _run(
    call: AttentionCall,
    make_kernels: KernelFactory,
    widths: tuple[int, ...],
    max_table_distance: int = 0,
) -> Attended:
    """Compute attention with fused kernels. Each device computes its own shard of batch and heads.

    Args:
      call: Arguments of `attention`.
      make_kernels: Function that makes the kernels for GPUs or for TPUs.
      widths: Widths of a head that the kernels support.
      max_table_distance: See `attend.Settings`.
    """
    settings, inputs = _prepare(call, widths, max_table_distance)
    kernels = interpreter.select_kernels(make_kernels)
    attend_on_device = functools.partial(attend.attend, kernels, settings)
    values, received, logsumexp = mesh.run_sharded(attend_on_device, inputs)
    return Attended(values, received=received, logsumexp=logsumexp)


def _prepare(
    call: AttentionCall, widths: tuple[int, ...], max_table_distance: int = 0
) -> tuple[attend.Settings, attend.Inputs]:
    """Return the static settings and the arrays of a call, for the kernels."""
    options = call.options
    # A larger limit would overflow when a position is added to it.
    limits = options.window or (UNBOUNDED, UNBOUNDED)
    window = Window(*(limit if limit < UNBOUNDED else None for limit in limits))
    settings = attend.Settings(
        scale=options.scale,
        window=window._replace(right=0) if options.is_causal else window,
        received=options.received,
        logsumexp=options.logsumexp,
        widths=widths,
        max_table_distance=max_table_distance,
    )
    inputs = attend.Inputs(
        query=call.query,
        key=call.key,
        value=call.value,
        variant=call.variant,
        first_query=call.offset,
        first_key=jnp.zeros_like(call.offset),
        mask=call.mask,
        query_lengths=call.query_lengths,
        key_lengths=call.key_lengths,
        query_segments=call.query_segments,
        key_segments=call.key_segments,
        **_make_dropout(call),
    )
    return settings, inputs


def may_be_local(variant: Variant) -> bool:
    """Return True if heads of a variant may treat all scores beyond some distance as 0."""
    view = find_view(variant)
    return view is not None and view.may_be_local(variant)


def may_forget(variant: Variant) -> bool:
    """Return True if heads of a variant may leave out all keys beyond some distance."""
    return _forgets(variant) is not None


def find_near_distance(call: AttentionCall, shards: int) -> Int[Array, ""]:
    """Return the distance of the keys that all heads need, or `UNBOUNDED`.

    Beyond it, the kernels treat all scores as 0 if `may_be_local` is true for the variant, and
    leave out all keys if `may_forget` is true. One of the two must be true.

    Args:
      call: Call of one device, which has one of the shards of a sequence. Its lengths are those of
        the whole sequence.
      shards: Number of shards.
    """
    settings, inputs = _prepare(call, TPU_WIDTHS)
    plan, operands = attend.prepare(settings, inputs)
    if plan.tolerance is None:
        return jnp.int32(UNBOUNDED)
    if may_be_local(call.variant):
        found = plan.scoring.find_radius(operands, plan.tolerance)
        assert found is not None, "a variant that may be local has a radius"
        return jnp.where(found[1], found[0], UNBOUNDED).max()
    # The tolerance is for the sum over all keys, which are more than those of the shard.
    reach = plan.scoring.find_reach(operands, plan.tolerance / shards)
    forgets = _forgets(call.variant)
    assert reach is not None, "a variant that may forget has a reach"
    assert forgets is not None, "the variant may forget"
    sides = reach[..., :1] if settings.window.is_causal else reach
    return jnp.where(forgets, sides, UNBOUNDED).max()


def _forgets(variant: Variant) -> Bool[Array, ""] | None:
    """Return `KernelView.forgets` of a variant, or None if there is no kernel for it."""
    view = find_view(variant)
    return None if view is None else view.forgets(variant)


def _make_dropout(call: AttentionCall) -> dict[str, Array]:
    """Return the arguments `dropout_words` and `dropout_scale` of `attend.Inputs` as a dict.

    The dict is empty without dropout. The arrays are computed before the inputs are sharded,
    because they depend on the indices of examples and heads in the whole batch.

    Returns:
      dropout_words: Hash seed for queries, hash seed for keys, indices of query 0 and key 0 in the
        whole sequence, and drop threshold, of each example and head, shape (B, N, 5).
      dropout_scale: Factor that multiplies kept weights, shape (B, N, 1).
    """
    if call.dropout_rate is None or call.dropout_words is None:
        return {}
    batch, _, heads, _ = call.query.shape
    start = call.first_indices
    query_words, key_words = make_head_words(
        call.dropout_words,
        start.example + jnp.arange(batch, dtype=jnp.int32)[:, None],
        start.head + jnp.arange(heads, dtype=jnp.int32)[None, :],
    )
    shared = [
        jnp.broadcast_to(number.astype(jnp.uint32), (batch, heads))
        for number in (start.query, start.key, drop_threshold(call.dropout_rate))
    ]
    return {
        "dropout_words": jnp.stack((query_words, key_words, *shared), axis=-1),
        "dropout_scale": jnp.broadcast_to(kept_scale(call.dropout_rate), (batch, heads, 1)),
    }


def unsupported_reason_on_gpu(call: AttentionCall) -> str | None:
    """Return an error text if the kernels for Hopper GPUs do not support the call, or None."""
    reason = _unsupported_gpu_call_reason(call, "gpu")
    if reason is not None:
        return reason
    capabilities = devices.local_machine().cuda_capabilities
    if not all(map(is_hopper, capabilities)):
        return f"it needs Hopper GPUs, compute capability {HOPPER}; got {capabilities}"
    return None


def unsupported_portable_reason(call: AttentionCall) -> str | None:
    """Return an error text if the portable kernels do not support the call, otherwise None."""
    is_small = _find_shared_memory() < LARGE_SHARED_MEMORY
    return _unsupported_gpu_call_reason(call, "small_gpu" if is_small else "gpu")


def is_hopper(capability: float) -> bool:
    """Return True if a compute capability is that of a Hopper GPU."""
    return int(capability) == HOPPER


def _find_shared_memory() -> int:
    """Return the bytes of shared memory of a processor that all local GPUs have.

    Without a GPU, return the smallest number of all supported chips, so that the program can be
    lowered for each of them.
    """
    known = [
        SHARED_MEMORY.get(x, SMALL_SHARED_MEMORY) for x in devices.local_machine().cuda_capabilities
    ]
    return min(known, default=SMALL_SHARED_MEMORY)


def _unsupported_gpu_call_reason(call: AttentionCall, chip: str) -> str | None:
    """Return an error text if no kernels for GPUs support the call, otherwise None.

    Args:
      call: Arguments of `attention`.
      chip: "gpu" or "small_gpu".
    """
    widest = max(call.query.shape[-1], call.value.shape[-1])
    if widest > GPU_WIDTHS[-1]:
        return f"heads must be at most {GPU_WIDTHS[-1]} wide; got {widest}"
    widths = GPU_KEY_WIDTHS if call.variant.appends_constants else GPU_WIDTHS
    reason = (
        _unsupported_variant_reason(call, chip)
        or call.unsupported_dtype_reason("bfloat16", "float16")
        or _unsupported_call_reason(call, widths)
    )
    if reason is not None:
        return reason
    lengths = call.query.shape[1], call.key.shape[1]
    is_drop_block = call.block_start is not None and call.dropout_rate is not None
    if is_drop_block and any(length % GPU_DROPOUT_MULTIPLE for length in lengths):
        return (
            f"with dropout, blocks of a sharded sequence must have lengths that are multiples of "
            f"{GPU_DROPOUT_MULTIPLE}; got {lengths}"
        )
    # Without any GPU the call is supported: the program may be lowered for another machine.
    capabilities = devices.local_machine().cuda_capabilities
    if any(capability < AMPERE for capability in capabilities):
        return f"it needs GPUs of compute capability {AMPERE} or newer; got {capabilities}"
    return None


def unsupported_reason_on_tpu(call: AttentionCall) -> str | None:
    """Return an error text if the kernels for TPUs do not support the call, otherwise None."""
    reason = _unsupported_variant_reason(call, "tpu") or call.unsupported_dtype_reason(
        "bfloat16", "float32"
    )
    if reason is not None:
        return reason
    kinds = devices.local_machine().tpu_kinds
    old = [kind for kind in kinds if kind.startswith(OLD_TPUS)]
    if old:
        return f"it needs a TPU v5e or newer; got {old[0]}"
    # Elsewhere, most float32 programs never run on a TPU: keep their tracing fast, and allow
    # forward-mode differentiation, which the kernels lack.
    is_float32 = call.query.dtype == jnp.float32
    if is_float32 and not kinds and not interpreter.is_interpreted():
        return "float32 inputs need a local TPU"
    return _unsupported_call_reason(call, TPU_WIDTHS)


def may_lose_digits(call: AttentionCall) -> bool:
    """Return True if scores may be so large that the kernels lose too many digits.

    The implementations "pallas" and "pallas_portable" are then never chosen by default.
    """
    view = find_view(call.variant)
    return view is not None and view.may_lose_digits(call.variant)


def _unsupported_variant_reason(call: AttentionCall, chip: str) -> str | None:
    """Return an error text if the kernels do not support the variant of the call, otherwise None.

    An error text is also returned if the call has symbolic shapes.

    Args:
      call: Arguments of `attention`.
      chip: See `KernelView.unsupported_reason`.
    """
    view = find_view(call.variant)
    if view is None:
        return f"there is no kernel for {type(call.variant).__name__}"
    if call.has_symbolic_shape:
        return "it needs shapes of known size"
    block = Block(call.query, call.key, call.value, call.offset, call.options.scale)
    return view.unsupported_reason(call.variant, block, chip)


def _unsupported_call_reason(call: AttentionCall, widths: Sequence[int]) -> str | None:
    """Return an error text if the kernels do not support the call, otherwise None.

    The requested outputs, the width of the heads, the JAX version and the mesh are checked. The
    variant and the dtype are checked elsewhere.

    Args:
      call: Arguments of `attention`.
      widths: Widths of a head that the kernels support, in ascending order.
    """
    if call.options.weights:
        return "it does not store the attention weights: weights must be False"
    width = written_width(call.variant, call.query)
    widest = max(width, call.value.shape[-1])
    if widest > widths[-1]:
        written = "" if width == call.query.shape[-1] else " written as dot-product attention"
        return f"heads{written} must be at most {widths[-1]} wide; got {widest}"
    if devices.local_machine().jax_version < OLDEST_JAX:
        return f"it needs JAX {'.'.join(map(str, OLDEST_JAX))} or newer; this is {jax.__version__}"
    if mesh.is_partly_manual():
        return "it does not support a shard_map over only some of the axes of the mesh"
    return None
