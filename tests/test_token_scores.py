"""Losses of tokens in chunks: equal to the loss of all logits, which never exist."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from distattn_jax import sharding, token_scores, train
from distattn_jax.data import train_word_level
from distattn_jax.tasks import LanguageModelConfig, LanguageModeling, LanguageModelingConfig
from distattn_jax.token_scores import score_tokens
from distattn_jax.train.members import list_members, stack_members
from distattn_jax.train.optimizer import make_schedule
from distattn_jax.train.state import abstract_state
from distattn_jax.train.step import make_count_step, make_train_step
from tests.programs import iterate_shapes

B, T, V, D, M = 4, 7, 50, 6, 2  # M models side by side
EXACT = {"rtol": 1e-6, "atol": 1e-6}
TOKENIZER = train_word_level([" ".join(f"w{i}" for i in range(V - 2))])  # a vocabulary of V
SMALL = LanguageModelConfig(
    layers=1, heads=1, head_features=4, features=4, hidden_features=4, dropout_rate=(0.0,)
)


@pytest.fixture(autouse=True)
def chunks(monkeypatch):
    """Let a chunk have three positions: seven positions need three chunks and two of padding."""
    monkeypatch.setattr(token_scores, "LARGEST_LOGITS", 0)
    monkeypatch.setattr(token_scores, "CHUNK_LOGITS", 4 * B * V * 3)


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


FEATURES, TABLES, COTANGENT = draw(B, T, D, seed=0), draw(M, V, D, seed=1), draw(B, T, seed=2)
LABELS = np.random.default_rng(3).integers(0, V, (B, T), dtype=np.int32)


def find_gradients(losses):
    """Return losses and other scores of M models, and the gradients of features and tables."""

    def find_total(features, table):
        loss, others = losses(features, table)
        return (COTANGENT * loss).sum(), (loss, others)

    gradient = jax.grad(find_total, (0, 1), has_aux=True)
    return jax.jit(jax.vmap(gradient, (None, 0)))(FEATURES, TABLES)


def test_chunks_equal_the_loss_of_all_logits_and_its_gradients():
    def in_chunks(features, table):
        scores = score_tokens(features, table, jnp.asarray(LABELS))
        return scores.loss(0.1), (scores.cross_entropy, scores.right)

    def at_once(features, table):
        logits, labels = jnp.einsum("btd,vd->btv", features, table), jnp.asarray(LABELS)
        loss = train.token_cross_entropy(logits, labels, smoothing=0.1)
        return loss, (train.token_cross_entropy(logits, labels), logits.argmax(-1) == labels)

    found, expected = (jax.tree.leaves(find_gradients(losses)) for losses in (in_chunks, at_once))
    for one, other in zip(found, expected, strict=True):
        largest = max(1.0, np.abs(np.float32(other)).max())
        np.testing.assert_allclose(one / largest, other / largest, **EXACT)


def test_the_gradient_of_the_table_is_not_rounded_to_16_bits():
    def find_total(table, features):
        return (COTANGENT * score_tokens(features, table, jnp.asarray(LABELS)).cross_entropy).sum()

    features, table = jnp.bfloat16(FEATURES), np.float32(jnp.bfloat16(TABLES[0]))
    found = jax.jit(jax.grad(find_total))(table, features)
    exponentials = np.exp(np.float64(features) @ np.float64(table).T)
    difference = exponentials / exponentials.sum(axis=-1, keepdims=True) - np.eye(V)[LABELS]
    expected = np.einsum("bt,btv,btd->vd", COTANGENT, difference, np.float64(features))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("eight_devices")
def test_each_device_computes_the_chunks_of_its_own_examples():
    def find_loss(features, table, labels):
        return score_tokens(features, table, labels).loss(0.1).mean()

    gradient = jax.value_and_grad(find_loss, (0, 1))
    expected = jax.jit(gradient)(FEATURES, TABLES[0], LABELS)
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    with jax.set_mesh(mesh):
        features, labels = jax.device_put((FEATURES, LABELS), NamedSharding(mesh, jax.P("data")))
        table = jax.device_put(TABLES[0], sharding.replicated(mesh))
        program = jax.jit(gradient).lower(features, table, labels).compile()
        found = program(features, table, labels)
    assert "all-reduce(" in program.as_text()  # the gradient of the table
    assert "all-gather(" not in program.as_text()
    assert found[1][0].sharding.spec[0] == "data"
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


def test_the_largest_array_of_a_step_of_training_or_evaluation_is_a_chunk_of_logits():
    config = LanguageModelingConfig(model=SMALL)
    task = LanguageModeling(config, tokenizer=TOKENIZER)
    tokens, lengths = np.zeros((B, T), np.int32), np.full(B, T, np.int32)
    batch = {"inputs": tokens, "inputs_length": lengths, "weight": np.ones(B, np.float32)}
    batch |= {"tokens": tokens, "tokens_length": lengths}
    training = abstract_state(task, sharding.make_mesh(1, 1))
    settings = stack_members(list_members(config))[1]
    step = make_train_step(task, make_schedule(config.optimizer, 10))
    programs = (
        jax.make_jaxpr(step)({}, training.state, training.sums, settings, batch),
        jax.make_jaxpr(make_count_step(task))(training.state.params, batch),
    )
    for program in programs:
        assert max(map(math.prod, iterate_shapes(program.jaxpr))) == B * 3 * V


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_each_device_computes_the_chunks_of_its_own_tokens(kind):
    """The gradients of the table are added once, after the last chunk."""

    features, labels = (np.concatenate([x, x], axis=1) for x in (FEATURES, LABELS))

    def find_loss(features, table, labels):
        return score_tokens(features, table, labels).loss(0.1).mean()

    gradient = jax.value_and_grad(find_loss, (0, 1))
    expected = jax.jit(gradient)(features, TABLES[0], labels)
    mesh = jax.make_mesh((2, 2, 2), ("data", "sequence", "model"), axis_types=(kind,) * 3)
    place = NamedSharding(mesh, jax.P("data", "sequence"))
    with jax.set_mesh(mesh):
        placed = jax.device_put((features, labels), place)
        arguments = placed[0], jax.device_put(TABLES[0], sharding.replicated(mesh)), placed[1]
        program = jax.jit(gradient).lower(*arguments).compile()
        found = program(*arguments)
    assert "all-gather(" not in program.as_text()
    assert found[1][0].sharding.spec[:2] == ("data", "sequence")
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)
