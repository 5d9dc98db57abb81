"""Device meshes with the axes (data, sequence, model), and shardings of parameters and batches.

Batches are sharded over `data`, and the tokens of each text over `sequence`. Attention heads and
the hidden units of feed-forward networks are sharded over `model`. A mesh with one device along
`sequence` has only the axes (data, model). All axes have the type `AxisType.Auto`: the compiler
chooses the sharding of intermediate arrays.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

P = PartitionSpec


def make_mesh(data: int = 0, model: int = 1, *, sequence: int = 1) -> Mesh:
    """Return a mesh of the first data * sequence * model devices, among those of all processes.

    Args:
      data: Size of the axis `data`, over which batches are sharded. If 0, the size is the number of
        all devices divided by `sequence` and `model`.
      model: Size of the axis `model`, over which attention heads are sharded.
      sequence: Size of the axis `sequence`, over which the tokens of a text are sharded. The mesh
        has this axis if its size is above 1.
    """
    devices = jax.devices()
    data = data or len(devices) // (sequence * model)
    sizes = {"data": data, "sequence": sequence, "model": model}
    if sequence == 1:
        del sizes["sequence"]
    count = math.prod(sizes.values())
    if not 0 < count <= len(devices):
        options = " x ".join(f"--mesh.{name}" for name in sizes)
        numbers = " x ".join(str(size or 1) for size in sizes.values())
        raise ValueError(
            f"{options} ({numbers}) must be at most the number of devices, {len(devices)}."
        )
    names, shape = tuple(sizes), tuple(sizes.values())
    types, used = (AxisType.Auto,) * len(sizes), devices[:count]
    if jax.process_count() == 1:
        return jax.make_mesh(shape, names, axis_types=types, devices=used)
    # Each process loads its own part of a batch, so that a mesh row must stay within one process.
    used = sorted(used, key=lambda device: (device.process_index, device.id))
    grid = np.asarray(used).reshape(shape)
    for row in grid:
        if len({device.process_index for device in row.flat}) > 1:
            options = " x ".join(f"--mesh.{name}" for name in names[1:])
            numbers = " x ".join(map(str, shape[1:]))
            raise ValueError(
                f"{options} ({numbers}) must divide the number of devices of each process, "
                f"{jax.local_device_count()}."
            )
    return Mesh(grid, names, axis_types=types)


def sequence_shards(mesh: Any) -> int:
    """Return the number of devices that share the tokens of a text on a mesh."""
    return mesh.shape.get("sequence", 1)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Partition specs of the batches and parameters of a Transformer.

    D is the width of the model, N the number of attention heads, H the width of each head, and F
    the number of hidden units of a feed-forward network.

    Attributes:
      batch: Arrays whose first axis is the batch.
      tokens: Arrays whose first axes are the batch and the tokens of a text, on a mesh with the
        axis `sequence`.
      token_columns: Names of the columns of a batch with these axes. Empty if the tokens of a text
        cannot be shared by devices.
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
    tokens: P = P("data", "sequence")
    token_columns: tuple[str, ...] = ()
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
      layout: Partition specs, of which those of batches are used.
      leading: Number of additional leading axes of each array. These axes are not sharded. For
        example, a stack of batches has one additional axis over batches.

    Returns:
      The global batch, as arrays that are sharded over the mesh.
    """
    places = batch_shardings(batch, mesh, layout, leading=leading)
    if jax.process_count() == 1:
        return jax.device_put(batch, places)
    return jax.make_array_from_process_local_data(places, batch)


def batch_shardings(
    batch: dict[str, Any], mesh: Mesh, layout: Layout, *, leading: int = 0
) -> dict[str, NamedSharding]:
    """Return the sharding of each column of a batch: see `place_batch`."""
    shares_tokens = sequence_shards(mesh) > 1

    def column_sharding(name: str) -> NamedSharding:
        has_tokens = shares_tokens and name in layout.token_columns
        return NamedSharding(
            mesh, P(*[None] * leading, *(layout.tokens if has_tokens else layout.batch))
        )

    return {name: column_sharding(name) for name in batch}


def path_names(path: tuple[Any, ...]) -> tuple[str, ...]:
    """Convert a JAX key path to names, e.g. ("encoder", "layers", "0", "attention")."""
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))
