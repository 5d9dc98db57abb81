"""Unusual arguments of `attention`, its modules and the guides: they work, or the error names them.

The shape checker of the tests is off here, because users do not have it.
"""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from distattn_jax import guiding, modules
from distattn_jax.attention import (
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    TransformerXL,
    alibi_slopes,
    attention,
    sinusoid,
)
from distattn_jax.modules.dropout import dropout
from tests.attention.cases import IMPLEMENTATIONS, Sizes, inputs, select_implementation

pytestmark = pytest.mark.usefixtures("without_shape_checker")
ONES = np.ones(4, np.float32)
TOKENS = np.ones((1, 3, 4), np.float32)
QKV = [np.asarray(x) for x in inputs(Sizes(queries=3, keys=3, heads=4, value_width=4), "float32")]


def attend(variant=None, arrays=QKV, **arguments):
    return attention(*arrays, DotProduct() if variant is None else variant, **arguments)


def bias(parameters, function):
    return lambda: attend(DistanceBias(parameters, function))


def decoder():
    return modules.Decoder(2, 4, 1, hidden_features=4, rngs=nnx.Rngs(0))


def pool(tokens, **arguments):
    return modules.AdditivePooling(4, rngs=nnx.Rngs(0))(tokens, **arguments)


def encode(**arguments):
    encoder = modules.Encoder(1, 4, 1, hidden_features=4, rngs=nnx.Rngs(0))
    return encoder(TOKENS, **arguments)


def decode(**arguments):
    layer = modules.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))
    layer.init_cache((1, 3, 4))
    return layer(TOKENS[:, :1], **arguments)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint32", "int64"])
def test_lengths_of_any_integer_dtype(dtype):
    """An array of 300 keys is longer than 8 bits can count."""
    key = np.ones((1, 300, 1, 4), np.float32)
    lengths = np.asarray([100], dtype)
    output = attend(arrays=[key[:, :1], key, key], key_lengths=lengths, received=True)
    np.testing.assert_allclose(output.received[0, 0, :100], 0.01, rtol=1e-5)
    assert not output.received[0, 0, 100:].any()
    received = np.random.default_rng(0).random((1, 1, 3, 300)).astype(np.float32)
    for loss in (guiding.map_discrimination, guiding.pattern_decorrelation):
        expected = loss(received, np.asarray([100], "int32"))
        np.testing.assert_allclose(loss(received, lengths), expected, rtol=1e-6)


def test_lengths_of_8_bits_with_a_memory():
    """100 positions of the memory and 190 tokens are more than 8 bits can count."""
    encoder = modules.Encoder(1, 4, 1, hidden_features=4, rngs=nnx.Rngs(0))
    memory = modules.SegmentMemory.empty(1, 1, 100, 4)
    tokens = np.random.default_rng(0).normal(size=(1, 200, 4)).astype(np.float32)
    outputs = [
        encoder(tokens, lengths=np.asarray([190], dtype), memory=memory)
        for dtype in ("uint8", "int32")
    ]
    for actual, expected in zip(*map(jax.tree.leaves, outputs), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_refused_call_leaves_the_cache_unchanged():
    layer = modules.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))
    layer.init_cache((1, 3, 4))
    first, second = np.random.default_rng(0).normal(size=(2, 1, 1, 4)).astype(np.float32)
    layer(first)
    with pytest.raises(ValueError, match="mask"):
        layer(second, mask=np.ones((1, 1, 1, 9), bool))
    assert layer.cache_index[...] == 1
    assert not layer.cached_key[...][:, 1:].any()


def test_a_cache_counts_at_most_the_appended_tokens():
    cache = modules.KeyValueCache.empty(2, 8, 1, 4, "float32")
    new = np.ones((2, 4, 1, 4), np.float32)
    appended = cache.append(new, new, np.asarray([9, -1]))
    np.testing.assert_array_equal(appended.lengths, [4, 0])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_query_and_key_of_different_precision(name, monkeypatch):
    with jax.enable_x64(True), select_implementation(name, monkeypatch) as implementation:
        wide = [x.astype("float64") for x in QKV]
        mixed = [QKV[0], wide[1], wide[2]]
        output, expected = (
            attend(arrays=arrays, implementation=implementation, received=True)
            for arrays in (mixed, wide)
        )
    for actual, desired in zip(output[:2], expected[:2], strict=True):
        assert actual.dtype == "float64"
        np.testing.assert_allclose(actual, desired, rtol=1e-12)


def test_dropout_of_float64_weights_is_scaled_with_float64_accuracy():
    """Each weight is 1/3. A rate of 26/256 divides the weights that are kept by 230/256."""
    with jax.enable_x64(True):
        arrays = [0 * QKV[0], *(np.ones_like(x, "float64") for x in QKV[1:])]
        key = jax.random.key(0)
        values = np.asarray(attend(arrays=arrays, dropout_rate=26 / 256, dropout_key=key).values)
    kept = values * 3 * 230 / 256
    assert {*np.rint(kept).flat} == {1, 2, 3}
    np.testing.assert_allclose(kept, np.rint(kept), rtol=1e-14)


def test_dropout_of_everything_has_gradient_zero():
    gradient = jax.grad(lambda x: dropout(x, 1, nnx.Rngs(0)).sum())(ONES)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("zero", [np.float32(0), np.zeros((), "float16"), jnp.float32(0), 0])
def test_a_known_rate_of_zero_needs_no_dropout_key(zero):
    expected = attend().values
    np.testing.assert_array_equal(attend(dropout_rate=zero).values, expected)
    compiled = jax.jit(lambda: attend(dropout_rate=zero).values)()
    np.testing.assert_allclose(compiled, expected, rtol=1e-6)


def test_a_known_distance_may_be_an_array_inside_of_jit():
    distance = jnp.float32(2)

    @jax.jit
    def make(traced):
        module = modules.RelativePosition(
            1, 2, 3, key_distance=distance, value_distance=traced, rngs=nnx.Rngs(0)
        )
        return module().keys

    np.testing.assert_array_equal(make(1)[0, 0], make(1)[0, 1])


@pytest.mark.parametrize("size", [2**31, sys.maxsize])
def test_a_window_of_any_size(size):
    np.testing.assert_array_equal(attend(local_window_size=size).values, attend().values)


def test_caches_have_the_dtype_of_the_parameters():
    layers = modules.Decoder(
        1, 4, 1, hidden_features=4, param_dtype="float16", dtype=None, rngs=nnx.Rngs(0)
    )
    assert layers.init_caches(1, 2)[0].key.dtype == "float32"
    assert layers.layers[0].attention.cache_dtype == "float32"


@pytest.mark.usefixtures("eight_devices")
def test_outputs_are_sharded_along_the_sequence_like_the_query():
    mesh = jax.make_mesh((2, 4), ("data", "sequence"), axis_types=(AxisType.Explicit,) * 2)
    query, key, value = inputs(Sizes(queries=8, keys=8), "float32")
    sharding = NamedSharding(mesh, PartitionSpec("data", "sequence"))
    sharded = jax.device_put([query, key, value], sharding)
    with jax.set_mesh(mesh):
        output = attend(arrays=sharded, received=True, weights=True, logsumexp=True)
    specs = [jax.typeof(x).sharding.spec for x in output]
    assert [specs[0][1], specs[2][2], specs[3][2]] == ["sequence"] * 3
    expected = attend(arrays=[query, key, value]).values
    np.testing.assert_allclose(output.values, expected, rtol=1e-5, atol=1e-6)


XL = np.ones((4, 2, 4), np.float32)
# Calls by their error messages, in which .* stands for any text.
INVALID = {
    "DistanceBias.parameters must be (r₁, r₂), two arrays, .* kerple_log": bias(ONES, "kerple_log"),
    "DistanceBias.parameters must be (r₁, r₂), .* kerple_power": bias((ONES,), "kerple_power"),
    "DistanceBias.parameters must .* (4,).* the slope of each head; got (": bias((ONES,), "alibi"),
    "the slope of each head; got None": bias(None, "alibi"),
    "the slope of each head; got shape (4, 6)": bias(np.ones((4, 6), np.float32), "alibi"),
    "each of the 32 buckets .* (4 or 1, 32); got (": bias((ONES,), "t5_buckets"),
    "RelativePosition.keys must have shape .* got (1, 1)": lambda: RelativePosition(keys=[[1.0]]),
    "TransformerXL.projection must have shape .* got (1, 1)": lambda: TransformerXL(
        [[1.0]], ONES[None], ONES[None]
    ),
    "TransformerXL.content_bias must have shape (heads or 1, H); got (4,)": lambda: TransformerXL(
        XL, ONES, ONES[None]
    ),
    "mapping must be a function of (x, shape), .* got None": lambda: DistanceAware(
        ONES, ONES, mapping=None
    ),
    "adjust must be an Adjustment, .* got None": lambda: DistanceAware(ONES, ONES, adjust=None),
    "num_heads must be an integer of at least 1; got 0": lambda: alibi_slopes(0),
    "implementation must .* got ['xla']": lambda: attend(implementation=["xla"]),
    "query must have at least 16 bits; got dtype float8_e4m3fn": lambda: attend(
        arrays=[jnp.asarray(QKV[0], "float8_e4m3fn"), *QKV[1:]]
    ),
    "dropout_key must be one PRNG key": lambda: attend(dropout_rate=0.1, dropout_key=0),
    "scale must be None or a positive Python number; got np.complex64": lambda: attend(
        scale=np.complex64(1)
    ),
    "DistanceAware.weight must be an array of real numbers; got dtype complex64": lambda: attend(
        DistanceAware(ONES.astype("complex64"), ONES)
    ),
    "width must be even": lambda: sinusoid(jnp.arange(3), 5, "float32"),
    "first must be an integer or an array of integers; got": lambda: modules.add_positions(
        TOKENS, first=np.float32(1.5)
    ),
    "query_offset must lie between -2147483642 and 2147483642": lambda: attend(
        query_offset=2**31 - 1, is_causal=True
    ),
    "rate must be one number, at least 0 and at most 1; got -1": lambda: dropout(
        ONES, -1, nnx.Rngs(0)
    ),
    "rate must be one number, at least 0 and at most 1; got Array(2": lambda: dropout(
        ONES, jnp.float32(2), nnx.Rngs(0)
    ),
    "lengths must be one integer per example, shape (1,); got [2]": lambda: decoder()(
        TOKENS, lengths=[2]
    ),
    "lengths must be one integer .* got [3]": lambda: pool(TOKENS, lengths=[3]),
    "lengths must be one integer per example, shape (2,); got [3, 3]": lambda: (
        guiding.map_discrimination(np.ones((2, 1, 2, 3), np.float32), [3, 3])
    ),
    "lengths must be one integer per example, shape (2,); got [2, 2]": lambda: guiding.make_target(
        np.ones((2, 3, 3), np.float32), [2, 2]
    ),
    "caches must have one entry for each of the 2 layers; got 1": lambda: decoder()(
        TOKENS[:, :1], caches=decoder().init_caches(1, 4)[:1]
    ),
    "caches must be None or have a KeyValueCache for each layer; got ['NoneType', 'NoneType']": (
        lambda: decoder()(TOKENS[:, :1], caches=[None, None])
    ),
    "caches must be None or have a KeyValueCache for each layer; got int": lambda: decoder()(
        TOKENS[:, :1], caches=3
    ),
    "is_causal must be True or False; got 'x'": lambda: decode(is_causal="x"),
    "dropout_rate must be a number; got Array((), dtype=key": lambda: attend(
        dropout_rate=jax.random.key(0), dropout_key=jax.random.key(0)
    ),
    "The result of DistanceBias.function must .* real numbers; got dtype complex64": bias(
        ONES, lambda distance, slope: -1j * slope * distance
    ),
    "The result of DistanceAware.mapping must .* real numbers; got dtype complex64": lambda: attend(
        DistanceAware(ONES, ONES, lambda x, shape: 1j * x)
    ),
    "num_heads must be an integer of at least 1; got True": lambda: alibi_slopes(True),
    "DistanceBias.parameters must be an array of real numbers; got dtype object": bias(
        np.asarray([1, None, 1, 1]), "alibi"
    ),
    "tolerance must be None or at least 0; got a": lambda: DistanceAware(ONES, ONES, tolerance="a"),
    "key_lengths must be one integer per example, shape (2,); got .* object": lambda: attend(
        key_lengths=np.asarray([1, None])
    ),
    "position must be an array of integers; got": lambda: sinusoid(ONES, 4, "float32"),
    "dtype must be float32 or float64; got float16": lambda: sinusoid(jnp.arange(3), 4, "float16"),
    "embeddings must be floating point; got dtype int64": lambda: modules.add_positions(
        np.ones((1, 3, 4), int)
    ),
    "first must have at most the batch axes of embeddings, (1,); got": lambda: (
        modules.add_positions(TOKENS, first=np.zeros((1, 3), int))
    ),
    "tokens must be floating point; got dtype int64": lambda: pool(TOKENS.astype(int)),
    "mask must be boolean, True for valid tokens; got list": lambda: pool(
        TOKENS, mask=[[True, True, True]]
    ),
    "mask must have one entry for each token, shape (1, 3); got (1, 4)": lambda: pool(
        TOKENS, mask=np.ones((1, 4), bool)
    ),
    "value must have the 2 tokens of key; got 1": lambda: modules.KeyValueCache.empty(
        1, 8, 1, 4, "float32"
    ).append(TOKENS[:, :2, None], TOKENS[:, :1, None]),
    "rngs must be random number generators": lambda: dropout(TOKENS, 0.1, jax.random.key(0)),
    "memory must be None or a SegmentMemory; got int": lambda: encode(memory=3),
    "memory must be that of 1 layers and 1 examples; got .* (2, 1, 5, 4)": lambda: encode(
        memory=modules.SegmentMemory.empty(2, 1, 5, 4)
    ),
    "key_distance must be None or an integer of at least -1; got 1.5": lambda: (
        modules.RelativePosition(2, 4, 3, key_distance=1.5, rngs=nnx.Rngs(0))
    ),
    "key must fit into the cache, .* (3, 4, 1, 4); got shape (1, 1, 1, 4)": lambda: decoder()(
        TOKENS[:, :1], caches=decoder().init_caches(3, 4)
    ),
}


@pytest.mark.parametrize(("message", "call"), INVALID.items(), ids=INVALID)
def test_an_error_names_the_argument(message, call):
    pattern = re.escape(message).replace(r"\.\*", "(.|\n)*")
    with pytest.raises((ValueError, TypeError), match=pattern):
        call()


def test_slopes_of_a_numpy_number_of_heads():
    np.testing.assert_array_equal(alibi_slopes(np.int64(12)), alibi_slopes(12))
