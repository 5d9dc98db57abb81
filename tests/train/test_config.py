"""Recipes are frozen, hashable and valid; a bad value is named when it is given."""

import dataclasses
import re

import pytest

from distattn_jax.train import (
    Config,
    DataConfig,
    GuidingConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    OutputConfig,
)
from distattn_jax.train.config import lacking
from distattn_jax.train.flags import from_dict, leaves, to_dict
from distattn_jax.train.tasks import TASKS
from experiments.recipes import recipes

RECIPES = dict(recipes())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_frozen_value(name):
    get_config = RECIPES[name].get_config
    config = get_config()
    assert config == get_config()
    assert hash(config) == hash(get_config())
    for part in (config, config.data, config.model, config.optimizer, config.mesh, config.output):
        first = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, first, getattr(part, first))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_run_and_found_again(name):
    config = RECIPES[name].get_config()
    assert from_dict(Config(), to_dict(config)) == config  # made anew: all of it is checked
    assert config.name == name  # a report looks for the recipe by the name of its runs
    assert config.task in TASKS


def test_every_field_has_an_explanation():
    for name, field, _ in leaves(Config()):
        assert field.metadata["explanation"], name


def test_the_run_of_one_method_differs_in_nothing_else():
    config = Config(methods=("vanilla", "adapted"), seeds=2)
    assert config.of("adapted") == Config(methods=("adapted",), seeds=2)


def test_what_a_method_lacks_is_one_value_in_its_run():
    several = Config(
        guiding=GuidingConfig(alpha=(1.0, 2.0), beta=(3.0, 4.0)),
        optimizer=OptimizerConfig(distance_rate=(1.0, 5.0)),
    )
    mdg = several.of("mdg")
    assert (mdg.guiding.alpha, mdg.guiding.beta) == ((1.0, 2.0), (3.0,))
    assert mdg.optimizer.distance_rate == (1.0,)
    assert several.of("distance_aware").optimizer.distance_rate == (1.0, 5.0)
    assert lacking("ag") == (
        *("guiding.gamma", "model.initial_weight", "model.initial_shape"),
        "optimizer.distance_rate",
    )
    guiding = ("guiding.alpha", "guiding.beta", "guiding.gamma", "guiding.layer")
    assert lacking("distance_aware") == guiding == lacking("none")[:4]


@pytest.mark.parametrize(
    ("made", "fields", "wanted"),
    [
        (DataConfig, {"batch_size": 0}, "at least 1"),
        (DataConfig, {"longest": 0}, "at least 1"),
        (DataConfig, {"buckets": 0}, "at least 1"),
        (DataConfig, {"min_count": 0}, "at least 1"),
        (DataConfig, {"vocabulary": 2}, "at least 3"),
        (DataConfig, {"tokenizer": "words"}, "one of word_level, word_piece, byte_level_bpe"),
        (ModelConfig, {"layers": 0}, "at least 1"),
        (ModelConfig, {"heads": 0}, "at least 1"),
        (ModelConfig, {"features": 7}, "even (sines and cosines)"),
        (ModelConfig, {"pooling_features": 0}, "at least 1"),
        (ModelConfig, {"max_distance": -1}, "at least 0"),
        (ModelConfig, {"dropout_rate": (0.0, -0.1)}, "at least 0"),
        (ModelConfig, {"dropout_rate": (0.5, 1.0)}, "below 1"),
        (ModelConfig, {"initial_weight": ()}, "at least one value"),
        (ModelConfig, {"dtype": "float16"}, "one of float32, bfloat16"),
        (OptimizerConfig, {"name": "sgd"}, "one of adam, adamw"),
        (OptimizerConfig, {"learning_rate": (1e-3, -1e-3)}, "at least 0"),
        (OptimizerConfig, {"learning_rate": (float("nan"),)}, "at least 0"),
        (OptimizerConfig, {"distance_rate": ()}, "at least one value"),
        (OptimizerConfig, {"schedule": "step"}, "one of constant, linear, cosine, inverse_square"),
        (OptimizerConfig, {"warmup_steps": -1}, "at least 0"),
        (OptimizerConfig, {"b1": 1.0}, "in [0, 1)"),
        (OptimizerConfig, {"b2": -0.1}, "in [0, 1)"),
        (OptimizerConfig, {"epsilon": 0.0}, "above 0"),
        (OptimizerConfig, {"clip_norm": -1.0}, "at least 0"),
        (OptimizerConfig, {"accumulate": 0}, "at least 1"),
        (OptimizerConfig, {"weight_decay": 0.1}, "0 unless name is adamw"),
        (MeshConfig, {"data": -1}, "at least 0"),
        (MeshConfig, {"model": 0}, "at least 1"),
        (OutputConfig, {"log_every": 0}, "at least 1"),
        (OutputConfig, {"keep": 0}, "at least 1"),
        (OutputConfig, {"evaluate_every": -1}, "at least 0"),
        (Config, {"methods": ()}, "at least one name"),
        (Config, {"methods": ("vanilla", "best")}, "one of no_positions, vanilla, "),
        (Config, {"seeds": 0}, "at least 1"),
        (Config, {"seed": -1}, "at least 0"),
        (Config, {"epochs": 0.0}, "above 0"),
    ],
    ids=lambda given: next(iter(given)) if isinstance(given, dict) else None,
)
def test_a_bad_value_is_named_with_what_was_wanted(made, fields, wanted):
    ((name, value),) = fields.items()
    with pytest.raises(ValueError, match=rf"^{name} must be {re.escape(wanted)}") as error:
        made(**fields)
    got = value[-1] if name == "methods" and value else value
    assert str(error.value).endswith(f"; got {got!r}.")


@pytest.mark.parametrize(
    "given",
    [
        {"coordinator": "host:1"},
        {"coordinator": "host:1", "processes": 2},
        {"processes": 2, "process": 0},
        {"process": 0},
    ],
)
def test_a_process_needs_to_know_the_others(given):
    with pytest.raises(ValueError, match="coordinator, processes and process must be given toge"):
        MeshConfig(**given)
    MeshConfig(coordinator="host:1", processes=2, process=0)


def test_parts_of_a_batch_are_equal():
    with pytest.raises(
        ValueError, match=r"data.batch_size \(6\) must be a multiple of optimizer.accumulate \(4\)"
    ):
        Config(data=DataConfig(batch_size=6), optimizer=OptimizerConfig(accumulate=4))
    Config(data=DataConfig(batch_size=8), optimizer=OptimizerConfig(accumulate=4))


def test_devices_have_equally_many_heads():
    with pytest.raises(ValueError, match=r"model.heads \(6\) must be a multiple of mesh.model"):
        Config(model=ModelConfig(heads=6), mesh=MeshConfig(model=4))
    Config(model=ModelConfig(heads=8), mesh=MeshConfig(model=4))
