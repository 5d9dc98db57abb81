"""Pre-trained models as tasks: how they begin, what their guides do, and what is refused."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.data import DataError, Ragged, Table, load_pretrained_tokenizer
from distattn_jax.models.pretrained import read_parameters
from distattn_jax.train import Config, DataConfig, GuidingConfig, MeshConfig, ModelConfig, prepare
from distattn_jax.train.fine_tuning import share_of
from distattn_jax.train.guides import Aim
from distattn_jax.train.members import Setting, members_of
from distattn_jax.train.pretrained_classification import PretrainedClassification
from distattn_jax.train.pretrained_ranking import PretrainedRanking, Ranked
from distattn_jax.train.state import graph_of
from tests.train import pretrained, tiny

LABELS = ("a", "b", "c")
MODEL = ModelConfig(pretrained="tiny", dropout_rate=(0.0,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    pretrained.write_model(folder)
    return folder


@pytest.fixture(scope="module")
def make(folder):
    """Tasks without data, but with the parameters of the folder."""
    given = read_parameters(folder, pretrained.CONFIG)

    def make(method, kind=PretrainedClassification, **arguments):
        return kind(
            method,
            MODEL,
            labels=LABELS,
            tokenizer=load_pretrained_tokenizer(folder),
            tables={},
            pretrained=pretrained.CONFIG,
            **{"parameters": given, **arguments},
        )

    return make


def config_of(*methods, seeds=1, **guiding):
    return tiny.config_of(
        model=MODEL, methods=methods, seeds=seeds, guiding=GuidingConfig(**guiding)
    )


def test_members_begin_with_the_same_encoder_and_heads_of_their_own(make):
    config, task = config_of("none", seeds=2), make("none")
    params = tiny.birth_of(config, task)().state.params
    flat = nnx.traversals.flatten_mapping(params)
    given = task.initial()
    assert flat.keys() - given.keys() == {("classes", "kernel")}
    for path, array in given.items():
        np.testing.assert_array_equal(flat[path], [array, array])
    first, second = flat["classes", "kernel"]
    assert jnp.abs(first - second).max() > 1e-3
    assert make("none", parameters=None).initial() == {}  # a checkpoint has them


def after_two_steps(config, task):
    batches = [pretrained.batch_of([6, 3, 5], seed=seed) for seed in range(2)]
    training = tiny.birth_of(config, task)()
    state, tally = tiny.trained(tiny.step_of(config, task), training, config, batches)
    return jax.tree.leaves(state.params), {name: np.asarray(v) for name, v in tally.sums.items()}


def test_a_grid_of_weights_is_one_program_and_a_weight_of_0_is_no_guide(make):
    grid = config_of("ag", alpha=(0.0, 5.0), beta=(0.0,)).of("ag")
    guided, sums = after_two_steps(grid, make("ag"))
    alone, plain = after_two_steps(config_of("none").of("none"), make("none"))
    assert len(members_of(grid)) == 2
    for both, one in zip(guided, alone, strict=True):
        np.testing.assert_allclose(both[0], one[0], rtol=1e-5, atol=1e-6)
    assert max(jnp.abs(both[1] - both[0]).max() for both in guided) > 1e-4
    np.testing.assert_allclose(sums["train/loss"][0], plain["train/loss"][0], rtol=1e-5)
    assert sums["loss/mdg"][0] > 0  # measured, whatever its weight
    assert plain.keys() == {name for name in sums if name not in ("loss/mdg", "loss/pdg")}


@pytest.mark.parametrize(
    ("method", "received", "maps"),
    [("none", False, False), ("ag", True, False), ("first", False, True)],
)
def test_only_what_a_guide_looks_at_is_made_and_only_to_learn(make, method, received, maps):
    task, batch = make(method), pretrained.batch_of([3, 6])
    setting = Setting(*(jnp.zeros(()) for _ in Setting._fields))
    model = nnx.eval_shape(lambda: task.model(setting, rngs=nnx.Rngs(0)))
    learning = nnx.eval_shape(task.outputs_to_learn, model, batch)
    assert (learning.received is not None, learning.weights is not None) == (received, maps)
    measuring = nnx.eval_shape(task.outputs, model, batch)
    assert measuring.received is None
    assert measuring.weights is None


def test_constants_are_those_of_the_guide(make):
    given = {
        "pmi_row_of_token": np.zeros(3, np.int32),
        "pmi_values": np.zeros((1, 1), np.float32),
        "word_vectors": np.zeros((2, 2), np.float32),
    }
    assert make("ag", constants=given).constants == {}
    assert set(make("pmi", constants=given).constants) == {"pmi_row_of_token", "pmi_values"}
    assert set(make("word_similarity", constants=given).constants) == {"word_vectors"}


def ranking_batch():
    """Two claims, of three candidates and of one, and a row that only fills up."""
    draw = np.random.default_rng(0)
    return {
        "tokens": jnp.asarray(draw.integers(5, 17, (3, 3, 6)), jnp.int32),
        "tokens_words": jnp.asarray([[6, 4, 5], [3, 0, 0], [0, 0, 0]]),
        "tokens_length": jnp.asarray([3, 1, 0]),
        "types": jnp.zeros((3, 3, 6), jnp.int32),
        "types_words": jnp.zeros((3, 3), jnp.int32),
        "types_length": jnp.zeros(3, jnp.int32),
        "relevant": jnp.asarray([[0, 1, 0], [1, 0, 0], [0, 0, 0]]),
        "relevant_length": jnp.asarray([3, 1, 0]),
        "weight": jnp.asarray([1.0, 1.0, 0.0]),
    }


def test_the_loss_of_a_claim_is_the_mean_over_its_candidates(make):
    task, batch = make("none", PretrainedRanking), ranking_batch()
    scores = jnp.log(jnp.asarray([[1.0, 3.0, 1.0], [4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]))
    # sigmoid(log x) = x / (1 + x): right with 3/4, wrong ones with 1/2 each; right with 4/5
    expected = [(np.log(4 / 3) + 2 * np.log(2)) / 3, np.log(5 / 4), 0]
    np.testing.assert_allclose(task.loss(Ranked(scores), batch), expected, rtol=1e-6)
    counts = task.counts(Ranked(scores), batch)
    metrics = task.metrics(jax.device_get(counts))
    assert metrics == dict.fromkeys(("mrr", *(f"recall@{k}" for k in (1, 3, 5, 20))), 1.0)
    worse = task.counts(Ranked(-scores), batch)
    assert task.metrics(jax.device_get(worse))["mrr"] == pytest.approx((1 / 3 + 1) / 2)


def test_the_baseline_of_a_ranking_is_bm25(make):
    # The right one is second; of two equals, the second given; alone.
    offsets = np.asarray([0, 3, 5, 6])
    scores = np.asarray([0.25, 0.75, 0.5, 1.5, 1.5, 0], np.float32)
    relevant = Ragged(np.asarray([0, 0, 1, 0, 1, 1], np.int32), offsets)
    task = make("none", PretrainedRanking)
    task.tables = {
        "train": Table({"relevant": relevant}),
        "test": Table({"relevant": relevant, "bm25": Ragged(scores, offsets)}),
    }
    recalls = {"recall@1": 1 / 3, "recall@3": 1, "recall@5": 1, "recall@20": 1}
    assert task.baseline("test") == pytest.approx({"mrr": (1 / 2 + 1 / 2 + 1) / 3, **recalls})
    assert task.baseline("train") == {}


def _reordered(column, order):
    return column[:, order] if column.ndim > 1 else column


def test_every_candidate_is_read_by_itself_and_guided_by_itself(make):
    task, batch = make("first", PretrainedRanking, aim=Aim()), ranking_batch()
    model = nnx.merge(graph_of(task), tiny.birth_of(config_of("first"), task)().best.params)
    model = jax.tree.map(lambda leaf: leaf[0], model)
    look = jax.jit(task.outputs_to_learn)
    outputs = look(model, batch)
    assert outputs.scores.shape == (3, 3)
    order = jnp.asarray([1, 2, 0])
    again = look(model, {name: _reordered(column, order) for name, column in batch.items()})
    np.testing.assert_allclose(again.scores, outputs.scores[:, order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again.weights[0], outputs.weights[1], rtol=1e-5, atol=1e-6)
    ((_, loss),) = task.losses.items()
    # The first half of the heads, all real rows: the mean squared distance from (1, 0, 0, ...).
    errors = []
    for place, length in enumerate((6, 4, 5)):
        maps = np.asarray(outputs.weights[place, :, :1, :length, :length])
        errors.append(np.square(maps - (np.arange(length) == 0)).sum(-1).mean())
    found = loss(outputs, batch)
    np.testing.assert_allclose(found[0], np.mean(errors), rtol=1e-5)
    assert found[2] == 0


def test_a_smaller_share_is_a_part_of_every_larger_one():
    shares = [set(share_of(50, "train", DataConfig(share=share))) for share in (0.2, 0.4, 0.6, 1.0)]
    assert [len(share) for share in shares] == [10, 20, 30, 50]
    assert all(small < large for small, large in itertools.pairwise(shares))
    assert len(share_of(50, "test", DataConfig(share=0.2))) == 50
    assert share_of(50, "train", DataConfig(share=0.2)) != share_of(
        50, "train", DataConfig(share=0.2, seed=1)
    )


PLAIN = {"task": "nearest", "methods": ("vanilla",), "model": ModelConfig()}


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"methods": ("ag", "vanilla")}, ValueError, "methods must be some of none, ag.*'vanilla'"),
        ({"model": ModelConfig()}, DataError, "the task multinli needs --model.pretrained"),
        ({"methods": ("dependency",)}, DataError, "the guide dependency needs --data.parses"),
        ({"methods": ("word_similarity",)}, DataError, "word_similarity needs --data.vectors"),
        ({"data": DataConfig(longest=25)}, ValueError, "data.longest must be at most 24.*got 25"),
        ({"guiding": GuidingConfig(layers=(1,))}, ValueError, "guiding.layers must be below 1"),
        ({"guiding": GuidingConfig(layer=(0, 1))}, ValueError, "guiding.layer must be below 1"),
        ({"mesh": MeshConfig(model=4)}, ValueError, "mesh.model must divide 2"),
        ({"task": "nearest"}, ValueError, "methods must be some of no_positions.*got 'ag'"),
        (
            {"task": "nearest", "methods": ("vanilla",)},
            ValueError,
            "model.pretrained must not be given for the task nearest, .*; got '.*tiny",
        ),
        ({**PLAIN, "guiding": GuidingConfig(alpha=(0.5,))}, ValueError, r"guiding.alpha .*\[0.5\]"),
        (
            {**PLAIN, "model": ModelConfig(remat=True)},
            ValueError,
            "model.remat must not .* nearest",
        ),
        ({**PLAIN, "data": DataConfig(parses="a")}, ValueError, "data.parses must not be given"),
        ({**PLAIN, "data": DataConfig(sentences=9)}, ValueError, "data.sentences must not be"),
        ({**PLAIN, "task": "mind", "data": DataConfig(longest=9)}, ValueError, "data.longest must"),
        ({"data": DataConfig(min_count=2)}, ValueError, "data.min_count must not .* multinli"),
        ({"data": DataConfig(vocabulary=99)}, ValueError, "data.vocabulary must not be given"),
        (
            {"model": lambda folder: ModelConfig(pretrained=str(folder), layers=3)},
            ValueError,
            "model.layers must be 1, as in .*tiny.*, or not be given; got 3",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused_before_the_data_are_read(folder, fields, error, said):
    config = Config(
        task="multinli",
        methods=("ag",),
        model=ModelConfig(pretrained=str(folder)),
        data=DataConfig(longest=16),
    )
    made = {name: field(folder) if callable(field) else field for name, field in fields.items()}
    with pytest.raises(error, match=said):
        prepare(dataclasses.replace(config, **made))


def test_the_sizes_of_the_pretrained_model_may_be_given(folder):
    sizes = {"heads": 2, "head_features": 4, "features": 8, "hidden_features": 8}
    model = ModelConfig(pretrained=str(folder), **sizes, embedding_features=8)
    config = Config(task="multinli", methods=("ag",), model=model, data=DataConfig(longest=16))
    PretrainedClassification.check(config)  # as a run keeps them
