"""The six attention kernels in their portable form."""

import functools

from distattn_jax.attention.fused.gpu.kernels import Form, GpuKernels
from distattn_jax.attention.fused.gpu.portable.tile_loop import allocate, run_tile_loop
from distattn_jax.attention.fused.gpu.portable.tile_selection import select_tile_configs
from distattn_jax.attention.fused.kernels import KernelFactory, Kernels, Plan
from distattn_jax.attention.fused.operands import Operands


@functools.cache  # Equal factories are equal static arguments, so that their programs are shared.
def make_factory(shared_memory: int, *, is_blackwell: bool) -> KernelFactory:
    """Return a function that makes the kernels of one attention call.

    Args:
      shared_memory: Bytes of shared memory of a processor of the GPU.
      is_blackwell: True if the program may run on a Blackwell GPU, such as B200 or RTX 50.
    """
    select = functools.partial(
        select_tile_configs, shared_memory=shared_memory, is_blackwell=is_blackwell
    )
    form = Form(select, allocate, run_tile_loop)

    def make_kernels(plan: Plan, operands: Operands) -> Kernels:
        return GpuKernels(form, plan, operands).bind()

    return make_kernels
