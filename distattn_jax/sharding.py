"""Device meshes with the axes (data, model), and shardings of parameters and batches.

Batches are sharded over `data`. Attention heads and the hidden units of feed-forward networks are
sharded over `model`. Both axes have the type `AxisType.Auto`: the compiler chooses the sharding of
intermediate arrays.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

P = PartitionSpec


def make_mesh(data: int = 0, model: int = 1) -> Mesh:
    """Return a mesh of the first data * model devices. Devices of all processes are counted.

    Args:
      data: Size of the axis `data`, over which batches are sharded. If 0, the size is the number of
        all devices divided by `model`.
      model: Size of the axis `model`, over which attention heads are sharded.
    """
    devices = jax.devices()
    data = data or len(devices) // model
    if data * model > len(devices) or data == 0:
        raise ValueError(
            f"--mesh.data x --mesh.model ({data or 1} x {model}) must be at most the number of "
            f"devices, {len(devices)}."
        )
    names, types = ("data", "model"), (AxisType.Auto, AxisType.Auto)
    used = devices[: data * model]
    if jax.process_count() == 1:
        return jax.make_mesh((data, model), names, axis_types=types, devices=used)
    # Each process loads its own part of a batch, so that a mesh row must stay within one process.
    used = sorted(used, key=lambda device: (device.process_index, device.id))
    grid = np.asarray(used).reshape(data, model)
    for row in grid:
        if len({device.process_index for device in row}) > 1:
            raise ValueError(
                f"--mesh.model ({model}) must divide the number of devices of each process, "
                f"{jax.local_device_count()}."
            )
    return Mesh(grid, names, axis_types=types)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Partition specs of the batches and parameters of a Transformer.

    D is the width of the model, N the number of attention heads, H the width of each head, and F
    the number of hidden units of a feed-forward network.

    Attributes:
      batch: Arrays whose first axis is the batch.
      projection: Kernels (D, N, H) of queries, keys and values. Keys and values may have fewer
        heads than queries.
      projection_bias: Biases (N, H) of queries, keys and values.
      output: Kernel (N, H, D) after the attention heads.
      variant: Parameters (N, ...) of an attention variant.
      hidden: First kernel (D, F) of a feed-forward network.
      hidden_bias: First bias (F,) of a feed-forward network.
      hidden_output: Second kernel (F, D) of a feed-forward network.
      other: All other parameters.
    """

    batch: P = P("data")
    projection: P = P(None, "model", None)
    projection_bias: P = P("model", None)
    output: P = P("model", None, None)
    variant: P = P("model")
    hidden: P = P(None, "model")
    hidden_bias: P = P("model")
    hidden_output: P = P("model", None)
    other: P = P()

    def spec(self, path: tuple[str, ...]) -> P:
        """Return the partition spec of a parameter.

        Args:
          path: Path of the parameter, e.g. (..., "attention", "query", "kernel").
        """
        match path:
            case (*_, "attention" | "cross_attention", "query" | "key" | "value", "kernel"):
                return self.projection
            case (*_, "attention" | "cross_attention", "query" | "key" | "value", "bias"):
                return self.projection_bias
            case (*_, "attention" | "cross_attention", "out", "kernel"):
                return self.output
            case (*_, "feed_forward", "hidden", "kernel"):
                return self.hidden
            case (*_, "feed_forward", "hidden", "bias"):
                return self.hidden_bias
            case (*_, "feed_forward", "out", "kernel"):
                return self.hidden_output
        return self.variant if "variant" in path else self.other


def shardings(tree: Any, mesh: Mesh, layout: Layout, *, leading: int = 0) -> Any:
    """Return the sharding of each array of a tree of parameters.

    Args:
      tree: Tree of parameters, or of other objects with the attributes `shape` and `ndim`. An
        optimizer state is also accepted, because its paths end with the paths of parameters.
      mesh: Device mesh.
      layout: Partition spec of each kind of parameter.
      leading: Number of additional leading axes of each array. These axes are not sharded. For
        example, models that are trained side by side have one additional axis over models.
    """

    def leaf_sharding(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        spec = layout.spec(path_names(path))
        names: list[Any] = [*([None] * leading), *spec][: leaf.ndim]
        for axis, name in enumerate(names):
            # An axis that the mesh cannot divide is replicated: parameters that all heads share,
            # and key heads that are fewer than the devices.
            if name is not None and leaf.shape[axis] % mesh.shape[name]:
                names[axis] = None
        return NamedSharding(mesh, P(*names))

    return jax.tree_util.tree_map_with_path(leaf_sharding, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding that stores a copy on each device of a mesh."""
    return NamedSharding(mesh, P())


def place_batch(
    batch: dict[str, Any], mesh: Mesh, layout: Layout, *, leading: int = 0
) -> dict[str, Any]:
    """Place a batch on the devices of a mesh.

    Args:
      batch: Part of the global batch that this process loaded.
      mesh: Device mesh.
      layout: Partition specs. Only `layout.batch` is used.
      leading: Number of additional leading axes of each array. These axes are not sharded. For
        example, a stack of batches has one additional axis over batches.

    Returns:
      The global batch, as arrays that are sharded over the mesh.
    """
    sharding = NamedSharding(mesh, P(*[None] * leading, *layout.batch))
    if jax.process_count() == 1:
        return jax.device_put(batch, sharding)
    return jax.make_array_from_process_local_data(sharding, batch)


def path_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Convert a JAX key path to names, e.g. ("encoder", "layers", "0", "attention")."""
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))
