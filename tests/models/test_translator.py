"""Translator: shapes, masking, cached decoding, beam search, shardings, dtypes."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax import sharding
from distattn_jax.models import Sizes, Translator, shift_right
from distattn_jax.token_ids import END_ID
from tests.models.search import search, search_greedily
from tests.programs import iterate_shapes

VOCABULARY = 11
SIZES = Sizes(heads=2, head_features=4, features=8, layers=1, hidden_features=16, max_distance=2)
SOURCE = jnp.asarray([[3, 4, 5, 6, 2], [7, 8, 2, 0, 0], [9, 2, 0, 0, 0]])
SOURCE_LENGTHS = jnp.asarray([5, 3, 2])
TARGET = jnp.asarray([[4, 3, 9, 2], [10, 7, 2, 0], [5, 5, 5, 2]])
TARGET_LENGTHS = jnp.asarray([4, 3, 4])


@functools.cache
def make_model(method="relative_position", *, seed=1, norm="after", dtype=None, **sizes):
    options = {"norm": norm, "dtype": dtype, "sizes": dataclasses.replace(SIZES, **sizes)}
    model = Translator(VOCABULARY, method=method, rngs=nnx.Rngs(seed), **options)
    # Larger embeddings make the hypotheses of a search differ more.
    table = model.decoder.embedding.embedding.embedding
    table[...] = 3 * table[...]
    return model


@nnx.jit
def call(model, source, target):
    return model(source, SOURCE_LENGTHS, shift_right(target), TARGET_LENGTHS, weights=True)


def test_the_decoder_begins_with_the_end_token():
    np.testing.assert_array_equal(shift_right(TARGET)[0], [END_ID, 4, 3, 9])


def test_logits_depend_on_the_source_and_on_earlier_target_tokens_only():
    model = make_model()
    logits = call(model, SOURCE, TARGET).logits
    assert logits.shape == (3, 4, VOCABULARY)
    assert logits.dtype == jnp.float32
    later = call(model, SOURCE, TARGET.at[0, 2].set(8)).logits
    np.testing.assert_array_equal(later[0, :3], logits[0, :3])
    assert (later[0, 3] != logits[0, 3]).any()
    assert (call(model, SOURCE.at[0, 0].set(8), TARGET).logits[0] != logits[0]).all()
    padded = call(model, SOURCE.at[1, 4].set(8), TARGET).logits
    np.testing.assert_array_equal(padded, logits)


def test_all_attention_weights_are_returned():
    output = call(make_model(), SOURCE, TARGET)
    assert output.encoder_weights.shape == (3, 1, 2, 5, 5)
    assert output.decoder_weights.shape == (3, 1, 2, 4, 4)
    assert output.cross_weights.shape == (3, 1, 2, 4, 5)
    np.testing.assert_allclose(output.cross_weights[1, :, :, :3].sum(-1), 1, rtol=1e-6)
    assert not output.cross_weights[1, ..., 3:].any()


# The language model has the same decoder, and is tested with other methods.
def test_cached_decoding_equals_a_call_on_all_tokens():
    inputs = shift_right(TARGET)

    @nnx.jit
    def decode(model):
        """Read three tokens of the first example and one of the others, then one at a time."""
        encoded = model.encode(SOURCE, SOURCE_LENGTHS)
        cross = model.cross_arguments(encoded, SOURCE_LENGTHS)
        read = jnp.asarray([3, 1, 2])
        last, caches = model.decoder.read_prompts(inputs[:, :3], read, new_tokens=4, **cross)
        steps = []
        for _ in range(2):
            logits, caches = model.decoder.next_logits(last, caches, **cross)
            position = caches[0].lengths - 1
            steps.append((position, logits))
            next_position = jnp.minimum(position + 1, 3)
            last = jnp.take_along_axis(inputs, next_position[:, None], axis=1)[:, 0]
        return steps, model(SOURCE, SOURCE_LENGTHS, inputs, TARGET_LENGTHS).logits

    steps, expected = decode(make_model("relative_and_absolute", norm="before"))
    for step, (position, logits) in enumerate(steps):
        np.testing.assert_array_equal(position, np.asarray([2, 0, 1]) + step)
        wanted = np.take_along_axis(expected, position[:, None, None], axis=1)[:, 0]
        np.testing.assert_allclose(logits, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("beam_size", "layers", "prompts"), [(1, 1, [[], [], []]), (3, 2, [[4], [], [3]])]
)
def test_translations_equal_a_search_in_python_without_a_cache(beam_size, layers, prompts):
    model = make_model(layers=layers)
    max_lengths = np.asarray([6, 4, 5])
    options = {"max_lengths": max_lengths, "longest": 6, "beam_size": beam_size}
    if any(prompts):
        options["prompt_lengths"] = np.asarray([len(prompt) for prompt in prompts])
        options["prompts"] = np.asarray([prompt or [0] for prompt in prompts])
    translate = nnx.jit(Translator.translate, static_argnames=("beam_size", "longest"))
    found = translate(model, SOURCE, SOURCE_LENGTHS, **options)

    def log_probabilities(example, tokens):
        tokens = [END_ID, *prompts[example], *tokens]
        inputs = np.zeros((3, 8), np.int32)
        inputs[example, : len(tokens)] = tokens
        return np.asarray(score(model, inputs)[example, len(tokens) - 1], np.float64)

    for example in range(3):
        oracle = functools.partial(log_probabilities, example)
        limits = {"longest": int(max_lengths[example]), "end": END_ID}
        if beam_size == 1:
            tokens, total = search_greedily(oracle, **limits)
            expected = [(tokens, total / ((5 + len(tokens)) / 6) ** 0.6)]
        else:
            expected = search(oracle, beam_size=beam_size, length_penalty=0.6, **limits)
        for rank, (tokens, value) in enumerate(expected):
            length = int(found.lengths[example, rank])
            assert found.tokens[example, rank, :length].tolist() == tokens
            np.testing.assert_allclose(found.scores[example, rank], value, rtol=1e-4)


@nnx.jit
def score(model, inputs):
    return jax.nn.log_softmax(model(SOURCE, SOURCE_LENGTHS, inputs, jnp.full(3, 8)).logits)


def test_heads_of_all_attentions_are_sharded():
    mesh = sharding.make_mesh(1, 2)
    params = nnx.state(make_model(), nnx.Param)
    specs = {
        "/".join(sharding.path_names(path)): leaf.spec
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            sharding.shardings(nnx.to_pure_dict(params), mesh, sharding.Layout())
        )
    }
    layer = "decoder/decoder/layers/0"
    for attention in ("attention", "cross_attention"):
        for name in ("query", "key", "value"):
            assert specs[f"{layer}/{attention}/{name}/kernel"] == jax.P(None, "model", None)
        assert specs[f"{layer}/{attention}/out/kernel"] == jax.P("model", None, None)


def test_a_layer_without_cross_attention_refuses_keys_of_an_encoder():
    model = make_model()
    with pytest.raises(ValueError, match="cross_key_value must be given if and only if"):
        model.decoder(TARGET, TARGET_LENGTHS)
    with pytest.raises(ValueError, match="cross_attention must be True"):
        model.encoder.layers[0].project_cross(jnp.zeros((1, 2, 8)))


def test_bfloat16_computes_in_bfloat16_with_float32_logits():
    model = make_model(dtype=jnp.bfloat16)
    logits = call(model, SOURCE, TARGET).logits
    assert logits.dtype == jnp.float32
    exact = call(make_model(), SOURCE, TARGET).logits
    np.testing.assert_allclose(logits, exact, atol=0.3)
    assert (logits != exact).any()


@pytest.mark.parametrize(
    ("method", "key_distance", "value_distance", "sinusoids", "max_distance"),
    [
        ("no_positions", -1, -2, 0, 2),
        ("relative_and_absolute", 1, -2, 1, 1),
        ("relative_position_keys", 0, -1, 0, 0),
        ("relative_position_values", -1, 2, 0, 2),
    ],
)
def test_switched_positions_equal_the_method_with_these_positions(
    method, key_distance, value_distance, sinusoids, max_distance
):
    sizes = {"key_distance": key_distance, "value_distance": value_distance, "sinusoids": sinusoids}
    switched = make_model("switched_positions", **sizes)
    plain = make_model(method, seed=2, max_distance=max_distance)
    values = nnx.to_pure_dict(nnx.state(switched, nnx.Param))

    def find(path, leaf):
        """Return the parameter of `switched` at a path, its tables cut to `max_distance`."""
        found = values
        for name in sharding.path_names(path):
            found = found[int(name) if name.isdigit() else name]
        middle = SIZES.max_distance
        is_table = found.shape != leaf.shape
        return found[:, middle - max_distance : middle + max_distance + 1] if is_table else found

    params = nnx.to_pure_dict(nnx.state(plain, nnx.Param))
    nnx.update(plain, jax.tree_util.tree_map_with_path(find, params))
    expected, found = (call(model, SOURCE, TARGET).logits for model in (plain, switched))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_long_sentences_train_without_a_vector_for_each_pair_of_tokens():
    length = 2048
    graph, params = nnx.split(make_model(heads=1, head_features=16, features=16))

    def loss(params, tokens):
        inputs, model = (tokens, jnp.full(1, length)), nnx.merge(graph, params)
        return model(*inputs, *inputs, dropout_rate=0.1, rngs=nnx.Rngs(0)).logits.sum()

    tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
    program = jax.make_jaxpr(jax.grad(loss))(params, tokens)
    largest = max(math.prod(shape) for shape in iterate_shapes(program.jaxpr))
    assert largest <= length * length  # an attention map; vectors would be 16 times as large
