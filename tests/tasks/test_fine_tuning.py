"""Fine-tuning: initial parameters, losses of the guides, and configs that are refused."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from distattn_jax.data import DataError, Table
from distattn_jax.modules import MultiHeadAttention
from distattn_jax.tasks import (
    GuidingConfig,
    PretrainedClassificationConfig,
    PretrainedClassificationData,
    PretrainedModelConfig,
    prepare,
)
from distattn_jax.tasks.fine_tuning_data import describe_source, sample_rows
from distattn_jax.train.members import list_members, placeholder_setting
from distattn_jax.train.options import replace_options
from tests.train import pretrained, tiny


def make_config(method, **fields):
    fields = {"model": pretrained.MODEL, "optimizer": tiny.OPTIMIZER, **fields}
    return PretrainedClassificationConfig(methods=(method,), **fields)


@pytest.fixture
def make_task(pretrained_folder):
    def make(method, **arguments):
        return pretrained.make_task(pretrained_folder, make_config(method), **arguments)

    return make


def test_members_start_with_the_same_encoder_and_with_classifiers_of_their_own(pretrained_folder):
    task = pretrained.make_task(pretrained_folder, make_config("none", seeds=2))
    given = pretrained.encoder_parameters(pretrained_folder)
    params = tiny.make_state(task, given).state.params
    flat = nnx.traversals.flatten_mapping(params)
    assert flat.keys() - given.keys() == {("classes", "kernel")}
    for path, array in given.items():
        np.testing.assert_array_equal(flat[path], [array, array])
    first, second = flat["classes", "kernel"]
    assert jnp.abs(first - second).max() > 1e-3


def test_the_option_precision_sets_the_precision_of_attention(pretrained_folder):
    def find_precisions(task):
        model = nnx.eval_shape(
            lambda: task.make_model(placeholder_setting(task.config), rngs=nnx.Rngs(0))
        )
        layers = [x for _, x in nnx.iter_modules(model) if isinstance(x, MultiHeadAttention)]
        return {layer.precision for layer in layers}

    text, encoder = (
        dataclasses.replace(model, precision="BF16_BF16_F32")
        for model in (tiny.MODEL, pretrained.MODEL)
    )
    assert find_precisions(tiny.make_task(tiny.make_config(model=text))) == {"BF16_BF16_F32"}
    task = pretrained.make_task(pretrained_folder, make_config("none", model=encoder))
    assert find_precisions(task) == {"BF16_BF16_F32"}


def train_two_steps(folder, config):
    task = pretrained.make_task(folder, config)
    training = tiny.make_state(task, pretrained.encoder_parameters(folder))
    batches = [pretrained.make_batch([6, 3, 5], seed=seed) for seed in range(2)]
    state, sums = tiny.train(tiny.make_step(task), training, config, batches)
    return jax.tree.leaves(state.params), {name: np.asarray(v) for name, v in sums.sums.items()}


def test_a_guide_of_weight_0_has_no_effect_and_shares_a_program_with_other_weights(
    pretrained_folder,
):
    grid = make_config("ag", guiding=GuidingConfig(alpha=(0.0, 5.0), beta=(0.0,))).for_method("ag")
    guided, sums = train_two_steps(pretrained_folder, grid)
    unguided, plain = train_two_steps(pretrained_folder, make_config("none").for_method("none"))
    assert len(list_members(grid)) == 2
    for both, one in zip(guided, unguided, strict=True):
        np.testing.assert_allclose(both[0], one[0], rtol=1e-5, atol=1e-6)
    assert max(jnp.abs(both[1] - both[0]).max() for both in guided) > 1e-4
    np.testing.assert_allclose(sums["train/loss"][0], plain["train/loss"][0], rtol=1e-5)
    assert sums["loss/mdg"][0] > 0  # The loss is measured even if its weight is 0.
    assert plain.keys() == {name for name in sums if name not in ("loss/mdg", "loss/pdg")}


@pytest.mark.parametrize(
    ("method", "received", "maps"),
    [("none", False, False), ("ag", True, False), ("first", False, True)],
)
def test_attention_is_computed_only_if_a_guide_reads_it_and_only_in_training(
    make_task, method, received, maps
):
    task, batch = make_task(method), pretrained.make_batch([3, 6])
    setting = placeholder_setting(task.config)
    model = nnx.eval_shape(lambda: task.make_model(setting, rngs=nnx.Rngs(0)))
    in_training = nnx.eval_shape(
        lambda model, batch: task.apply_for_training(model, batch, setting, None), model, batch
    )
    assert (in_training.received is not None, in_training.weights is not None) == (received, maps)
    in_evaluation = nnx.eval_shape(task.apply, model, batch)
    assert in_evaluation.received is None
    assert in_evaluation.weights is None


@pytest.mark.parametrize(
    ("method", "constants", "columns"),
    [
        ("ag", set(), set()),
        ("pmi", {"pmi_row_of_token", "pmi_values"}, set()),
        ("word_similarity", {"word_vectors"}, {"vectors"}),
        ("dependency", set(), {"words", "heads"}),
    ],
)
def test_a_task_holds_only_the_constants_and_columns_of_its_guide(
    make_task, method, constants, columns
):
    every = dict.fromkeys(("pmi_row_of_token", "pmi_values", "word_vectors"), np.zeros((2, 2)))
    task = make_task(method, constants=every)
    assert task.constants.keys() == constants
    every = dict.fromkeys(("tokens", "words", "heads", "vectors", "label"), np.zeros(2))
    assert task.select_columns(Table(every)).columns.keys() == {"tokens", "label"} | columns


def test_a_smaller_share_of_the_training_set_is_part_of_every_larger_one():
    def rows(share, split="train", seed=0):
        return list(sample_rows(50, split, PretrainedClassificationData(share=share, seed=seed)))

    shares = [set(rows(share)) for share in (0.2, 0.4, 0.6, 1.0)]
    assert [len(share) for share in shares] == [10, 20, 30, 50]
    assert all(small < large for small, large in itertools.pairwise(shares))
    assert len(rows(0.2, "test")) == 50
    assert rows(0.2) != rows(0.2, seed=1)


def write_texts(folder):
    folder.mkdir()
    for split, count in {"train": 10, "validation": 3, "test": 3}.items():
        words = (pretrained.WORDS[5 + i % 8] for i in range(count))
        rows = [{"text": f"the {word}", "label": "ab"[i % 2]} for i, word in enumerate(words)]
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_prepared_data_hold_tables_constants_parameters_and_digests(pretrained_folder, tmp_path):
    write_texts(tmp_path / "raw")
    (tmp_path / "vectors.txt").write_text("good 1 0\nbad 0 1\n")
    config = PretrainedClassificationConfig(
        methods=("none", "pmi", "word_similarity"),
        model=PretrainedModelConfig(pretrained=str(pretrained_folder)),
        data=PretrainedClassificationData(
            dataset="text_files",
            directory=str(tmp_path / "prepared"),
            manual_dir=str(tmp_path / "raw"),
            longest=16,
            share=0.5,
            vectors=str(tmp_path / "vectors.txt"),
        ),
    )
    prepared = prepare(config)
    columns, tables = {"tokens", "types", "label"}, prepared.tables
    assert [len(tables[split]) for split in ("train", "validation", "test")] == [5, 3, 3]
    assert tables["train"].columns.keys() == columns | {"vectors"}
    assert tables["test"].columns.keys() == tables["validation"].columns.keys() == columns
    assert prepared.labels == ("a", "b")
    assert prepared.constants.keys() == {"pmi_row_of_token", "pmi_values", "word_vectors"}
    given = pretrained.encoder_parameters(pretrained_folder)
    assert prepared.initial_parameters.keys() == given.keys()
    digests = prepared.about["digests"]
    assert digests.keys() == {"raw files of the data", "pre-trained weights"}
    assert all(digests.values())


def test_the_digest_of_a_pretrained_model_depends_on_its_weights(tmp_path):
    pretrained.write_model(tmp_path / "model")
    before = describe_source(str(tmp_path / "model"), pretrained.CONFIG)
    weights = tmp_path / "model" / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    after = describe_source(str(tmp_path / "model"), pretrained.CONFIG)
    assert before["digest"] != after["digest"]
    assert {**before, "digest": ""} == {**after, "digest": ""}


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("model.pretrained", "", DataError, "pretrained_classification needs --model.pretrained"),
        ("methods", ("dependency",), DataError, "the guide dependency needs --data.parses"),
        ("methods", ("word_similarity",), DataError, "word_similarity needs --data.vectors"),
        ("data.longest", 25, ValueError, "--data.longest must be at most 24.*got 25"),
        ("guiding.layers", (2,), ValueError, "--guiding.layers must be from 1 to 1"),
        ("guiding.layer", (1, 2), ValueError, "--guiding.layer must be from 1 to 1"),
        ("mesh.model", 4, ValueError, "--mesh.model must divide 2"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_before_the_data_are_read(
    pretrained_folder, option, value, error, message
):
    config = PretrainedClassificationConfig(
        methods=("ag",),
        model=PretrainedModelConfig(pretrained=str(pretrained_folder)),
        data=PretrainedClassificationData(longest=16, manual_dir="missing"),
    )
    with pytest.raises(error, match=message):
        prepare(replace_options(config, {option: value}))
