"""Settings that runs take from a search, and searches that they reject."""

import dataclasses
import json
import re

import pytest

from distattn_jax.tasks.search import apply_search
from distattn_jax.train import RunError
from distattn_jax.train.members import list_members
from distattn_jax.train.options import parse_options, replace_options
from distattn_jax.train.run import config_to_json
from experiments.commands.search import main as search_command
from experiments.papers.attention_guiding.settings import search_config
from experiments.papers.da_transformer.settings import search_config as da_search_config
from experiments.papers.page import PAPERS
from experiments.papers.when_to_use.settings import EXPERIMENTS
from experiments.recipes import load_recipe

RAW, WEIGHTS = "raw files of the data", "pre-trained weights"
ABOUT = {"digests": {RAW: "a", WEIGHTS: "b"}}
MODEL = {"model.pretrained": "here/tiny"}


def load_config(recipe):
    return load_recipe(recipe).get_config()


def write_search(folder, search, *, best):
    """Write the results of a search. Models score one point for each option equal to `best`."""

    def score(setting):
        return float(sum(setting[name] == value for name, value in best.items()))

    for method in search.methods:
        one = search.for_method(method)
        members = [
            {"setting": setting, "seed": seed, "validation": {"accuracy": score(setting)}}
            for seed, setting in list_members(one)
        ]
        run = folder / method
        run.mkdir()
        result = {"method": method, "criterion": "accuracy", "parameters": 1, "members": members}
        for name, content in (("config", config_to_json(one)), ("result", result), ("data", ABOUT)):
            (run / f"{name}.json").write_text(json.dumps(content))
    return str(folder)


@pytest.fixture
def guided(tmp_path):
    """A recipe whose search had another learning rate than the recipe."""
    changes = {**MODEL, "methods": ("none", "ag")}
    search = replace_options(
        search_config(load_config("multinli")), {**changes, "optimizer.learning_rate": (3e-5,)}
    )
    folder = write_search(tmp_path, search, best={"alpha": 0.001, "beta": 0.1})
    return replace_options(load_config("multinli"), {**changes, "search": folder})


def test_a_run_uses_the_best_setting_except_for_explicit_options(guided):
    found = apply_search(guided.for_method("ag"), ABOUT)
    assert (found.guiding.alpha, found.guiding.beta) == ((0.001,), (0.1,))
    assert found.optimizer.learning_rate == (3e-5,)  # All settings of the search had it.
    given = replace_options(guided.for_method("ag"), {"optimizer.learning_rate": (1e-4, 1e-3)})
    found = apply_search(given, ABOUT, {"optimizer.learning_rate", "seeds"})
    assert found.optimizer.learning_rate == (1e-4, 1e-3)
    assert found.guiding.alpha == (0.001,)


def test_searched_options_must_not_be_set_explicitly(guided):
    given = replace_options(guided, {"guiding.alpha": (0.5,)})
    message = r"alpha must not be given beside --search.*ag tried 0.1, 0.01, .*; got \[0.5\]"
    with pytest.raises(RunError, match=message):
        apply_search(given.for_method("ag"), ABOUT, {"guiding.alpha"})
    apply_search(given.for_method("none"), ABOUT, {"guiding.alpha"})  # It reads no alpha.


def test_a_sweep_over_layers_is_not_a_search(guided, tmp_path):
    sweep = replace_options(guided, {"guiding.layer": (1, 2), "methods": ("ag",)})
    (tmp_path / "sweep").mkdir()
    folder = write_search(tmp_path / "sweep", sweep, best={"layer": 1})
    with pytest.raises(RunError, match=r"--search must be of weights, not of layers; .*ag guides"):
        apply_search(replace_options(guided, {"search": folder}).for_method("ag"), ABOUT)
    assert apply_search(sweep.for_method("ag"), ABOUT, {"guiding.layer"}).guiding.layer == (1, 2)
    assert sweep.for_method("none").guiding.layer == (-1,)


def test_options_that_a_guide_does_not_read_may_differ_from_its_search(guided):
    given = {"data.parses": "parses", "guiding.pmi_tokens": 7}
    found = apply_search(replace_options(guided, given).for_method("ag"), ABOUT)
    assert found.guiding.alpha == (0.001,)


@pytest.mark.parametrize(
    ("changes", "about", "message"),
    [
        ({"data.dataset": "mednli"}, {}, "data.dataset: multinli before, mednli now"),
        ({"model.pretrained": "here/large"}, {}, "model.pretrained: tiny before, large now"),
        ({"model.dtype": "bfloat16"}, {}, "model.dtype: float32 before, bfloat16 now"),
        ({"data.longest": 64}, {}, "data.longest: 256 before, 64 now"),
        ({"guiding.scaling": "sum"}, {}, "guiding.scaling: mean before, sum now"),
        ({}, {RAW: "c"}, "raw files of the data: a before, c now"),
        ({}, {WEIGHTS: "d"}, "pre-trained weights: b before, d now"),
    ],
)
def test_a_search_with_other_data_or_models_is_rejected(guided, changes, about, message):
    config, data = replace_options(guided, changes), {"digests": ABOUT["digests"] | about}
    expected = rf"--search must be of the same task, data and model.*\n  {re.escape(message)}$"
    with pytest.raises(RunError, match=expected):
        apply_search(config.for_method("ag"), data)


def test_epochs_seeds_devices_and_memory_options_may_differ(guided):
    changes = {"model.pretrained": "there/tiny", "epochs": 1.0, "seeds": 20, "mesh.model": 2}
    changes |= {"optimizer.accumulate": 4, "model.remat": True, "guiding.layers": (1,)}
    changes["data.share"] = 0.2
    found = apply_search(replace_options(guided, changes).for_method("ag"), {})
    assert found.guiding.alpha == (0.001,)


def test_ratings_use_the_search_of_the_classes_of_the_same_reviews(tmp_path):
    search = da_search_config(load_config("amazon"))
    search = dataclasses.replace(search, methods=("distance_aware",))
    folder = write_search(tmp_path, search, best={"dropout_rate": 0.35})
    config = dataclasses.replace(load_config("amazon_rating"), search=folder)
    for method in ("distance_aware", "distance_aware_clip"):
        assert apply_search(config.for_method(method), {}).model.dropout_rate == (0.35,)


def test_forms_of_two_sided_attention_use_its_search_for_the_options_that_they_read(tmp_path):
    search = da_search_config(load_config("amazon"))
    search = dataclasses.replace(search, methods=("two_sided",))
    best = {"dropout_rate": 0.35, "initial_weight": 0.5}
    folder = write_search(tmp_path, search, best=best)
    config = dataclasses.replace(load_config("amazon"), search=folder)
    for method, weight in (("two_sided_tied", 0.5), ("two_sided_no_factor", 0.1)):
        model = apply_search(config.for_method(method), {}).model
        assert (model.dropout_rate, model.initial_weight) == ((0.35,), (weight,))


def test_all_methods_of_language_models_try_the_same_settings():
    lines = (PAPERS / "when_to_use" / "details.md").read_text().splitlines()
    (command,) = [line for line in lines if "--name imdb_language_model " in line]
    recipe, *options = command.partition(" train ")[2].split()
    config = parse_options(load_config(recipe), options, program="train")
    tried = [
        [(member.setting["learning_rate"], member.setting["dropout_rate"]) for member in members]
        for members in (list_members(config.for_method(method)) for method in config.methods)
    ]
    assert config.methods == EXPERIMENTS["imdb_language_model"]
    assert all(settings == tried[0] for settings in tried)
    assert len(tried[0]) == 10  # 2 settings with 5 seeds
    assert set(tried[0]) == {(1e-3, 0.0), (2e-3, 0.0)}


def test_a_search_of_language_models_says_how_to_train_a_grid():
    with pytest.raises(RunError, match=r"`train language_model --optimizer.learning-rate 1e-3 2e"):
        search_command(["language_model"])
