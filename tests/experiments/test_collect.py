"""`collect` adds the runs of new methods to stored results."""

import dataclasses
import json

import pytest

from distattn_jax.train import OutputConfig, open_run
from distattn_jax.train.options import replace_options
from experiments.commands.collect import main
from experiments.papers.stored_results import read_results, write_results
from tests.train import tiny

NAME = "wnut17"  # Measures of this experiment are stored by method.
DATA = {"rows": {"train": 8}, "digests": {"raw files of the data": "a"}}


def finish_run(folder, method, *, score=0.5, measures=None, data=DATA, **options):
    """Write a finished run.

    Args:
      folder: Folder for runs. The folder of the experiment is in it.
      method: Attention variant.
      score: Accuracy on the test set.
      measures: Content of heads.json, or None.
      data: Description of the data.
      **options: Options that differ, with "__" instead of ".".
    """
    config = tiny.make_config(name=NAME, output=OutputConfig(directory=str(folder)))
    changed = {name.replace("__", "."): value for name, value in options.items()}
    config = replace_options(dataclasses.replace(config, methods=(method,)), changed)
    run = open_run(config, data=data, files={})
    member = {"seed": 0, "setting": {}, "validation": {"accuracy": 0.5}, "best_step": 1}
    result = {"method": method, "criterion": "accuracy", "parameters": 5}
    result["members"] = [member | {"test": {"accuracy": score}}]
    (run.path / "result.json").write_text(json.dumps(result))
    if measures is not None:
        (run.path / "heads.json").write_text(json.dumps(measures))


def collect(tmp_path, name, *flags):
    """Collect the runs of a folder and return the stored results."""
    main([str(tmp_path / name / NAME), "--output", str(tmp_path / "results"), *flags])
    return read_results(NAME, tmp_path / "results")


@pytest.fixture
def stored(tmp_path):
    """Stored results of the methods adapted and distance_aware."""
    finish_run(tmp_path / "first", "adapted")
    finish_run(tmp_path / "first", "distance_aware", measures={"weight": [1.0]})
    return collect(tmp_path, "first")


def test_runs_of_other_methods_are_kept_in_the_order_of_tables(tmp_path, stored):
    finish_run(tmp_path / "second", "vanilla", measures={"far": [2.0]})
    content = collect(tmp_path, "second")
    assert list(content["runs"]) == ["vanilla", "adapted", "distance_aware"]
    assert content["runs"]["adapted"] == stored["runs"]["adapted"]
    assert content["heads"] == {"distance_aware": {"weight": [1.0]}, "vanilla": {"far": [2.0]}}


def test_a_new_run_replaces_the_stored_run_and_its_measures(tmp_path, stored):
    finish_run(tmp_path / "second", "distance_aware", score=0.75)
    content = collect(tmp_path, "second")
    assert list(content["runs"]) == ["adapted", "distance_aware"]
    members = content["runs"]["distance_aware"]["result"]["members"]
    assert members[0]["test"] == {"accuracy": 0.75}
    assert "heads" not in content  # Those of the replaced run.


@pytest.mark.parametrize(("method", "kept"), [("vanilla", True), ("distance_aware", False)])
def test_measures_of_no_single_method_are_kept_if_no_run_is_replaced(
    tmp_path, stored, method, kept
):
    write_results({**stored, "heads": {"text": {"weight": [1.0]}}}, tmp_path / "results")
    finish_run(tmp_path / "second", method)
    assert ("heads" in collect(tmp_path, "second")) == kept


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"data": DATA | {"rows": {"train": 9}}}, "rows: {'train': 8} before, {'train': 9} now"),
        ({"data": DATA | {"digests": {"raw files of the data": "b"}}}, "'a'} before, "),
        ({"seeds": 3}, "seeds: 1 before, 3 now"),
        ({"model__features": 16}, "model.features: 8 before, 16 now"),
    ],
)
def test_runs_with_other_data_or_options_are_refused_unless_they_replace(
    tmp_path, stored, capsys, changes, difference
):
    finish_run(tmp_path / "second", "vanilla", **changes)
    with pytest.raises(SystemExit, match="nothing was collected"):
        collect(tmp_path, "second")
    printed = capsys.readouterr().out
    assert "the stored runs of adapted, distance_aware cannot be kept beside vanilla" in printed
    assert difference in printed
    assert read_results(NAME, tmp_path / "results") == stored
    content = collect(tmp_path, "second", "--replace")
    assert list(content["runs"]) == ["vanilla"]
    assert "heads" not in content


def test_the_implementation_and_options_that_a_method_ignores_may_differ(tmp_path, stored):
    options = {"model__initial_weight": (0.5,), "model__implementation": "reference"}
    finish_run(tmp_path / "second", "vanilla", **options)
    runs = collect(tmp_path, "second")["runs"].values()
    assert [run["config"]["model.implementation"] for run in runs] == ["reference", "", ""]


def test_all_methods_may_be_collected_again_with_other_options(tmp_path, stored):
    for method in stored["runs"]:
        finish_run(tmp_path / "second", method, seeds=3)
    content = collect(tmp_path, "second")
    assert [run["config"]["seeds"] for run in content["runs"].values()] == [3, 3]
