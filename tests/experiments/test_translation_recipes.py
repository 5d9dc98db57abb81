"""Recipes for translation: the settings of the paper, the programs of WMT 2014, and one step."""

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, models

from distattn_jax import sharding
from distattn_jax.data import Ragged, Table
from distattn_jax.tasks import PreparedData, make_trainer, prepare
from distattn_jax.train.options import describe_differences, options_to_dict, replace_options
from experiments.recipes import load_recipe
from tests.datasets.test_wmt14 import write_corpora

# Shaw et al. 2018, section 4.1: base and big.
SIZES = {
    "wmt14_de": (6, 8, 64, 512, 1024, 16, False),
    "wmt14_de_big": (6, 16, 64, 1024, 4096, 8, True),
}


def get_config(name):
    return load_recipe(name).get_config()


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_optimizer_are_those_of_the_paper(name):
    config = get_config(name)
    model, optimizer = config.model, config.optimizer
    sizes = (model.layers, model.heads, model.head_features, model.features, model.hidden_features)
    assert (*sizes, model.max_distance, model.shared_tables) == SIZES[name]
    assert config.steps == {"wmt14_de": 100_000, "wmt14_de_big": 300_000}[name]
    assert (optimizer.b1, optimizer.b2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    assert (optimizer.schedule, optimizer.warmup_steps) == ("inverse_square_root", 4000)
    (rate,) = optimizer.learning_rate
    assert rate == pytest.approx(model.features**-0.5 * 4000**-0.5)
    assert (config.label_smoothing, config.data.vocabulary) == (0.1, 32_768)


@pytest.mark.parametrize("ending", ["", "_big"])
def test_french_differs_from_german_in_the_data_and_in_the_dropout_of_the_big_model(ending):
    german, french = (options_to_dict(get_config(f"wmt14_{name}{ending}")) for name in ("de", "fr"))
    different = {line.partition(":")[0] for line in describe_differences(german, french)}
    expected = {"name", "data.dataset", "data.target"}
    assert different == expected | ({"model.dropout_rate"} if ending else set())


def test_a_training_step_of_wmt_lowers_without_its_memory():
    """Lower one of the six layers of the big model, which are all alike."""
    changes = {"methods": ("relative_position",), "model.layers": 1}
    config = replace_options(get_config("wmt14_de_big"), changes)
    vocabulary = {str(i): i for i in range(config.data.vocabulary)}
    column = Ragged(np.full(256, 5, np.int32), np.array([0, 256]))
    prepared = PreparedData(
        config,
        tokenizer=Tokenizer(models.WordLevel(vocabulary, unk_token="1")),
        tables={"train": Table({"source": column, "target": column})},
        about={},
        messages=(),
    )
    trainer = make_trainer(config, prepared, sharding.make_mesh(1, 1))
    state, _ = trainer._lower_steps(0).out_info
    table = state.params["decoder"]["embedding"]["embedding"]["embedding"]
    assert table.shape == (1, 32_768, config.model.features)


def test_a_tiny_model_of_the_big_recipe_takes_a_step_on_wmt(tmp_path):
    changes = {
        "methods": ("relative_position",),
        "data.manual_dir": str(write_corpora(tmp_path / "raw")),
        "data.directory": str(tmp_path / "prepared"),
        "data.vocabulary": 259,
        "data.batch_tokens": 64,
        "data.buckets": 1,
        **{"model.layers": 1, "model.heads": 2, "model.head_features": 4},
        **{"model.features": 8, "model.hidden_features": 8, "model.dropout_rate": (0.0,)},
    }
    config = replace_options(get_config("wmt14_de_big"), changes)
    prepared = prepare(config)
    assert "left out: 1 pairs of train with an empty side" in prepared.messages
    trainer = make_trainer(config, prepared, sharding.make_mesh(1, 1))
    training = trainer.initial_state()
    before = jax.device_get(training.state.params)
    with trainer._load_batches(0) as batches:
        state, sums = trainer.train_steps(
            training.state, training.sums, trainer.settings, *batches.take(1)
        )
    assert np.isfinite(sums.sums["train/loss"]).all()
    after = jax.device_get(state.params)
    changed = jax.tree.map(lambda one, two: (one != two).any(), before, after)
    assert all(jax.tree.leaves(changed))
