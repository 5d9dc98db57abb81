"""Recipes of the DA-Transformer paper with small sizes, on artificial rows.

The recipe sst has the task of ag. The tests of its data set read its files.
"""

import dataclasses
import io
import math
import re

import jax
import numpy as np
import pytest

from distattn_jax import sharding
from distattn_jax.tasks import load, make_trainer, prepare
from distattn_jax.tasks.search import apply_search
from distattn_jax.train import MeshConfig, OutputConfig, RunError
from distattn_jax.train.evaluation import list_programs
from distattn_jax.train.run import Run, experiment_folder
from experiments.commands.predict import predict
from experiments.commands.train import train
from experiments.papers import stored_results
from experiments.papers.collecting import collect_results
from experiments.papers.da_transformer.report import REPORT
from experiments.papers.da_transformer.settings import METRICS, search_config
from experiments.papers.results import load_results
from experiments.recipes import load_recipe
from tests.experiments.raw_data import WRITERS
from tests.train import tiny

LEVELS = {"amazon_rating": {"words", "sentences"}, "mind": {"titles", "user"}}
# Texts, one per line, and a pattern of the predictions.
PREDICTIONS = {
    "snli": ("good team\tbad team\nthe price\tis fair\n", r"(not_)?entailment\t0\.\d{4}"),
    "amazon_rating": ("good. bad price. fine\nawful\n", r"-?\d\.\d\d"),
}


@pytest.fixture(autouse=True)
def _no_progress(capsys):
    yield
    capsys.readouterr()


def shrink(recipe, folder):
    """Return the configuration of a recipe with small sizes, two seeds and a few steps."""
    raw = folder / "raw"
    raw.mkdir()
    WRITERS[recipe](raw)
    config = load_recipe(recipe).get_config()
    data = {"directory": str(folder / "prepared"), "manual_dir": str(raw)}
    return dataclasses.replace(
        config,
        methods=("distance_aware",),
        seeds=2,
        epochs=1.0,
        data=dataclasses.replace(config.data, batch_size=8, buckets=1, min_count=1, **data),
        model=tiny.MODEL,
        mesh=MeshConfig(data=1),
        output=OutputConfig(directory=str(folder / "runs"), tensorboard=False),
    )


def check_metrics(recipe, members, splits):
    for member in members:
        for split in splits:
            assert set(member[split]) == {*METRICS[recipe], "loss"}
            assert all(math.isfinite(value) for value in member[split].values())


@pytest.mark.parametrize("recipe", ["snli", "amazon_rating", "mind"])
def test_a_recipe_trains_and_measures_the_metrics_of_the_paper(recipe, tmp_path):
    config = shrink(recipe, tmp_path)
    train(config)
    run = Run(experiment_folder(config) / "distance_aware")
    assert [member["seed"] for member in run.result["members"]] == [0, 1]
    check_metrics(recipe, run.result["members"], ("validation", "test"))
    if recipe in LEVELS:
        content = collect_results(run.path.parent)
        assert content["experiment"] == recipe
        assert content["runs"]["distance_aware"]["result"] == stored_results.round_numbers(
            run.result
        )
        assert set(content["heads"]) == LEVELS[recipe]
        for heads in content["heads"].values():
            assert [len(seed[0]) for seed in heads["weight"]] == [2, 2]  # two seeds, two heads
    if recipe == "mind":
        stored_results.write_results(content, tmp_path)
        assert content["data"]["messages"][0] in REPORT.detail(load_results(tmp_path))
    if recipe in PREDICTIONS:
        lines, pattern = PREDICTIONS[recipe]
        found = list(predict(load(run.path), io.StringIO(lines)))
        assert len(found) == 2
        assert all(re.fullmatch(pattern, prediction.summary) for prediction in found)
        for prediction, line in zip(found, lines.splitlines(), strict=True):
            assert prediction.lines.startswith(f"{prediction.summary}\t")
            assert prediction.lines.endswith(f"\t{line}")


def test_a_training_step_of_review_classes_lowers(tmp_path):
    """The model is that of ratings, with another loss and other metrics."""
    prepared, mesh = prepare(shrink("amazon", tmp_path)), sharding.make_mesh(1, 1)
    trainer = make_trainer(prepared.config, prepared, mesh)
    state, sums = trainer._lower_steps(0).out_info
    assert sums.sums["train/loss"].shape == state.step.shape == (2,)
    params = jax.eval_shape(trainer.initial_state).state.params
    ((_, lower),) = list_programs(trainer.task, params, trainer.tables["test"], mesh)
    counts = jax.tree.map(lambda leaf: np.ones(leaf.shape[1:]), lower().out_info)
    assert set(trainer.task.metrics(counts)) == set(METRICS["amazon"])


def test_a_search_skips_the_test_set_and_a_recipe_uses_its_best_setting(tmp_path):
    config = shrink("ag", tmp_path)
    search = search_config(config)
    grid = dataclasses.replace(search, seeds=1)
    train(dataclasses.replace(grid, model=dataclasses.replace(grid.model, dropout_rate=(0.0,))))
    content = collect_results(experiment_folder(search))
    assert content["heads"].keys() == {"text"}
    members = content["runs"]["distance_aware"]["result"]["members"]
    assert len(members) == 4  # two initial values of w, two learning rates of w and v
    assert all("test" not in member for member in members)
    check_metrics("ag", members, ("validation",))
    best = max(members, key=lambda member: member["validation"]["accuracy"])
    after = dataclasses.replace(config, search=str(experiment_folder(search)))
    for method in ("distance_aware", "distance_aware_clip"):  # The second one was not searched.
        found = apply_search(after.for_method(method), {})
        assert found.model.initial_weight == (best["setting"]["initial_weight"],)
        assert found.model.distance_rate == (best["setting"]["distance_rate"],)
    with pytest.raises(RunError, match="--search must be a folder of finished runs"):
        apply_search(after.for_method("vanilla"), {})


def test_the_search_has_12_settings_and_3_for_methods_without_w_and_v():
    search = search_config(load_recipe("ag").get_config())
    axes = (
        *(search.model.dropout_rate, search.model.initial_weight, search.model.initial_shape),
        *(search.optimizer.learning_rate, search.model.distance_rate),
    )
    assert math.prod(map(len, axes)) == 12
    vanilla = search.for_method("vanilla")
    assert vanilla.model.dropout_rate == search.model.dropout_rate
    assert len(vanilla.model.initial_weight) == len(vanilla.model.distance_rate) == 1
