"""Transformer layer, encoder, segment memory, pooling and position encodings."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax import modules
from distattn_jax.attention import DotProduct, sinusoid
from distattn_jax.modules import AdditivePooling, Encoder, EncoderOutput, SegmentMemory
from distattn_jax.modules.dropout import dropout
from tests.modules.cases import CLOSE, MAKERS, D, N, call, draw
from tests.unchecked import as_users_have_it

L = 2


def encoder(name="distance_aware", layers=L, seed=0, **arguments):
    return Encoder(layers, D, N, variant=MAKERS[name], rngs=nnx.Rngs(seed), **arguments)


@pytest.mark.parametrize("norm", ["after", "before"])
def test_a_layer_follows_its_equations(norm):
    layer, x = modules.TransformerLayer(D, N, norm=norm, rngs=nnx.Rngs(0)), draw(2, 5, D)

    def feed_forward(y):
        return layer.feed_forward.out(jnp.maximum(0, layer.feed_forward.hidden(y)))

    if norm == "after":
        y = layer.attention_norm(x + layer.attention(x))
        expected = layer.feed_forward_norm(y + feed_forward(y))
    else:
        y = x + layer.attention(layer.attention_norm(x))
        expected = y + feed_forward(layer.feed_forward_norm(y))
    chex.assert_trees_all_close(layer(x).values, expected, **CLOSE)


@pytest.mark.parametrize(
    ("attention_rate", "attention_dropout", "hidden_dropout", "expected_rate"),
    [(None, True, True, 0.5), (0.2, True, False, 0.2), (None, False, True, 0.0)],
)
def test_attention_and_hidden_units_have_their_own_dropout(
    attention_rate, attention_dropout, hidden_dropout, expected_rate
):
    options = {"attention_dropout": attention_dropout, "hidden_dropout": hidden_dropout}
    rates = {"dropout_rate": 0.5, "attention_dropout_rate": attention_rate}
    layer = modules.TransformerLayer(D, N, **rates, **options, rngs=nnx.Rngs(0))
    x, rngs = draw(2, 5, D), nnx.Rngs(1)
    attended = layer.attention(x, dropout_rate=expected_rate, rngs=rngs)
    y = layer.attention_norm(x + dropout(attended, 0.5, rngs))
    hidden = jax.nn.relu(layer.feed_forward.hidden(y))
    if hidden_dropout:
        hidden = dropout(hidden, 0.5, rngs)
    expected = layer.feed_forward_norm(y + dropout(layer.feed_forward.out(hidden), 0.5, rngs))
    chex.assert_trees_all_close(layer(x, rngs=nnx.Rngs(1)).values, expected, **CLOSE)


# The text classifier and the pretrained encoders test padding with the layer norm after each sum.
def test_padding_does_not_change_the_output_of_valid_tokens():
    model, x = encoder("relative_position", layers=1, norm="before"), draw(2, 6, D)
    lengths = jnp.asarray([6, 4])
    other = x.at[1, 4:].set(100.0)
    values = call(model, x, lengths=lengths).values
    changed = call(model, other, lengths=lengths).values
    chex.assert_trees_all_close(values[1, :4], changed[1, :4], **CLOSE)
    chex.assert_trees_all_close(values[1, :4], call(model, x[1:, :4]).values[0], **CLOSE)


@pytest.mark.parametrize(
    ("name", "norm"), [("transformer_xl", "after"), ("relative_position", "before")]
)
def test_ragged_segments_with_a_long_memory_equal_the_whole_texts(name, norm):
    model, x = encoder(name, norm=norm), np.asarray(draw(2, 9, D))
    whole = np.asarray(call(model, x, is_causal=True).values)
    memory = SegmentMemory.empty(L, batch=2, length=8, features=D)
    starts = np.zeros(2, int)
    for lengths in ([3, 3], [3, 1], [3, 2]):
        segment = np.stack([x[b, start : start + 3] for b, start in enumerate(starts)])
        encoded = call(model, segment, memory=memory, lengths=np.asarray(lengths), is_causal=True)
        values = np.asarray(encoded.values)
        for b, (start, length) in enumerate(zip(starts, lengths, strict=True)):
            np.testing.assert_allclose(values[b, :length], whole[b, start:][:length], **CLOSE)
        memory, starts = encoded.memory, starts + lengths
    assert memory.filled.sum(axis=1).tolist() == [8, 6]


def test_memory_drops_the_oldest_tokens_and_all_padding():
    memory = SegmentMemory.empty(1, batch=3, length=4, features=3)
    first, second = jnp.ones((1, 3, 3, 3)), 2 * jnp.ones((1, 3, 3, 3))
    memory = memory.append(first, jnp.asarray([3, 1, 0])).append(second)
    assert memory.states[0, :, :, 0].tolist() == [[1, 2, 2, 2], [1, 2, 2, 2], [0, 2, 2, 2]]
    assert memory.filled.tolist() == [[True] * 4, [True] * 4, [False, True, True, True]]


@pytest.mark.usefixtures("eight_devices")
def test_training_with_a_memory_on_an_explicit_mesh_equals_one_device():
    def loss(model, x, lengths, memory):
        encoded = model(x, lengths=lengths, memory=memory, rngs=nnx.Rngs(0), dropout_rate=0.1)
        return jnp.sin(encoded.values).sum(), encoded

    @jax.jit
    def step(model, x, lengths):
        _, first = loss(model, x, lengths, SegmentMemory.empty(1, 8, 4, D))
        return jax.value_and_grad(loss, has_aux=True)(model, x, lengths, first.memory)

    model, x, lengths = encoder(layers=1, norm="before"), draw(8, 3, D), jnp.arange(8) % 4
    alone = step(model, x, lengths)
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        sharded = [jax.sharding.reshard(array, jax.P("data")) for array in (x, lengths)]
        together = step(model, *sharded)
    chex.assert_trees_all_close(jax.device_get(together), jax.device_get(alone), **CLOSE)


def test_no_gradient_reaches_the_memory():
    model, first, x = encoder("transformer_xl"), draw(2, 3, D, seed=1), draw(2, 3, D)
    empty = SegmentMemory.empty(L, 2, 3, D)

    def second_segment(first):
        memory = call(model, first, memory=empty).memory
        return call(model, x, memory=memory).values

    gradient = jax.jit(jax.grad(lambda first: second_segment(first)[..., 0].sum()))(first)
    assert not np.any(gradient)
    assert not np.allclose(second_segment(first), call(model, x, memory=empty).values)


def test_received_and_weights_are_stacked_by_layer():
    model, x = encoder(), draw(2, 5, D)
    encoded = call(model, x, received=True, weights=True)
    assert isinstance(encoded, EncoderOutput)
    chex.assert_shape(encoded.received, (2, L, N, 5))
    chex.assert_shape(encoded.weights, (2, L, N, 5, 5))
    chex.assert_trees_all_close(encoded.values, call(model, x).values, **CLOSE)
    chex.assert_trees_all_close(encoded.received, encoded.weights.sum(-2), **CLOSE)


def test_both_modes_of_nnx_jit_agree_and_remat_draws_the_same_random_numbers():
    def apply(model, key):
        rngs = nnx.Rngs(dropout=key)
        encoded = model(draw(2, 5, D), rngs=rngs, dropout_rate=0.1, received=True)
        return encoded.values, encoded.received, jax.random.key_data(rngs.dropout())

    model, key = encoder("relative_position", layers=1), jax.random.key(1)
    expected = nnx.jit(apply, graph=False)(model, key)
    model.remat = True
    chex.assert_trees_all_close(nnx.jit(apply)(model, key), expected, **CLOSE)


def test_bfloat16_computes_in_bfloat16_with_float32_parameters():
    model = encoder(layers=1, dtype=jnp.bfloat16, norm="before")
    values = call(model, draw(2, 5, D)).values
    assert values.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(model)} == {jnp.dtype("float32")}
    exact = call(encoder(layers=1, norm="before"), draw(2, 5, D)).values
    np.testing.assert_allclose(values.astype(jnp.float32), exact, atol=0.1)


def test_dropout_is_unbiased_and_accepts_a_traced_rate():
    x = jnp.ones((400, 500))
    dropped = jax.jit(lambda rate: dropout(x, rate, nnx.Rngs(0)))(jnp.float32(0.3))
    assert abs(float(dropped.mean()) - 1) < 0.01
    assert abs(float((dropped == 0).mean()) - 0.3) < 0.01
    assert dropout(x, 0.3, None) is x


def test_pooling_is_a_weighted_sum_of_the_valid_tokens():
    pool, x = AdditivePooling(D, 8, rngs=nnx.Rngs(0)), np.asarray(draw(3, 5, D))
    lengths = np.asarray([5, 2, 0])
    scores = np.tanh(x @ pool.hidden.kernel[...]) @ np.asarray(pool.score.kernel)[..., 0]
    expected = np.zeros((3, D))
    for b, length in enumerate([5, 2, 0]):
        if length:
            weights = np.exp(scores[b, :length]) / np.exp(scores[b, :length]).sum()
            expected[b] = weights @ x[b, :length]
    np.testing.assert_allclose(call(pool, x, lengths=lengths), expected, **CLOSE)
    mask = np.arange(5)[None] < lengths[:, None]
    np.testing.assert_allclose(call(pool, x, mask=mask), expected, **CLOSE)
    gradient = np.asarray(jax.grad(lambda x: call(pool, x, lengths=lengths).sum())(x))
    assert not gradient[1, 2:].any()
    assert np.isfinite(gradient).all()


def test_pooling_of_float64_tokens_is_float64():
    with jax.enable_x64(True):
        pool = AdditivePooling(D, 8, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        x = draw(2, 5, D).astype(jnp.float64)
        scores = np.tanh(x @ pool.hidden.kernel[...]) @ pool.score.kernel[...]
        weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(call(pool, x), (weights * x).sum(axis=1), rtol=1e-13)
    with pytest.raises(ValueError, match=r"mask must be boolean, .* got float32"):
        as_users_have_it(modules.pooling).AdditivePooling(D, 8, rngs=nnx.Rngs(0))(
            draw(2, 5, D), mask=jnp.zeros((2, 5))
        )


def test_position_encodings_are_added_to_each_example():
    x = draw(2, 5, D)
    expected = x + sinusoid(jnp.arange(5), D, jnp.float32)[None]
    chex.assert_trees_all_close(modules.add_positions(x), expected, **CLOSE)
    chex.assert_trees_all_close(
        modules.add_positions(x, first=2)[:, 0], expected[:, 2] - x[:, 2] + x[:, 0], **CLOSE
    )
    with pytest.raises(ValueError, match=r"even width .* got 3"):
        modules.add_positions(jnp.ones((2, 5, 3)))


def test_errors_name_the_invalid_argument():
    with pytest.raises(ValueError, match="norm must be 'after' or 'before'; got 'middle'"):
        encoder(norm="middle")
    for made in (DotProduct(), modules.DistanceAware(N, rngs=nnx.Rngs(0))):
        with pytest.raises(TypeError, match=r"variant must be a function .* that is already made"):
            as_users_have_it(modules.layer_stack).LayerStack(
                L, D, N, variant=made, rngs=nnx.Rngs(0)
            )
    memory = SegmentMemory.empty(L, 4, 4, D)
    with pytest.raises(ValueError, match="mask must have the axes of the attention weights"):
        as_users_have_it(modules.layer_stack).Encoder(L, D, N, rngs=nnx.Rngs(0))(
            draw(4, 4, D), memory=memory, mask=jnp.ones((4, 8), bool)
        )
    with pytest.raises(ValueError, match=r"features \(10\) must be a multiple of num_heads \(4\)"):
        modules.TransformerLayer(10, 4, rngs=nnx.Rngs(0))


def test_remat_does_not_change_gradients():
    def loss(stack, x, encoded):
        cross = stack.project_cross(encoded)
        decoded = stack(x, cross_key_values=cross, dropout_rate=0.3, rngs=nnx.Rngs(0))
        return jnp.sin(decoded.values).sum()

    options = {"cross_attention": True, "attention_dropout": False, "hidden_dropout": False}
    inputs, results = (draw(2, 3, D), draw(2, 4, D, seed=1)), []
    for remat in (False, True):
        stack = modules.Decoder(1, D, N, remat=remat, rngs=nnx.Rngs(0), **options)
        gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(stack, *inputs)
        results.append(jax.tree.leaves(gradients))
    for one, other in zip(*results, strict=True):
        largest = max(1, np.abs(other).max())  # Rounding errors are relative to large terms.
        np.testing.assert_allclose(one / largest, other / largest, rtol=1e-6, atol=1e-6)


def test_remat_takes_random_keys_from_a_function_as_in_a_training_step():
    def encode(encoder, x):
        rngs, counts = nnx.Rngs(0), itertools.count()
        rngs.dropout = lambda: jax.random.fold_in(jax.random.key(1), next(counts))
        return encoder(x, dropout_rate=0.3, rngs=rngs).values

    options = {"attention_dropout": False, "hidden_dropout": False, "rngs": nnx.Rngs(0)}
    encoder = Encoder(1, D, N, **options)
    expected = jax.jit(encode)(encoder, draw(2, 3, D))
    encoder.remat = True
    np.testing.assert_allclose(jax.jit(encode)(encoder, draw(2, 3, D)), expected, **CLOSE)


def test_remat_stores_only_the_inputs_of_each_layer():
    def count_residuals(remat):
        graph, state = nnx.split(Encoder(L, D, N, remat=remat, rngs=nnx.Rngs(0)))

        def find_residuals(state, x):
            return jax.vjp(lambda state, x: nnx.merge(graph, state)(x).values, state, x)[1]

        residuals = jax.eval_shape(find_residuals, state, draw(2, 32, D))
        sizes = [sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (residuals, state)]
        return sizes[0] - sizes[1]

    assert count_residuals(remat=True) <= L * 2 * 32 * D < count_residuals(remat=False) / 5
