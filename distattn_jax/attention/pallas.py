"""Implementation with the package `fused`, for variants with scores of q · k and i - j."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from distattn_jax.attention import fused, gpu_inputs, mesh, position_tables
from distattn_jax.attention.arguments import Attended, AttentionCall
from distattn_jax.attention.fused import derivative, interpreter
from distattn_jax.attention.fused.kernels import KernelFactory
from distattn_jax.attention.kernel_operands import make_operands, make_window
from distattn_jax.attention.kernel_scoring import (
    clip_distances,
    is_t5,
    make_scoring,
    select_tolerance,
    uses_tables,
)
from distattn_jax.attention.variants import (
    DistanceAware,
    DistanceBias,
    RelativePosition,
    TransformerXL,
    Variant,
    early_add,
    early_multiply,
    exponent,
)

OLDEST_JAX = (0, 11)
HOPPER = 9  # compute capability: only this generation has the matrix instructions of the kernels
OLD_TPUS = ("TPU v2", "TPU v3", "TPU v4")  # too little memory near the processor
GPU_WIDTHS = (16, 32, 64, 128)  # widths of heads in the kernels
# Keys with appended constants may be wider, because the constants need no gradient.
GPU_KEY_WIDTHS = (*GPU_WIDTHS, 2 * GPU_WIDTHS[-1])
TPU_WIDTHS = tuple(range(16, 257, 16))
LARGEST_POSITIONS = 2**22  # numbers: the buffers of their gradient take 32 MiB of VMEM
MAX_CLIP_DISTANCE = 128  # of relative positions
MAX_TABLE_PARAMETERS = 4  # per head: the kernels read and sum one more table for each of them


def run_on_gpu(call: AttentionCall) -> Attended:
    """Compute attention with the kernels for GPUs."""
    # Import the kernels only here: importing Pallas takes long, and an old JAX lacks Mosaic GPU.
    from distattn_jax.attention.fused.gpu.kernels import make_kernels

    return _run(call, make_kernels, GPU_KEY_WIDTHS)


def run_on_tpu(call: AttentionCall) -> Attended:
    """Compute attention with the kernels for TPUs."""
    from distattn_jax.attention.fused.tpu.kernels import make_kernels

    return _run(call, make_kernels, TPU_WIDTHS)


def _run(call: AttentionCall, make_kernels: KernelFactory, widths: Sequence[int]) -> Attended:
    """Compute attention with fused kernels, on each device for its own examples and heads.

    Args:
      call: Arguments of attention.
      make_kernels: Returns the kernels for a plan and operands.
      widths: Widths of heads that the kernels support, in ascending order.
    """
    trained_key_width = call.key.shape[-1] if call.variant.appends_constants else None
    if call.variant.as_dot_product is not None:
        call = gpu_inputs.write_as_dot_product(call)
    queries = call.query.shape[1]
    _, keys, _, value_width = call.value.shape
    operands = make_operands(call, widths)
    plan = fused.Plan(
        scoring=make_scoring(call),
        window=make_window(call),
        received=call.options.received,
        logsumexp=call.options.logsumexp,
        tolerance=select_tolerance(call),
        trained_key_width=trained_key_width,
        has_padded_keys=call.key_lengths is not None or operands.key.shape[1] > keys,
    )
    kernels = interpreter.select_kernels(make_kernels)
    attend = functools.partial(derivative.fused_attention, kernels, plan)
    values, received, logsumexp = mesh.run_sharded(attend, operands)
    return Attended(
        values[:, :queries, :, :value_width],
        received=None if received is None else received[:, :, :keys],
        logsumexp=None if logsumexp is None else logsumexp[:, :, :queries],
    )


def unsupported_reason_on_gpu(call: AttentionCall) -> str | None:
    """Return why the kernels for GPUs do not support a call, or None if they support the call."""
    widest = max(call.query.shape[-1], call.value.shape[-1])
    if widest > GPU_WIDTHS[-1]:
        return f"heads must be at most {GPU_WIDTHS[-1]} wide; got {widest}"
    widths = GPU_KEY_WIDTHS if call.variant.appends_constants else GPU_WIDTHS
    reason = (
        _unsupported_variant_reason(call.variant)
        or gpu_inputs.unsupported_dtype_reason(call)
        or _unsupported_call_reason(call, widths)
    )
    if reason is not None:
        return reason
    # Without any GPU the call is supported: the program may be lowered for another machine.
    capabilities = gpu_inputs.cuda_capabilities()
    if any(int(capability) != HOPPER for capability in capabilities):
        return f"it needs Hopper GPUs, compute capability {HOPPER}; got {capabilities}"
    return None


def unsupported_reason_on_tpu(call: AttentionCall) -> str | None:
    """Return why the kernels for TPUs do not support a call, or None if they support the call."""
    reason = _unsupported_variant_reason(call.variant)
    if reason is not None:
        return reason
    dtypes = {x.dtype for x in (call.query, call.key, call.value)}
    if dtypes not in ({jnp.dtype(jnp.bfloat16)}, {jnp.dtype(jnp.float32)}):
        names = sorted(map(str, dtypes))
        return f"query, key and value must all be bfloat16 or float32; got {names}"
    kinds = tpu_kinds()
    old = [kind for kind in kinds if kind.startswith(OLD_TPUS)]
    if old:
        return f"it needs a TPU v5e or newer; got {old[0]}"
    # Elsewhere, most float32 programs never run on a TPU: keep their tracing fast, and allow
    # forward-mode differentiation, which the kernels lack.
    if dtypes == {jnp.dtype(jnp.float32)} and not kinds and not interpreter.is_interpreted():
        return "float32 inputs need a local TPU"
    if isinstance(call.variant, TransformerXL) and not call.has_symbolic_shape:
        lengths, width = call.query.shape[1] + call.key.shape[1], call.query.shape[3]
        if lengths * width > LARGEST_POSITIONS:
            return (
                "the gradient of the position vectors must fit in VMEM: (T + S) x width must be at "
                f"most {LARGEST_POSITIONS}; got {lengths} x {width}"
            )
    return _unsupported_call_reason(call, TPU_WIDTHS)


def tpu_kinds() -> list[str]:
    """Return the kind of each local TPU device, such as "TPU v5e". The list may be empty."""
    return [device.device_kind for device in jax.local_devices() if device.platform == "tpu"]


def _unsupported_call_reason(call: AttentionCall, widths: Sequence[int]) -> str | None:
    """Return why no kernel supports the shapes, options, JAX version or mesh of a call, or None.

    Args:
      call: Arguments of attention.
      widths: Widths of heads that the kernels support, in ascending order.
    """
    if call.options.weights:
        return "it does not store the attention weights: weights must be False"
    if call.has_symbolic_shape:
        return "it needs shapes of known size"
    width = call.query.shape[-1]
    if call.variant.as_dot_product is not None:
        width = jax.eval_shape(gpu_inputs.write_as_dot_product, call).query.shape[-1]
    widest = max(width, call.value.shape[-1])
    if widest > widths[-1]:
        written = "" if width == call.query.shape[-1] else " written as dot-product attention"
        return f"heads{written} must be at most {widths[-1]} wide; got {widest}"
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    if version < OLDEST_JAX:
        return f"it needs JAX {'.'.join(map(str, OLDEST_JAX))} or newer; this is {jax.__version__}"
    if mesh.is_partly_manual():
        return "it does not support a shard_map over only some of the axes of the mesh"
    return None


def may_lose_digits(call: AttentionCall) -> bool:
    """Return True if scores may be so large that kernels compute gradients which are not finite.

    Kernels do not store weights. They compute scores a second time in the backward pass, and
    subtract the logsumexp. The mapping `exponent` may multiply scores by e⁶⁰. Rounding such a score
    changes it by more than the largest exponent of a float32.
    """
    variant = call.variant
    return isinstance(variant, DistanceAware) and variant.mapping == exponent


def _unsupported_variant_reason(variant: Variant) -> str | None:
    """Return the reason why no kernel supports a variant, or None if a kernel supports it."""
    if variant.as_dot_product is not None or isinstance(variant, TransformerXL):
        return None
    if isinstance(variant, RelativePosition) or is_t5(variant):
        widest = max(clip_distances(variant), default=0)
        if widest > MAX_CLIP_DISTANCE:
            return f"relations must be clipped at most at {MAX_CLIP_DISTANCE}; got {widest}"
        return None
    if not isinstance(variant, DistanceAware | DistanceBias):
        return f"there is no kernel for {type(variant).__name__}"
    if isinstance(variant, DistanceAware) and variant.adjust not in (early_multiply, early_add):
        return "it cannot adjust weights after the softmax: adjust must be early"
    if isinstance(variant, DistanceAware) and variant.score_bias is not None:
        return "it cannot add a score_bias"
    parameters = position_tables.count_parameters(variant)
    if uses_tables(variant) and parameters > MAX_TABLE_PARAMETERS:
        return (
            f"a function of the relative position must have at most {MAX_TABLE_PARAMETERS} "
            f"parameters per head; got {parameters}"
        )
    return None
