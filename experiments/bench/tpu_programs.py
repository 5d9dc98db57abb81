"""Programs that are compiled for TPUs without a TPU: attention, splash attention, a training step.

A program of attention computes all gradients of one call. It therefore contains the forward kernel
and all gradient kernels.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from distattn_jax.attention import ShardedSequence, Variant, attention, early_add
from distattn_jax.attention import devices as attention_devices
from distattn_jax.attention.fused.kernel_calls import KernelCall
from distattn_jax.attention.fused.tile_runs import TileKind
from distattn_jax.attention.fused.tpu import kernels, tile_configs
from experiments.bench import variants
from experiments.bench.shapes import Shape

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}
LARGE_TOPOLOGIES = {"v5e": "v5e:2x4"}  # for cases that need more than `FEW_DEVICES`
FEW_DEVICES = 4
XLA = "_xla"  # end of the name of a program without our kernels
P = PartitionSpec


@dataclasses.dataclass(frozen=True)
class Case:
    """One program for one kind of TPU.

    Attributes:
      program: Key of `VARIANTS` or `OPTIONS`, "splash" or "training_step". A key of `VARIANTS`
        with the suffix `XLA` means the same variant with `implementation="xla"`.
      generation: Generation of the TPU, a key of `TOPOLOGIES`.
      sizes: Sizes of the inputs. A training step uses only the batch size and the length.
      tile: Number of queries and number of keys of a tile. None means that the library chooses.
      mesh: Size of the axes (data, model) of the mesh.
      sequence: Size of the mesh axis that shards sequences. Keys then travel around a ring.
    """

    program: str
    generation: str
    sizes: Shape
    tile: tuple[int, int] | None = None
    mesh: tuple[int, int] = (1, 1)
    sequence: int = 1

    @property
    def name(self) -> str:
        """Unique name of the case."""
        words = [self.program, self.generation, str(self.sizes)]
        if self.tile is not None:
            words.append("tile {}x{}".format(*self.tile))
        if self.mesh != (1, 1):
            words.append("mesh {}x{}".format(*self.mesh))
        if self.sequence > 1:
            words.append(f"sequence {self.sequence}")
        return " ".join(words)


MakeArray = Callable[..., Any]  # returns an array or a type of an array, given shape and dtype
VARIANTS: dict[str, Callable[..., Variant]] = {  # functions of a shape and a PRNG key
    "dot_product": variants.dot_product,
    "distance_aware": variants.distance_aware,
    "distance_aware_add": partial(variants.distance_aware, adjust=early_add),
    "linear": partial(variants.distance_aware, mapping="linear", parameters=2),
    "clip": partial(variants.distance_aware, mapping="clip"),
    "exponent": partial(variants.distance_aware, mapping="exponent", parameters=0),
    "alibi": partial(variants.distance_bias, function="alibi"),
    "kerple_log": partial(variants.distance_bias, function="kerple_log"),
    "t5": partial(variants.distance_bias, function="t5_buckets"),
    "relative_position": variants.relative_position,
    "transformer_xl": variants.transformer_xl,
    "adapted": variants.adapted,
    # Logarithmic decay, the same without f, linear decay that forgets, constants only.
    "two_sided": variants.two_sided,
    "two_sided_bias": partial(variants.two_sided, weights=None),
    "two_sided_forgetting": partial(
        variants.two_sided, weights=(variants.LOCAL, variants.LOCAL), bias=("alibi",)
    ),
    "two_sided_constant": partial(variants.two_sided, bias=("constant",)),
}


def _lengths(sizes: Shape, make_array: MakeArray) -> dict[str, Any]:
    lengths = make_array((sizes.batch,), jnp.int32)
    return {"query_lengths": lengths, "key_lengths": lengths}


def _segments(sizes: Shape, make_array: MakeArray) -> dict[str, Any]:
    segments = make_array((sizes.batch, sizes.length), jnp.int32)
    return {"query_segments": segments, "key_segments": segments}


# Arguments of `attention` by name. The variant of all of these programs is distance-aware.
OPTIONS: dict[str, Callable[[Shape, MakeArray], dict[str, Any]]] = {
    "received": lambda sizes, make_array: {"received": True},
    "logsumexp": lambda sizes, make_array: {"logsumexp": True},
    "lengths": _lengths,
    "causal": lambda sizes, make_array: {"is_causal": True},
    "offset": lambda sizes, make_array: {"query_offset": make_array((sizes.batch,), jnp.int32)},
    "window": lambda sizes, make_array: {"local_window_size": 256},
    "segments": _segments,
    "key_mask": lambda sizes, make_array: {
        "mask": make_array((sizes.batch, 1, 1, sizes.length), jnp.bool_)
    },
    "mask": lambda sizes, make_array: {
        "mask": make_array((sizes.batch, 1, sizes.length, sizes.length), jnp.bool_)
    },
    "dropout": lambda sizes, make_array: {
        "dropout_rate": 0.1,
        "dropout_key": make_array((), jax.random.key(0).dtype),
    },
    "grouped": lambda sizes, make_array: {},
    "float32": lambda sizes, make_array: {},
}


class Lowered(NamedTuple):
    """Program that is ready to be compiled.

    Attributes:
      program: Lowered program.
      tile_kinds: Dict from the name of each kernel to its kinds of tiles. A kernel has one loop for
        each kind.
    """

    program: Any
    tile_kinds: dict[str, list[TileKind]]


def lower_case(case: Case) -> Lowered:
    """Lower the program of a case for the compiler's description of a TPU, without a device."""
    data, model = case.mesh
    devices = data * case.sequence * model
    names = TOPOLOGIES if devices <= FEW_DEVICES else LARGE_TOPOLOGIES
    topology: Any = topologies.get_topology_desc(
        platform="tpu", topology_name=names[case.generation]
    )
    tile_kinds: dict[str, list[TileKind]] = {}
    with assume_tpu(topology.devices[0].device_kind, case.tile), record_tile_kinds(tile_kinds):
        if devices == 1:
            place = SingleDeviceSharding(topology.devices[0])
            return Lowered(_lower_gradients(case, lambda spec: place), tile_kinds)
        mesh = jax.make_mesh(
            (data, case.sequence, model),
            ("data", "sequence", "model"),
            axis_types=(AxisType.Auto,) * 3,
            devices=topology.devices,
        )
        if case.program == "training_step":
            from experiments.bench.tpu_training import lower_training_step  # imports are slow

            program = lower_training_step(case.sizes.batch, case.sizes.length, mesh)
            return Lowered(program, tile_kinds)
        program = _lower_gradients(case, lambda spec: NamedSharding(mesh, spec), mesh)
        return Lowered(program, tile_kinds)


@contextlib.contextmanager
def assume_tpu(kind: str, tile: tuple[int, int] | None) -> Iterator[None]:
    """Make the library select kernels as if this machine had a TPU.

    Args:
      kind: Kind of the TPU, as JAX names it.
      tile: Number of queries and number of keys of a tile. None means that the library chooses.
    """
    with contextlib.ExitStack() as stack:
        patch = mock.patch.object
        machine = attention_devices.local_machine()._replace(platform="tpu", tpu_kinds=[kind])
        stack.enter_context(attention_devices.assumed(machine))
        stack.enter_context(patch(tile_configs, "local_kind", new=lambda: kind))
        if tile is not None:
            config = tile_configs.TileConfig(*tile)
            stack.enter_context(mock.patch.dict(tile_configs.TILES, {kind: config}))
        yield


@contextlib.contextmanager
def record_tile_kinds(tile_kinds: dict[str, list[TileKind]]) -> Iterator[None]:
    """Record the kinds of tiles of every kernel that is traced inside the `with` statement.

    `tile_kinds` is updated: a dict from the name of each kernel to its kinds of tiles.
    """

    def run_and_record(call: KernelCall, *arguments: Any, **names: Any):
        tile_kinds[call.name] = [kind for kind, _ in itertools.groupby(call.schedule.kinds)]
        return run_tile_loop(call, *arguments, **names)

    run_tile_loop = kernels.run_tile_loop
    with mock.patch.object(kernels, "run_tile_loop", run_and_record):
        yield


def _lower_gradients(case: Case, place: Callable[[P], Any], mesh: Mesh | None = None) -> Any:
    """Lower the gradients of one call of attention, or of splash attention.

    Args:
      case: A case of attention.
      place: Function that returns the sharding for a partition spec.
      mesh: Devices, or None for one device.
    """
    sizes, name = case.sizes, case.program

    def make_type(shape: tuple[int, ...], dtype: Any, spec: P = P()) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place(spec))

    def make_rows(heads: int) -> jax.ShapeDtypeStruct:
        shape = (sizes.batch, sizes.length, heads, sizes.width)
        dtype = jnp.float32 if name == "float32" else jnp.bfloat16
        return make_type(shape, dtype, P("data", "sequence", "model", None))

    shared = make_rows(sizes.heads // 2 if name == "grouped" else sizes.heads)
    inputs: dict[str, Any] = {"query": make_rows(sizes.heads), "key": shared, "value": shared}
    arguments: dict[str, Any] = {}
    attend: Callable[..., Any] = _make_splash_attention(sizes, case.tile or (512, 512))
    if name != "splash":
        implementation = "xla" if name.endswith(XLA) else "pallas"
        sequence = ShardedSequence(strategy="ring")
        attend = partial(attention, implementation=implementation, sequence=sequence)
        make_variant = VARIANTS.get(name.removesuffix(XLA), VARIANTS["distance_aware"])
        variant = jax.eval_shape(lambda: make_variant(sizes, jax.random.key(0)))
        inputs["variant"] = jax.tree.map(lambda leaf: make_type(leaf.shape, leaf.dtype), variant)
        arguments = OPTIONS[name](sizes, make_type) if name in OPTIONS else {}
    static = {key: x for key, x in arguments.items() if not hasattr(x, "shape")}
    traced = {key: x for key, x in arguments.items() if hasattr(x, "shape")}

    def loss(inputs: dict[str, Any], traced: dict[str, Any]) -> jax.Array:
        outputs = attend(**inputs, **traced, **static)
        return sum(
            (jnp.sin(x.astype(jnp.float32)).sum() for x in jax.tree.leaves(outputs)),
            start=jnp.float32(0),
        )

    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        return jax.jit(jax.grad(loss)).trace(inputs, traced).lower(lowering_platforms=("tpu",))


def _make_splash_attention(sizes: Shape, tile: tuple[int, int]) -> Callable[..., jax.Array]:
    """Return splash attention without a mask, for inputs of the shape (B, L, N, H).

    Args:
      sizes: Sizes of the inputs.
      tile: Number of queries and number of keys of a block.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as mask

    blocks: dict[str, Any] = dict.fromkeys(("block_q", "block_q_dkv", "block_q_dq"), tile[0])
    names = ("block_kv", "block_kv_compute", "block_kv_dkv", "block_kv_dkv_compute", "block_kv_dq")
    blocks |= dict.fromkeys(names, tile[1])
    attend = kernel.make_splash_mha_single_device(
        mask.MultiHeadMask([mask.FullMask((sizes.length, sizes.length))] * sizes.heads),
        block_sizes=kernel.BlockSizes(**blocks),
    )

    def attend_rows(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        heads_first = [jnp.swapaxes(x, 1, 2) for x in (query, key, value)]
        return jnp.swapaxes(jax.vmap(attend)(*heads_first), 1, 2)

    return attend_rows
