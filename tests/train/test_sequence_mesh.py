"""Devices that share the tokens of each text: `--mesh.sequence`."""

import json

import jax
import numpy as np
import pytest

from distattn_jax import sharding, tasks
from distattn_jax.tasks import measure_perplexity, prepare
from distattn_jax.train import MeshConfig
from distattn_jax.train.batching import BatchLoader, make_batches
from distattn_jax.train.options import parse_options
from experiments.commands import train as train_command
from experiments.recipes import long_language_model
from tests.train import tiny

WORDS = ("near", "words", "stay", "in", "local", "heads", "and", "far", "ones", "do", "not")


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Run of the recipe long_language_model on short texts, on four devices."""
    folder = tmp_path_factory.mktemp("long")
    draw = np.random.default_rng(0)
    (folder / "raw").mkdir()
    text = "\n\n".join(" ".join(draw.choice(WORDS, 30)) for _ in range(60))
    (folder / "raw" / "texts.txt").write_text(text)
    flags = (
        f"--data.manual-dir {folder}/raw --data.directory {folder}/prepared --data.vocabulary 300 "
        "--data.longest 64 --data.test-tokens 64 --data.batch-size 2 --steps 4 --model.layers 1 "
        "--model.heads 2 --model.head-features 8 --model.features 16 --model.hidden-features 16 "
        "--model.dtype float32 --model.window 24 --output.evaluate-every 4 "
        f"--output.tensorboard false --output.directory {folder}/runs --output.compiled none "
        "--mesh.data 1 --mesh.sequence 4"
    )
    config = parse_options(long_language_model.get_config(), flags.split(), program="train")
    train_command.train(config)
    return folder / "runs" / "long_language_model" / "distance_aware"


@pytest.mark.usefixtures("eight_devices")
def test_a_model_trained_on_shared_texts_has_the_same_perplexity_on_one_device(long_run):
    (member,) = json.loads((long_run / "result.json").read_text())["members"]
    found = measure_perplexity(long_run, (64,))[64]
    np.testing.assert_allclose(found.perplexity, member["test"]["perplexity"], rtol=1e-5)


@pytest.mark.usefixtures("eight_devices")
def test_all_heads_of_the_recipe_start_local(long_run):
    variant = tasks.load(long_run).model.decoder.layers[0].attention.variant
    assert (np.asarray(variant.weight[...]) < 0).all()


@pytest.mark.usefixtures("eight_devices")
def test_batches_arrive_sharded_along_their_tokens():
    task = tiny.make_task()
    mesh = sharding.make_mesh(1, 2, sequence=4)
    batches = make_batches(task, tiny.make_table((40, 13)), shuffle=False, token_devices=4)
    with BatchLoader(batches, mesh, task.layout, stop=1) as loader:
        stack, _, _ = loader.take(1)
    assert stack["text"].sharding.spec == jax.P(None, "data", "sequence")
    assert stack["label"].sharding.spec == jax.P(None, "data")


def test_lengths_are_rounded_up_to_a_multiple_of_the_devices():
    task = tiny.make_task()
    batches = make_batches(task, tiny.make_table((3, 11)), shuffle=False, token_devices=6)
    assert batches.buckets == (12,)
    assert make_batches(task, tiny.make_table((3, 11)), shuffle=False).buckets == (8, 11)


def test_truncated_texts_are_not_padded():
    task = tiny.make_task()
    longest = task.config.data.longest
    message = rf"--data.longest \({longest}\) must be a multiple .* \({longest - 1}, --mesh.seq"
    with pytest.raises(ValueError, match=message):
        make_batches(
            task, tiny.make_table((longest + 1,)), shuffle=False, token_devices=longest - 1
        )


@pytest.mark.usefixtures("eight_devices")
def test_a_mesh_that_is_too_large_is_refused():
    message = r"--mesh.data x --mesh.sequence x --mesh.model \(2 x 3 x 2\) must be at most .*, 8"
    with pytest.raises(ValueError, match=message):
        sharding.make_mesh(2, 2, sequence=3)
    assert sharding.make_mesh(0, 1, sequence=4).shape == {"data": 2, "sequence": 4, "model": 1}


def test_tasks_that_cannot_share_texts_are_refused_by_name():
    config = tasks.PretrainedClassificationConfig(mesh=MeshConfig(sequence=2))
    message = "must be 1 for the task pretrained_classification; got 2.*: text_classification, pair"
    with pytest.raises(ValueError, match=message):
        prepare(config)
