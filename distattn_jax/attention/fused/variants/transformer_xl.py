"""Transformer-XL attention in the kernels: one vector for each relative position."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from distattn_jax.attention.fused.kernel_view import Block, KernelForm, KernelView, register
from distattn_jax.attention.fused.scoring import PositionScoring
from distattn_jax.attention.variants import TransformerXL, sinusoid

MAX_SMALL_WIDTH = 64  # on a small GPU
LARGEST_POSITIONS = 2**22  # numbers: the buffers of their gradient take 32 MiB of VMEM


@register(TransformerXL)
class TransformerXLView(KernelView):
    """`KernelView` of Transformer-XL attention."""

    def make_form(self, variant, block):
        def add_bias(bias: Float[Array, "#N H"]) -> Float[Array, "B T N H"]:
            return (block.query + bias[None, None]).astype(block.query.dtype)

        return KernelForm(
            PositionScoring(block.scale),
            add_bias(variant.content_bias),
            block.key,
            position_query=add_bias(variant.position_bias),
            positions=_project_positions(variant, block).astype(block.query.dtype),
        )

    def unsupported_reason(self, variant, block, chip):
        lengths, width = block.query.shape[1] + block.key.shape[1], block.query.shape[3]
        if chip == "tpu" and lengths * width > LARGEST_POSITIONS:
            return (
                "the gradient of the position vectors must fit in VMEM: (T + S) x width must be at "
                f"most {LARGEST_POSITIONS}; got {lengths} x {width}"
            )
        if chip == "small_gpu" and width > MAX_SMALL_WIDTH:
            return (
                f"heads with position vectors must be at most {MAX_SMALL_WIDTH} wide on GPUs with "
                f"100 KiB of shared memory; got {width}"
            )
        return None


def _project_positions(variant: TransformerXL, block: Block) -> Float[Array, "#B D #N H"]:
    """Return one position vector for each of `Block.relative_positions` plus the offset.

    A position vector is a sinusoidal encoding, multiplied by the projection matrix of the variant.
    """
    relative = block.offset[:, None] + block.relative_positions[None]
    width = variant.projection.shape[1]
    sinusoids = sinusoid(relative.reshape(-1), width, variant.projection.dtype)
    sinusoids = sinusoids.reshape(*relative.shape, width)
    return jnp.einsum("bpd,ndh->bpnh", sinusoids, variant.projection)
