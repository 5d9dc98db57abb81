"""Explain the choice of an implementation of attention, and warn about an avoidable slow one.

`explain` and `warn_if_slow` ask the table of implementations, which makes the choice. To explain
the choice on a device that this machine lacks, the table is asked as if the machine had it. To find
what would make a call faster, the table is asked for the same call with 16-bit inputs, or with a
newer JAX.
"""

import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp

from distattn_jax.attention import devices
from distattn_jax.attention.arguments import AttentionCall
from distattn_jax.attention.devices import Machine
from distattn_jax.attention.fused_kernels import OLDEST_JAX
from distattn_jax.attention.implementations import (
    FUSED,
    IMPLEMENTATIONS,
    PORTABLE,
    list_candidates,
)
from distattn_jax.attention.sequence_plan import Plan, SequenceAxis
from distattn_jax.attention.sharded_sequence import visit_block

PLATFORMS = {"cuda": "NVIDIA GPUs", "tpu": "TPUs"}  # names of the platforms with fused kernels
# Chips that an explanation assumes if this machine has none.
ASSUMED_CAPABILITY = 9.0
ASSUMED_TPU = "TPU v5e"
SLOW = ("xla", "reference")  # implementations that are not fused


class SlowAttentionWarning(UserWarning):
    """Warning that attention on a GPU or TPU is not fused, although it could be."""


class Choice(NamedTuple):
    """Choice of an implementation on one device.

    Attributes:
      device: Name of the device. It ends with "(assumed)" if this machine has no such device.
      implementation: Name of the chosen implementation. None if the call raises an error, because
        it names an implementation that does not support the call or the device.
      passed_over: Reason why each other implementation was not chosen.
      sequence: Strategy and number of steps, if the sequence is sharded over devices: see
        `ShardedSequence`. The implementation then computes one block of keys. Otherwise None.
    """

    device: str
    implementation: str | None
    passed_over: dict[str, str]
    sequence: Plan | None = None


class Explanation(NamedTuple):
    """Implementation of a call on each kind of device. `print` shows it as a table.

    Attributes:
      gpu: Choice on the GPU of this machine. Without a GPU, a Hopper GPU is assumed.
      tpu: Choice on the TPU of this machine. Without a TPU, a TPU v5e is assumed.
      cpu: Choice on a CPU.
    """

    gpu: Choice
    tpu: Choice
    cpu: Choice

    @property
    def sequence(self) -> Plan | None:
        """Strategy and number of steps, if the sequence is sharded over devices, otherwise None."""
        return self.cpu.sequence

    def __str__(self) -> str:
        rows = [("device", "implementation", "")]
        for choice in self:
            first = {"none": "the call raises an error"}
            if choice.implementation is not None:
                first = {choice.implementation: "chosen"}
            reasons = first | choice.passed_over
            rows += [
                ("" if i else choice.device, name, text)
                for i, (name, text) in enumerate(reasons.items())
            ]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        table = [
            f"{device:{widths[0]}}  {name:{widths[1]}}  {text}".rstrip()
            for device, name, text in rows
        ]
        return "\n".join(table + [f"sequence: {self.sequence}"] * (self.sequence is not None))


def explain(call: AttentionCall, name: str | None, axis: SequenceAxis | None = None) -> Explanation:
    """Explain the choice of the implementation of a call on GPU, TPU and CPU.

    Args:
      call: Arguments of `attention`. Only their shapes and dtypes are used.
      name: Argument `implementation` of `attention`.
      axis: Mesh axis that shards the sequence, or None.
    """
    if axis is not None:
        found = []

        def explain_block(block: AttentionCall, plan: Plan) -> None:
            choices = (choice._replace(sequence=plan) for choice in explain(block, name))
            found.append(Explanation(*choices))

        visit_block(call, name, axis, explain_block)
        return found[0]
    local = devices.local_machine()
    version = local.jax_version
    gpu = local if local.has_gpu else None
    tpu = local if local.platform == "tpu" else None
    return Explanation(
        _explain_on(gpu or Machine("cuda", [ASSUMED_CAPABILITY], [], version), call, name, not gpu),
        _explain_on(tpu or Machine("tpu", [], [ASSUMED_TPU], version), call, name, not tpu),
        _explain_on(Machine("cpu", [], [], version), call, name, is_assumed=False),
    )


def _explain_on(
    machine: Machine, call: AttentionCall, name: str | None, is_assumed: bool
) -> Choice:
    """Explain the choice on one machine. `name` is the argument `implementation` of the call."""
    with devices.assumed(machine):
        reasons = _find_reasons(call, machine.platform)
        chosen: str | None = _choose(call, machine.platform)
    later = f"it supports the call, but {chosen} comes first"
    if name is not None:
        later = f"the call names {name}"
        names = (FUSED, PORTABLE) if name == FUSED else (name,)
        chosen = next((each for each in names if reasons[each] is None), None)
    device = _describe(machine) + " (assumed)" * is_assumed
    passed_over = {other: reason or later for other, reason in reasons.items() if other != chosen}
    return Choice(device, chosen, passed_over)


def _find_reasons(call: AttentionCall, platform: str) -> dict[str, str | None]:
    """Return the reason why each implementation does not support the call on a platform, or None.

    The names are in the order of preference.
    """
    reasons: dict[str, str | None] = {}
    for name, implementation, reason in list_candidates(call):
        if implementation.platform not in (None, platform):
            platforms = [PLATFORMS[str(each.platform)] for each in IMPLEMENTATIONS[name]]
            reasons.setdefault(name, f"it runs on {' and '.join(platforms)} only")
        elif name not in reasons or reasons[name] is not None:
            reasons[name] = reason
    return reasons


def _choose(call: AttentionCall, platform: str) -> str:
    """Return the name of the first implementation that supports the call on a platform.

    There is always one: "xla" supports every call.
    """
    reasons = _find_reasons(call, platform)
    return next(name for name, reason in reasons.items() if reason is None)


def _describe(machine: Machine) -> str:
    """Return the name of the devices of a machine, such as "GPU, compute capability 9.0"."""
    if machine.platform == "cuda":
        capabilities = sorted(set(machine.cuda_capabilities))
        return f"GPU, compute capability {', '.join(map(str, capabilities))}"
    return {"rocm": "GPU, ROCm", "tpu": (machine.tpu_kinds or ["TPU"])[0]}.get(
        machine.platform, machine.platform.upper()
    )


class _Cause(NamedTuple):
    """Cause of a slow implementation, and what to do about it."""

    text: str
    remedy: str


_MINIMUM = ".".join(map(str, OLDEST_JAX))
FLOAT32 = _Cause("the inputs are float32", 'pass bfloat16 inputs or precision="BF16_BF16_F32"')
OLD_JAX = _Cause(f"JAX is older than {_MINIMUM}", f"install JAX {_MINIMUM} or newer")
warned_causes: set[tuple[_Cause, ...]] = set()  # causes that this process has warned about


def warn_if_slow(call: AttentionCall) -> None:
    """Warn if float32 inputs or an old JAX prevent fused attention on this NVIDIA GPU or TPU.

    There is no warning if a third cause also prevents it, so that removing these two does not help.
    A process warns about the same causes only once.
    """
    platform = devices.local_machine().platform
    if platform not in PLATFORMS:
        return
    causes = _list_causes(call)
    # If removing one of two causes helps, name only that one.
    subsets = list(dict.fromkeys([*((cause,) for cause in causes), causes]))
    if not causes or warned_causes.issuperset(subsets) or _choose(call, platform) not in SLOW:
        return
    for subset in subsets:
        fused = _choose_without(subset, call, platform)
        if fused in SLOW:
            continue
        if subset not in warned_causes:
            warned_causes.add(subset)
            warnings.warn(
                "attention runs with the slow implementation xla: "
                f"{' and '.join(cause.text for cause in subset)}. To run {fused}, "
                f"{' and '.join(cause.remedy for cause in subset)}. To keep xla without this "
                'warning, pass implementation="xla".',
                SlowAttentionWarning,
                stacklevel=3,
            )
        return


def _list_causes(call: AttentionCall) -> tuple[_Cause, ...]:
    """Return the removable causes of a slow implementation.

    If one input is float64, float32 is no cause: the call needs float64.
    """
    dtypes = {str(x.dtype) for x in (call.query, call.key, call.value)}
    is_float32 = "float32" in dtypes and "float64" not in dtypes
    is_old = devices.local_machine().jax_version < OLDEST_JAX
    return (FLOAT32,) * is_float32 + (OLD_JAX,) * is_old


def _choose_without(causes: tuple[_Cause, ...], call: AttentionCall, platform: str) -> str:
    """Return the name of the implementation that a call would get without some causes."""
    machine = devices.local_machine()
    if OLD_JAX in causes:
        machine = machine._replace(jax_version=OLDEST_JAX)
    names = []

    def choose(*inputs: jax.Array) -> None:
        if FLOAT32 in causes:
            inputs = tuple(x.astype(jnp.bfloat16) for x in inputs)
        query, key, value = inputs
        names.append(_choose(call._replace(query=query, key=key, value=value), platform))

    with devices.assumed(machine):
        jax.eval_shape(choose, call.query, call.key, call.value)  # computes nothing
    return names[0]
