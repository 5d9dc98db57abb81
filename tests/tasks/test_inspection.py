"""Inspection of trained models: the parameters of heads, attention maps, attention by distance."""

import numpy as np
import pytest
from etils import epath

from distattn_jax import tasks
from distattn_jax.data import UNKNOWN_TOKEN
from distattn_jax.train import Run


@pytest.fixture(scope="module")
def result(finished_run):
    return Run(epath.Path(finished_run)).result


@pytest.fixture(scope="module")
def trained(finished_run, result):
    return tasks.load_models(finished_run, result)


def test_the_best_member_of_the_best_setting_is_shown(trained, result):
    scores = [member["validation"]["accuracy"] for member in result["members"]]
    assert trained.members == [0, 1]
    assert scores[trained.best] == max(scores)
    assert trained.reads_single_texts


def test_w_and_v_have_axes_over_members_layers_and_heads(trained):
    parameters = tasks.distance_parameters(trained.params)
    assert parameters.keys() == {"text"}
    weight, shape = parameters["text"]
    assert weight.shape == shape.shape == (2, 1, 2)
    assert np.ptp(weight, axis=0).max() > 0


def test_the_variants_of_the_layers_have_the_trained_parameters(trained):
    variants = tasks.layer_variants(trained.model)
    weight, shape = tasks.distance_parameters(trained.params)["text"]
    assert variants.keys() == {"text"}
    (variant,) = variants["text"]
    np.testing.assert_array_equal(variant.weight, weight[trained.best, 0])
    np.testing.assert_array_equal(variant.shape, shape[trained.best, 0])


def test_position_vectors_are_compared_after_their_mean_is_subtracted():
    random = np.random.default_rng(0)
    tables = {kind: random.normal(size=(2, 2, 2, 5, 3)) for kind in ("keys", "values")}  # M L N

    def make_layers(tables):
        variants = ({kind: table[:, i] for kind, table in tables.items()} for i in range(2))
        return {i: {"attention": {"variant": variant}} for i, variant in enumerate(variants)}

    params = {
        "encoder": {"layers": make_layers(tables)},
        "decoder": {"decoder": {"layers": make_layers({"keys": tables["values"]})}},
    }
    found = tasks.relation_tables(params, 1)
    kinds = {level: set(tables) for level, tables in found.items()}
    assert kinds == {"encoder": {"keys", "values"}, "decoder": {"keys"}}
    table = found["encoder"]["keys"]
    assert table.positions.tolist() == [-2, -1, 0, 1, 2]
    vectors = tables["keys"][1, 1, 0] - tables["keys"][1, 1, 0].mean(axis=0)  # layer 2, head 1
    assert table.norms[1, 0, 4] == pytest.approx(np.sqrt(vectors[4] @ vectors[4]))
    cosines = []
    for head in tables["keys"][1, 1]:
        a, b = head[0] - head.mean(axis=0), head[3] - head.mean(axis=0)
        cosines.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    assert table.similarities[1, 0, 3] == pytest.approx(np.mean(cosines))
    # A decoder sees no later tokens.
    assert found["decoder"]["keys"].positions.tolist() == [-2, -1, 0]
    near = tasks.relation_tables(params, 0, max_distance=1)
    assert near["encoder"]["keys"].positions.tolist() == [-1, 0, 1]
    assert near["decoder"]["keys"].norms.shape == (2, 2, 2)


def test_equal_position_vectors_have_no_direction():
    layers = {0: {"attention": {"variant": {"keys": np.ones((1, 1, 1, 4))}}}}  # k = 0
    table = tasks.relation_tables({"text": {"encoder": {"layers": layers}}}, 0)["text"]["keys"]
    assert table.norms.tolist() == [[[0]]]
    assert table.similarities.tolist() == [[[0]]]


def test_parameters_that_are_no_position_vectors_are_not_compared():
    biases = {
        "encoder": {"layers": {0: {"attention": {"variant": {"weight": np.ones((1, 2, 2))}}}}}
    }
    assert tasks.relation_tables(biases, 0) == {}


def test_encoder_and_decoder_have_their_own_heads_with_layers_ordered_by_number():
    def make_layers(*values):
        heads = ({"weight": np.full((1, 2), value), "shape": np.zeros((1, 2))} for value in values)
        return {"layers": {i: {"attention": {"variant": head}} for i, head in enumerate(heads)}}

    params = {"encoder": make_layers(*range(11)), "decoder": {"decoder": make_layers(4.0)}}
    found = {level: w[0, :, 0] for level, (w, _) in tasks.distance_parameters(params).items()}
    assert found.keys() == {"encoder", "decoder"}
    np.testing.assert_array_equal(found["encoder"], np.arange(11))
    np.testing.assert_array_equal(found["decoder"], [4])


def test_every_token_of_a_sentence_attends_with_weights_that_sum_to_one(trained):
    attention = tasks.sentence_attention(trained, "a b never")
    assert attention.tokens == ["a", "b", UNKNOWN_TOKEN]
    assert attention.weights.shape == (1, 2, 3, 3)
    np.testing.assert_allclose(attention.weights.sum(axis=-1), 1, rtol=1e-5)
    weight, _ = tasks.distance_parameters(trained.params)["text"]
    np.testing.assert_array_equal(attention.distance_weight, weight[trained.best])


def test_a_sentence_without_tokens_is_refused(trained):
    with pytest.raises(ValueError, match="sentence must hold at least one token; got ' '"):
        tasks.sentence_attention(trained, " ")


def test_the_profile_is_the_mean_attention_at_each_distance(trained):
    table = tasks.read_split(trained.task, "test")
    profile = tasks.distance_profile(trained, table, texts=2, furthest=7)
    sums, uniform, queries = np.zeros((1, 2, 8)), np.zeros(8), 0
    columns = table.columns["text"]
    words = {i: word for word, i in trained.task.tokenizer.get_vocab().items()}
    for row in range(2):
        ids = columns.values[columns.offsets[row] : columns.offsets[row + 1]]
        weights = tasks.sentence_attention(trained, " ".join(words[i] for i in ids)).weights
        for query in range(len(ids)):
            for key in range(len(ids)):
                sums[..., abs(query - key)] += weights[..., query, key]
                uniform[abs(query - key)] += 1 / len(ids)
        queries += len(ids)
    np.testing.assert_allclose(profile.heads, sums / queries, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(profile.uniform, uniform / queries, rtol=1e-5)
