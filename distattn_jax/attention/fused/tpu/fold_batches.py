"""Support of `jax.vmap` for TPU kernels: the mapped axis becomes more examples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.custom_batching
import jax.numpy as jnp
from jaxtyping import Array

from distattn_jax.attention.fused.tpu.kernel_body import KernelInputs


def fold_batches(call: Callable[[KernelInputs], dict[str, Array]]) -> Callable[..., Any]:
    """Return a function that treats the axis of a `vmap` as more examples.

    Pallas cannot batch the arrays that a kernel copies from HBM.

    Args:
      call: Runs a kernel on its inputs.
    """
    run = jax.custom_batching.custom_vmap(call)

    @run.def_vmap
    def _(size: int, arguments_batched: list[Any], inputs: KernelInputs):
        (is_batched,) = arguments_batched
        batch = inputs.runs.shape[is_batched.runs]

        def fold(x: Array, is_batched: bool, is_shared: bool) -> Array:
            if is_shared and not is_batched:
                return x
            x = x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
            x = jnp.broadcast_to(x, (size, batch, *x.shape[2:]))
            return x.reshape(-1, *x.shape[2:])

        folded = jax.tree.map(
            lambda x, is_batched: fold(x, is_batched, x.shape[is_batched] == 1), inputs, is_batched
        )
        runs = fold(inputs.runs, is_batched.runs, is_shared=False)
        outputs = fold_batches(call)(folded._replace(runs=runs))
        outputs = {name: x.reshape(size, -1, *x.shape[1:]) for name, x in outputs.items()}
        return outputs, dict.fromkeys(outputs, True)

    return run
