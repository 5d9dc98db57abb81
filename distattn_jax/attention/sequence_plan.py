"""Plan of attention over a sharded sequence: mesh axis, order, strategy and number of steps.

There are two strategies. In a ring, keys or queries travel from device to device: see `ring`. If
they are gathered, every device receives all keys and values at once, and computes its own queries
in one call. Gathering is simpler, and faster where keys and values are small. Its memory grows with
the length of the whole sequence, that of the ring with the length of a shard.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, AxisType
from jaxtyping import Array

from distattn_jax.attention.arguments import AttentionCall
from distattn_jax.attention.near_keys import list_halos

SEQUENCE_AXES = ("sequence", "context")  # names of mesh axes of type Auto that shard a sequence
ORDERS = ("contiguous", "balanced")
STRATEGIES = ("ring", "gather")
# Up to this number of bytes of all keys and values, gathering is the default.
LARGEST_GATHERED = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class ShardedSequence:
    """Description of a sequence that is sharded over devices.

    Attributes:
      axis: Name of the mesh axis that shards the sequence, or several names. It is required inside
        your own `shard_map`. Otherwise, None finds the axis: with Explicit axes, the sharding of
        the query names it, and with Auto axes, it is the axis "sequence" or "context".
      order: "contiguous" if each device has consecutive positions. "balanced" if query, key, value,
        segments and masks were reordered by `to_balanced_order`, so that all devices have the same
        work under a causal mask. The outputs then have this order, too.
      strategy: "ring" if keys or queries travel from device to device, "gather" if each device
        gathers all keys. None selects one.
    """

    axis: str | tuple[str, ...] | None = None
    order: str = "contiguous"
    strategy: str | None = None

    def __post_init__(self):
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}; got {self.order!r}.")
        if self.strategy not in (None, *STRATEGIES):
            raise ValueError(
                f"strategy must be None or one of {', '.join(STRATEGIES)}; got {self.strategy!r}."
            )


class SequenceAxis(NamedTuple):
    """Mesh axis that shards the sequence of a call.

    Attributes:
      names: Names of the mesh axes that shard the sequence together. Most often it is one name.
      size: Number of shards.
      is_manual: True inside a `shard_map` of the user: the arrays of the call are shards.
      sequence: Order and strategy that the user named.
    """

    names: tuple[str, ...]
    size: int
    is_manual: bool
    sequence: ShardedSequence

    @property
    def manual_shards(self) -> int:
        """Length of the whole sequence, divided by that of the arrays of the call."""
        return self.size if self.is_manual else 1


class Plan(NamedTuple):
    """Strategy of one call over a sharded sequence.

    Attributes:
      strategy: "ring" or "gather".
      reason: Text that says why.
      shards: Number of shards of the sequence.
      steps: Number of blocks of keys that each device attends to, one after the other.
      first: See `ring.Ring.first`.
      balances: True if the call itself exchanges chunks, so that all devices have the same work
        under a causal mask.
      halos: Numbers of keys that travel instead of whole shards, if all heads are local enough: see
        `near_keys`.
    """

    strategy: str
    reason: str
    shards: int
    steps: int
    first: int = 0
    balances: bool = False
    halos: tuple[int, ...] = ()

    def __str__(self) -> str:
        steps = f"{self.steps} step" + "s" * (self.steps > 1)
        exchange = ", exchanges chunks for equal work" * self.balances
        near = ""
        if self.halos:
            distances = " or ".join(map(str, self.halos))
            near = f", or one step with {distances} keys of each neighbour if all heads look near"
        return f"{self.strategy} over {self.shards} shards, {steps}{exchange}{near}: {self.reason}"


def find_axis(query: Array, key: Array, sequence: Any) -> SequenceAxis | None:
    """Return the mesh axis that shards the sequence of a call, or None if there is none.

    Args:
      query: Queries.
      key: Keys.
      sequence: Argument of `attention`.
    """
    if isinstance(sequence, str | tuple):
        sequence = ShardedSequence(sequence)
    if not isinstance(sequence, ShardedSequence | None):
        raise TypeError(
            "sequence must be None, the name of a mesh axis, or a ShardedSequence; "
            f"got {sequence!r}."
        )
    mesh, spec = jax.sharding.get_abstract_mesh(), (None,) * 4
    if AxisType.Manual not in mesh.axis_types:
        sharding = jax.typeof(query).sharding
        mesh = mesh if sharding.mesh.empty else sharding.mesh
        spec = sharding.spec
    named = None if sequence is None else sequence.axis
    sequence = sequence or ShardedSequence()
    names = _find_names(mesh, spec[1], query.shape[1], named)
    size = math.prod(mesh.shape[name] for name in names)
    if size == 1:
        return None
    types = {dict(zip(mesh.axis_names, mesh.axis_types, strict=True))[name] for name in names}
    axis = SequenceAxis(names, size, AxisType.Manual in types, sequence)
    _check_lengths(axis, query, key)
    if AxisType.Explicit in types:
        found = jax.typeof(key).sharding.spec[1]
        if found != spec[1]:
            raise ValueError(
                f"key must be sharded like query, whose sequence is sharded over {spec[1]!r}; the "
                f"sequence of key is sharded over {found!r}. Reshard key, value and their masks."
            )
    return axis


def _find_names(
    mesh: AbstractMesh, spec: Any, queries: int, named: str | tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the mesh axes that shard the sequence, or () if there are none.

    Args:
      mesh: Mesh of the call.
      spec: Mesh axes that shard the queries, with Explicit axes.
      queries: Number of queries. One query, as in decoding, is not sharded over an Auto axis.
      named: Axes that the user named, or None.
    """
    found = (spec,) if isinstance(spec, str) else tuple(spec or ())
    if named is None:
        if found or AxisType.Manual in mesh.axis_types or queries == 1:
            return found
        types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        return tuple(name for name in SEQUENCE_AXES if types.get(name) == AxisType.Auto)[:1]
    names = (named,) if isinstance(named, str) else tuple(named)
    missing = [name for name in names if name not in mesh.axis_names]
    if missing:
        raise ValueError(
            f"sequence names the mesh axis {missing[0]!r}, but the mesh has the axes "
            f"{tuple(mesh.axis_names)}. Name one of them, or set the mesh with jax.set_mesh."
        )
    if found and found != names:
        raise ValueError(
            f"sequence names the mesh axes {names}, but query is sharded over {found}. Name these."
        )
    return names


def _check_lengths(axis: SequenceAxis, query: Array, key: Array) -> None:
    """Raise ValueError unless the sequence can be divided into shards, or shards into chunks."""
    is_balanced = axis.sequence.order == "balanced"
    pieces = (1 if axis.is_manual else axis.size) * (2 if is_balanced else 1)
    for name, array in (("query", query), ("key", key)):
        if isinstance(array.shape[1], int) and array.shape[1] % pieces:
            if axis.is_manual:
                raise ValueError(
                    f"{name} must have an even length on each device, because a shard in balanced "
                    f"order has two chunks; got {array.shape[1]}."
                )
            chunks = " into two chunks each" * is_balanced
            raise ValueError(
                f"{name} must have a length that the {axis.size} shards of the mesh axis "
                f"{'x'.join(axis.names)!r} divide{chunks}, a multiple of {pieces}; got "
                f"{array.shape[1]}. Pad it, and pass {name}_lengths."
            )


def make_plan(call: AttentionCall, name: str | None, axis: SequenceAxis) -> Plan:
    """Choose the strategy of a call.

    Args:
      call: Arguments of one device. Lengths and offset are those of the whole sequence.
      name: Name of the implementation, or None.
      axis: Mesh axis that shards the sequence.
    """
    first, steps = _count_steps(call, axis)
    strategy, reason = _choose_strategy(call, name, axis, steps)
    if strategy == "gather":
        return Plan("gather", reason, axis.size, steps=1)
    length, count = call.query.shape[1], call.key.shape[1]
    balances = (
        call.options.is_causal
        and call.options.aligned
        and axis.sequence.order == "contiguous"
        and steps == axis.size
        and length == count
        and length % 2 == 0
    )
    halos = () if axis.sequence.order == "balanced" else list_halos(call, name)
    return Plan("ring", reason, axis.size, steps, first, balances, halos)


def _count_steps(call: AttentionCall, axis: SequenceAxis) -> tuple[int, int]:
    """Return `first` and `steps` of a ring: a window makes distant shards unnecessary.

    A window of a size up to that of a shard needs the own shard, and one shard on each side that
    the window has. If query i and key i may have different positions, or the order is balanced, all
    shards are visited.
    """
    options, length = call.options, call.key.shape[1]
    is_known = options.aligned and length == call.query.shape[1]
    if options.window is None or axis.sequence.order == "balanced" or not is_known:
        return 0, axis.size
    left, right = options.window
    right = 0 if options.is_causal else right
    before, after = (min(-(-limit // length), axis.size) for limit in (left, right))
    if before + after + 1 >= axis.size:
        return 0, axis.size
    return after, before + after + 1


def _choose_strategy(
    call: AttentionCall, name: str | None, axis: SequenceAxis, steps: int
) -> tuple[str, str]:
    """Return "ring" or "gather", and a reason. Raise ValueError if a named one is not possible."""
    named = axis.sequence.strategy
    forced = None
    if call.options.weights:
        forced = "the weights of a query need all keys at once"
    elif call.variant.adjusts_weights:
        forced = f"{type(call.variant).__name__} changes the weights after the softmax"
    elif name == "cudnn":
        forced = "cudnn does not return the logsumexp"
    if forced is not None:
        if named == "ring":
            raise ValueError(
                f"strategy='ring' does not support this call, because {forced}. Use 'gather'."
            )
        return "gather", forced
    if named is not None:
        return named, "the call names it"
    if steps < axis.size:
        return "ring", f"the window needs {steps} of {axis.size} shards"
    _, length, heads, _ = call.query.shape
    # Keys are as wide as queries, and values are as wide as outputs.
    ratio = axis.size * call.key.shape[1] * call.key.shape[2] / (length * heads)
    if ratio <= 1:
        return "gather", "all keys and values are not larger than the queries of one device"
    size = axis.size * sum(x.size * x.dtype.itemsize for x in (call.key, call.value))
    mebibytes = size / 2**20
    if size <= LARGEST_GATHERED:
        return "gather", f"all keys and values are small, {mebibytes:.1f} MiB"
    return "ring", f"all keys and values would be {mebibytes:.0f} MiB on each device"
