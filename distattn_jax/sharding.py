"""Devices as a mesh (data, model), and where parameters and batches lie on it.

Batches are spread over `data`; heads, and the hidden units of feed-forward networks, over `model`.
The axes are Auto: the compiler places what comes between, whatever a model is made of.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

P = PartitionSpec


def make_mesh(data: int = 0, model: int = 1) -> Mesh:
    """A mesh over all devices of all processes, or over the first data * model of them.

    Args:
      data: devices that share a batch; 0: all that are left by `model`.
      model: devices that share the heads.
    """
    devices = jax.devices()
    data = data or len(devices) // model
    if data * model > len(devices) or data == 0:
        raise ValueError(
            f"mesh.data x mesh.model ({data or 1} x {model}) must be at most the number of "
            f"devices, {len(devices)}."
        )
    names, types = ("data", "model"), (AxisType.Auto, AxisType.Auto)
    used = devices[: data * model]
    if jax.process_count() == 1:
        return jax.make_mesh((data, model), names, axis_types=types, devices=used)
    # Each process makes its own rows of a batch: no row may be shared by two of them.
    used = sorted(used, key=lambda device: (device.process_index, device.id))
    grid = np.asarray(used).reshape(data, model)
    for row in grid:
        if len({device.process_index for device in row}) > 1:
            raise ValueError(
                f"mesh.model ({model}) must divide the number of devices of each process, "
                f"{jax.local_device_count()}."
            )
    return Mesh(grid, names, axis_types=types)


@dataclasses.dataclass(frozen=True)
class Layout:
    """One PartitionSpec for each kind of array of a model built of our encoders.

    Attributes:
      batch: what leads with the examples.
      projection: (D, N, H), of queries, keys and values, and its bias (N, H).
      output: (N, H, D), of the heads' values back to the model's width.
      variant: what the variant owns, (N, ...).
      hidden: (D, F), into the feed-forward network, and its bias (F,).
      hidden_output: (F, D), out of it.
      other: everything else.
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

    def of(self, path: tuple[str, ...]) -> P:
        """The spec of the parameter with this path, e.g. (..., "attention", "query", "kernel")."""
        match path:
            case (*_, "attention", "query" | "key" | "value", "kernel"):
                return self.projection
            case (*_, "attention", "query" | "key" | "value", "bias"):
                return self.projection_bias
            case (*_, "attention", "out", "kernel"):
                return self.output
            case (*_, "feed_forward", "hidden", "kernel"):
                return self.hidden
            case (*_, "feed_forward", "hidden", "bias"):
                return self.hidden_bias
            case (*_, "feed_forward", "out", "kernel"):
                return self.hidden_output
        return self.variant if "variant" in path else self.other


def shardings(tree: Any, mesh: Mesh, layout: Layout, *, leading: int = 0) -> Any:
    """The sharding of every array of a tree, parameters or what follows their structure.

    Args:
      tree: arrays, or their shapes.
      mesh: the devices.
      layout: which axis of which parameter lies where.
      leading: axes in front of the parameters' own, as those of seeds; not spread.
    """

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        spec = layout.of(names_of(path))
        names: list[Any] = [*([None] * leading), *spec][: leaf.ndim]
        for axis, name in enumerate(names):
            if name is not None and leaf.shape[axis] % mesh.shape[name]:
                names[axis] = None  # shared by all heads, or not divisible: a copy for each
        return NamedSharding(mesh, P(*names))

    return jax.tree_util.tree_map_with_path(of, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """A copy on every device."""
    return NamedSharding(mesh, P())


def place_batch(batch: dict[str, Any], mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """The global batch, of which this process holds its own rows, on the devices.

    On a single device the rows stay as they are: a jitted function takes them there, and faster.
    """
    if mesh.size == 1:
        return batch
    sharding = NamedSharding(mesh, layout.batch)
    if jax.process_count() == 1:
        return jax.device_put(batch, sharding)
    return jax.make_array_from_process_local_data(sharding, batch)


def names_of(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The path of a leaf as JAX gives it, in words: ("encoder", "layers", "0", ...)."""
    return tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))
