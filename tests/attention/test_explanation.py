"""Explanation of the choice of an implementation, and the warning about a slow one."""

import functools
import warnings

import jax
import jax.numpy as jnp
import pytest

from distattn_jax.attention import (
    DistanceAware,
    DotProduct,
    SlowAttentionWarning,
    attention,
    devices,
    explain_implementation,
    explanation,
    fused_kernels,
)
from distattn_jax.attention.devices import Machine
from tests.attention.cases import VARIANTS, Sizes, inputs, needs_kernels

NEW_JAX, OLD_JAX = (0, 11), (0, 10)
CPU = Machine("cpu", [], [], NEW_JAX)
HOPPER = Machine("cuda", [9.0, 9.0], [], NEW_JAX)
AMPERE = Machine("cuda", [8.0], [], NEW_JAX)
TURING = Machine("cuda", [7.5, 9.0], [], NEW_JAX)
MIXED = Machine("cuda", [9.0, 12.0], [], NEW_JAX)
PORTABLE = "pallas_portable"
ROCM = Machine("rocm", [], [], NEW_JAX)
TPU = Machine("tpu", [], ["TPU v6 lite"], NEW_JAX)
DISTANCE_AWARE = DistanceAware(jnp.ones(2), jnp.ones(2))


def struct(dtype="bfloat16", length=2**20, width=64):
    return jax.ShapeDtypeStruct((8, length, 2, width), dtype)


def explain(machine, x, variant=DISTANCE_AWARE, **arguments):
    with devices.assumed(machine):
        return explain_implementation(x, x, x, variant, **arguments)


@pytest.mark.parametrize(
    ("machine", "arguments", "expected"),
    [
        (CPU, {"x": struct()}, ("pallas", "pallas", "xla")),
        (CPU, {"x": struct("float32")}, ("xla", "pallas", "xla")),
        (CPU, {"x": struct("float32"), "precision": "BF16_BF16_F32"}, ("pallas", "pallas", "xla")),
        (CPU, {"x": struct(), "weights": True}, ("xla", "xla", "xla")),
        (CPU, {"x": struct(), "variant": DotProduct()}, ("pallas", "pallas", "xla")),
        (CPU, {"x": struct(width=128), "variant": DotProduct()}, ("cudnn", "pallas", "xla")),
        (CPU._replace(jax_version=OLD_JAX), {"x": struct()}, ("xla", "xla", "xla")),
        (HOPPER, {"x": struct()}, ("pallas", "pallas", "xla")),
        (AMPERE, {"x": struct()}, (PORTABLE, "pallas", "xla")),
        (AMPERE, {"x": struct(), "implementation": "pallas"}, (PORTABLE, "pallas", None)),
        (TURING, {"x": struct()}, ("xla", "pallas", "xla")),
        (MIXED, {"x": struct()}, (PORTABLE, "pallas", "xla")),
        (MIXED, {"x": struct(), "variant": DotProduct()}, ("cudnn", "pallas", "xla")),
        (HOPPER, {"x": struct(), "implementation": "pallas_portable"}, (PORTABLE, None, None)),
        (AMPERE, {"x": struct(), "variant": DotProduct()}, ("cudnn", "pallas", "xla")),
        (ROCM, {"x": struct()}, ("xla", "pallas", "xla")),
        (CPU, {"x": struct(), "implementation": "pallas"}, ("pallas", "pallas", None)),
        (CPU, {"x": struct(), "implementation": "reference"}, ("reference",) * 3),
    ],
)
def test_shapes_are_enough_to_name_the_implementation_on_each_device(machine, arguments, expected):
    found = explain(machine, **arguments)
    assert tuple(choice.implementation for choice in found) == expected
    for choice in found:
        named = {choice.implementation, *choice.passed_over} - {None}
        assert named == {"pallas", "cudnn", PORTABLE, "xla", "reference"}


def test_devices_that_the_machine_lacks_are_assumed():
    names = {
        "cpu": ["GPU, compute capability 9.0 (assumed)", "TPU v5e (assumed)", "CPU"],
        "cuda": ["GPU, compute capability 8.0", "TPU v5e (assumed)", "CPU"],
        "rocm": ["GPU, ROCm", "TPU v5e (assumed)", "CPU"],
        "tpu": ["GPU, compute capability 9.0 (assumed)", "TPU v6 lite", "CPU"],
    }
    for machine in (CPU, AMPERE, ROCM, TPU):
        found = explain(machine, struct())
        assert [choice.device for choice in found] == names[machine.platform]


def test_a_setting_turns_the_portable_form_off(monkeypatch):
    monkeypatch.setattr(fused_kernels, "CHOOSES_PORTABLE", False)
    assert explain(AMPERE, struct()).gpu.implementation == "xla"


TABLE = """\
device                       implementation
GPU, compute capability 8.0  cudnn            chosen
                             pallas           it needs Hopper GPUs, compute capability 9; got [8.0]
                             pallas_portable  it supports the call, but cudnn comes first
                             xla              it supports the call, but cudnn comes first
                             reference        it supports the call, but cudnn comes first
TPU v5e (assumed)            pallas           chosen
                             cudnn            it runs on NVIDIA GPUs only
                             pallas_portable  it runs on NVIDIA GPUs only
                             xla              it supports the call, but pallas comes first
                             reference        it supports the call, but pallas comes first
CPU                          xla              chosen
                             pallas           it runs on NVIDIA GPUs and TPUs only
                             cudnn            it runs on NVIDIA GPUs only
                             pallas_portable  it runs on NVIDIA GPUs only
                             reference        it supports the call, but xla comes first"""


def test_an_explanation_is_printed_as_a_table():
    assert str(explain(AMPERE, struct(), DotProduct())) == TABLE


@pytest.mark.parametrize("name", VARIANTS)
def test_an_explanation_takes_the_arguments_of_a_call(name):
    sizes = Sizes(value_width=4)
    variant, _ = VARIANTS[name](sizes, "float32")
    abstract = jax.eval_shape(lambda: variant)
    segments = jnp.zeros((2, 5), int)
    arguments = {"query_segments": segments, "key_segments": segments, "local_window_size": (2, 3)}
    query, *_ = inputs(sizes, "float32")
    for given in (variant, abstract):
        found = explain_implementation(query, query, query, given, **arguments, dropout_rate=0.0)
        assert found.cpu.implementation == "xla"
    with pytest.raises(TypeError, match="unexpected keyword argument 'masks'"):
        explain_implementation(query, query, query, variant, masks=None)
    with pytest.raises(ValueError, match="implementation must be None or one of"):
        explain_implementation(query, query, query, variant, implementation="fast")


@needs_kernels
@pytest.mark.parametrize("weights", [False, True])
def test_the_program_uses_the_explained_implementation(weights):
    x = struct(length=64, width=16)
    attend = functools.partial(attention, variant=DotProduct(), weights=weights)
    program = jax.jit(attend).trace(x, x, x).lower(lowering_platforms=("tpu",)).as_text()
    found = explain_implementation(x, x, x, DotProduct(), weights=weights)
    assert ("tpu_custom_call" in program) == (found.tpu.implementation == "pallas")


@pytest.fixture
def call(monkeypatch):
    """Return a function that traces a call on a machine, in a process without any warning yet."""
    monkeypatch.setattr(explanation, "warned_causes", set())

    def trace(machine, dtype, variant=DISTANCE_AWARE, **arguments):
        x = struct(dtype, length=64)
        with devices.assumed(machine):
            jax.eval_shape(functools.partial(attention, variant=variant, **arguments), x, x, x)

    return trace


OLD_HOPPER, OLD_TPU = (machine._replace(jax_version=OLD_JAX) for machine in (HOPPER, TPU))
ROUND, UPGRADE = 'pass bfloat16 inputs or precision="BF16_BF16_F32"', "install JAX 0.11 or newer"


@pytest.mark.parametrize(
    ("machine", "dtype", "variant", "remedy"),
    [
        (HOPPER, "float32", DISTANCE_AWARE, f"To run pallas, {ROUND}. "),
        (AMPERE, "float32", DotProduct(), f"To run cudnn, {ROUND}. "),
        (AMPERE, "float32", DISTANCE_AWARE, f"To run {PORTABLE}, {ROUND}. "),
        (OLD_HOPPER, "float32", DotProduct(), f"To run cudnn, {ROUND}. "),
        (OLD_HOPPER, "bfloat16", DISTANCE_AWARE, f"To run pallas, {UPGRADE}. "),
        (OLD_HOPPER, "float32", DISTANCE_AWARE, f"To run pallas, {ROUND} and {UPGRADE}. "),
        (OLD_TPU, "float32", DISTANCE_AWARE, f"To run pallas, {UPGRADE}. "),
    ],
)
def test_a_slow_call_warns_once_with_the_remedy(machine, dtype, variant, remedy, call):
    with pytest.warns(SlowAttentionWarning, match=remedy):
        call(machine, dtype, variant)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(machine, dtype, variant)


@pytest.mark.parametrize(
    ("machine", "dtype", "arguments"),
    [
        (HOPPER, "float32", {"implementation": "xla"}),
        (HOPPER, "float32", {"weights": True}),  # also bfloat16 inputs would need xla
        (TURING, "float32", {}),
        (TURING._replace(jax_version=OLD_JAX), "bfloat16", {}),
        (CPU._replace(jax_version=OLD_JAX), "float32", {}),
        (ROCM, "float32", {}),
    ],
)
def test_there_is_no_warning_without_a_remedy(machine, dtype, arguments, call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(machine, dtype, **arguments)
