"""Constructors of modules, random inputs, a compiled call and a placement for the tests."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from distattn_jax import attention, modules

N, H, D = 4, 6, 24

MAKERS = {
    "distance_aware": partial(modules.DistanceAware, N),
    "distance_aware_linear": partial(
        modules.DistanceAware, N, mapping=attention.linear, adjust=attention.early_add
    ),
    "distance_aware_clip": partial(modules.DistanceAware, N, mapping=attention.clip),
    "distance_aware_sigmoid": partial(modules.DistanceAware, N, mapping=attention.sigmoid),
    "two_sided": partial(modules.TwoSided, N),
    "two_sided_tied": partial(modules.TwoSided, N, tied=True, mapping="linear", bias=()),
    "relative_position": partial(modules.RelativePosition, N, H, 2),
    "relative_position_keys": partial(modules.RelativePosition, N, H, 0, values=False, shared=True),
    "distance_bias": partial(modules.DistanceBias, N, function="kerple_log"),
    "distance_bias_t5": partial(modules.DistanceBias, N, function=attention.T5Buckets(8, 5)),
    "transformer_xl": partial(modules.TransformerXL, N, H, D),
    "adapted": partial(modules.Adapted, N, H, shared=True),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def draw(*shape, seed=0):
    """Draw a float32 array from the standard normal distribution."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@partial(jax.jit, static_argnames=("is_causal", "received", "weights", "decode"))
def call(module, *arrays, **arguments):
    """Call a module, compiled once for modules with the same structure and inputs."""
    return module(*arrays, **arguments)


def layer(name="distance_aware", **arguments):
    """Make a layer of multi-head attention with a variant."""
    rngs = nnx.Rngs(0)
    variant = None if name == "dot_product" else MAKERS[name](rngs=rngs)
    return modules.MultiHeadAttention(N, D, variant=variant, rngs=rngs, **arguments)


def flax_layer(**arguments):
    """Make the layer of Flax with the same parameters as `layer("dot_product")`."""
    return nnx.MultiHeadAttention(N, D, decode=False, rngs=nnx.Rngs(0), **arguments)


def place_heads(mesh):
    """Return a function that shards the heads of a parameter over the axis `model`."""

    def place(path, leaf):
        heads = leaf.shape.index(N) if "out" not in str(path[0]) or leaf.ndim == 3 else None
        spec = ["model" if axis == heads else None for axis in range(leaf.ndim)]
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*spec)))

    return place
