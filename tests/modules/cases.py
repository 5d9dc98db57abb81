"""Constructors of all variant modules, random inputs and a compiled call for the tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from distattn_jax import attention, modules

N, H, D = 4, 6, 24

MAKERS = {
    "distance_aware": functools.partial(modules.DistanceAware, N),
    "distance_aware_linear": functools.partial(
        modules.DistanceAware, N, mapping=attention.linear, adjust=attention.early_add
    ),
    "distance_aware_clip": functools.partial(modules.DistanceAware, N, mapping=attention.clip),
    "distance_aware_sigmoid": functools.partial(
        modules.DistanceAware, N, mapping=attention.sigmoid
    ),
    "relative_position": functools.partial(modules.RelativePosition, N, H, 2),
    "relative_position_keys": functools.partial(
        modules.RelativePosition, N, H, 0, values=False, shared=True
    ),
    "transformer_xl": functools.partial(modules.TransformerXL, N, H, D),
    "adapted": functools.partial(modules.Adapted, N, H, shared=True),
}
ONE_OF_EACH = {"dot_product": None} | {
    name: MAKERS[name]
    for name in ("distance_aware", "relative_position", "transformer_xl", "adapted")
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def draw(*shape, seed=0):
    """Draw a float32 array from the standard normal distribution."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@functools.partial(jax.jit, static_argnames=("is_causal", "received", "weights", "decode"))
def call(module, *arrays, **arguments):
    """Call a module, compiled once for modules with the same structure and inputs."""
    return module(*arrays, **arguments)
