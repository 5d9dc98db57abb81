"""Reports on run folders that the tests write themselves; nothing is trained."""

import json

import numpy as np
import pytest
from etils import epath

from distattn_jax.train import Config, GuidingConfig, OptimizerConfig, RunError
from distattn_jax.train.flags import to_dict
from distattn_jax.train.run import Run
from experiments.commands.report import main, report
from experiments.papers import run_figures

JOURNAL = (
    {"step": 10, "train/loss": [2.0, 1.0]},
    {"step": 10, "validation/loss": [1.0, 1.0], "validation/accuracy": [0.0, 0.5]},
)


def make_run(folder, method, *, accuracies=None, steps=20, journal=(), **config):
    """A run of two seeds; finished if it has accuracies."""
    path = folder / method
    path.mkdir(parents=True)
    made = Config(name=folder.name, methods=(method,), seeds=2, **config)
    (path / "config.json").write_text(json.dumps(to_dict(made)))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in journal))
    if accuracies is not None:
        members = [
            {
                "seed": seed,
                "setting": {"learning_rate": 0.001},
                "best_step": 10,
                "validation": {"accuracy": accuracy},
                "test": {"accuracy": accuracy},
            }
            for seed, accuracy in enumerate(accuracies)
        ]
        result = {"method": method, "criterion": "accuracy", "steps": steps, "parameters": 7}
        (path / "result.json").write_text(json.dumps({**result, "members": members}))
    return path


@pytest.fixture
def folder(tmp_path):
    """An experiment of three methods, one of them not finished, without journals: no pictures."""
    folder = tmp_path / "runs" / "made_up"
    make_run(folder, "vanilla", accuracies=(0.5, 0.25))
    make_run(folder, "adapted", accuracies=(0.75, 0.75))
    make_run(folder, "distance_aware")
    return folder


@pytest.fixture
def logged(tmp_path):
    """The same with journals."""
    folder = tmp_path / "runs" / "logged"
    make_run(folder, "vanilla", accuracies=(0.5, 0.25), journal=JOURNAL)
    make_run(folder, "adapted", accuracies=(0.75, 0.75), journal=JOURNAL)
    make_run(folder, "distance_aware", journal=JOURNAL)
    Run(epath.Path(folder / "distance_aware")).plan(20)
    return folder


def test_the_report_lies_beside_the_runs_with_its_pictures(logged):
    text = report([logged])
    assert (logged / "report.md").read_text() == text
    assert text.startswith("# logged\n")
    assert "| Transformer | 7 | 37.50 ± 17.68 | 37.50 ± 17.68 | 2 |" in text
    assert "Best on test accuracy: Adapted Transformer, then Transformer" in text
    assert "- DA-Transformer: not finished: step 10 of 20\n" in text
    assert "![learning curves](figures/learning_curves.png)" in text
    assert (logged / "figures" / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_which_nothing_is_known_yet_are_named_too(tmp_path):
    make_run(tmp_path / "begun", "vanilla")
    text = report([tmp_path])
    assert text == "# begun\n\n- Transformer: not finished: step 0 of a number that is not known\n"


def test_how_far_it_has_to_go_is_known_only_from_a_run_like_it(tmp_path):
    make_run(tmp_path / "alone", "vanilla")
    make_run(tmp_path / "alone", "adapted", accuracies=(0.5, 0.5), epochs=3.0)
    text = report([tmp_path / "alone"])
    assert "Transformer: not finished: step 0 of a number that is not known" in text


def test_runs_that_differ_in_more_than_their_method_are_named(folder):
    assert "differ in more" not in report([folder])
    make_run(folder, "no_positions", accuracies=(0.5, 0.5), epochs=3.0)
    text = report([folder])
    assert "differ in more than their method" in text
    assert "epochs: " in text
    assert "3.0 (no positions)" in text


def unlike(folder, **configs):
    """The fields in which the runs of these guides are said to differ."""
    for guide, config in configs.items():
        make_run(folder, guide, **config)
    said = report([folder]).partition("differ in more than their method:")[2]
    return said.split("\n\n")[1].splitlines() if said else []


def test_what_a_method_has_not_is_no_difference(tmp_path):
    grid = GuidingConfig(alpha=(0.5,), gamma=(0.5,))
    assert not unlike(tmp_path / "a", none={}, mdg={"guiding": grid}, vanilla={"guiding": grid})
    # Nor does the first of the runs hide what the others differ in.
    assert unlike(tmp_path / "b", ag={}, next={}, period={"guiding": grid}) == [
        "- guiding.gamma: [1.0] ([Next]), [0.5] ([Period])"
    ]


def test_weights_found_by_one_search_are_no_difference_but_others_are(tmp_path):
    found = {"guiding": GuidingConfig(alpha=(0.5,)), "search": "s"}
    assert not unlike(tmp_path / "a", ag={"search": "s"}, mdg=found)
    by_hand = {"guiding": GuidingConfig(alpha=(0.5,))}
    assert unlike(tmp_path / "b", ag={}, mdg=by_hand) == [
        "- guiding.alpha: [0.01] (AG), [0.5] (MDG)"
    ]
    rate = OptimizerConfig(learning_rate=(0.5,))
    lines = unlike(tmp_path / "c", ag={"search": "s"}, mdg={**found, "optimizer": rate})
    assert lines == ["- optimizer.learning_rate: [0.001] (AG), [0.5] (MDG)"]


def test_one_run_can_be_given_and_folders_of_folders(folder):
    alone = report([folder / "vanilla", folder / "vanilla"])
    assert "Adapted" not in alone
    assert alone.count("| Transformer | 7 |") == 1
    assert report([folder.parent]) == report([folder])


def test_another_folder_gets_the_report_and_a_folder_inside_for_each_of_several(folder, tmp_path):
    output = tmp_path / "reports"
    report([folder], output=output)
    assert (output / "report.md").exists()
    assert not (folder / "report.md").exists()
    make_run(folder.parent / "other", "vanilla", accuracies=(0.5, 0.5))
    text = report([folder.parent], output=output)
    assert (output / "made_up" / "report.md").exists()
    assert (output / "other" / "report.md").exists()
    assert "# made_up\n" in text
    assert "# other\n" in text


def test_two_experiments_never_overwrite_each_other(folder, tmp_path):
    make_run(tmp_path / "elsewhere" / "made_up", "vanilla", accuracies=(0.5, 0.5))
    with pytest.raises(RunError, match="experiments of different names"):
        report([folder, tmp_path / "elsewhere"], output=tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


def test_a_path_without_a_run_is_named(tmp_path):
    with pytest.raises(RunError, match=f"got {tmp_path}, which holds none"):
        report([tmp_path])
    with pytest.raises(RunError, match=r"got .*nowhere, which does not exist"):
        report([tmp_path / "nowhere"])


def test_every_experiment_under_runs_is_reported_on_by_default(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent.parent)
    main([])
    assert "# made_up" in capsys.readouterr().out
    assert (folder / "report.md").exists()


def test_published_figures_stand_beside_those_of_the_recipe_of_that_name(tmp_path):
    make_run(tmp_path / "sst", "vanilla", accuracies=(0.5, 0.25))
    text = report([tmp_path])
    assert "| Transformer | 7 | 37.50 ± 17.68 | 37.50 ± 17.68 | 89.67 ± 0.22 | 2 |" in text


def test_a_curve_is_a_metric_of_some_members_at_the_steps_that_have_it():
    lines = [{"step": 5, "a": [1, 2, 3]}, {"step": 5, "b": [0, 0, 0]}, {"step": 9, "a": [4, 5, 6]}]
    steps, values = run_figures.curve(lines, "a", [2, 0])
    np.testing.assert_array_equal(steps, [5, 9])
    np.testing.assert_array_equal(values, [[3, 6], [1, 4]])
    assert run_figures.curve(lines, "c", slice(None)) is None


def test_learning_curves_are_named_as_in_the_tables_and_say_what_is_not_finished(logged):
    runs = {path.name: Run(epath.Path(path)) for path in sorted(logged.iterdir())}
    figure = run_figures.learning_curves(runs)
    assert [axes.get_ylabel() for axes in figure.axes] == ["training loss", "validation accuracy"]
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names == ["Adapted Transformer", "DA-Transformer (not finished)", "Transformer"]


def test_coefficients_are_one_picture_or_one_for_each_layer():
    weight, shape = np.array([[-0.1, 0.1]]), np.zeros((1, 2))
    ((name, figure),) = run_figures.coefficients(weight, shape, furthest=1000)
    assert name == "coefficients"
    assert figure.axes[0].get_xlim() == (0, 50)  # where |w| R is 5
    ((_, figure),) = run_figures.coefficients(weight, shape, furthest=20)
    assert figure.axes[0].get_xlim() == (0, 20)
    layers = run_figures.coefficients(np.tile(weight, (2, 1)), np.zeros((2, 2)), furthest=20)
    assert [name for name, _ in layers] == ["coefficients_layer_1", "coefficients_layer_2"]


def test_maps_are_the_mean_of_vanilla_heads_and_the_outermost_distance_aware_ones():
    weights = np.arange(1.0, 5.0)[None, :, None, None] * np.ones((1, 4, 2, 2))
    vanilla = run_figures.Seen(["a", "b"], weights)
    ours = run_figures.Seen(["a", "b"], weights, np.array([[0.1, -0.5, 0.3, -0.2]]))
    maps = run_figures.maps_of({"vanilla": vanilla, "distance_aware": ours})
    assert {name: one[0, 0] for name, one in maps.items()} == {
        "Transformer\nmean of 4 heads": 2.5,
        "DA-Transformer\nmost local: head 2, w = −0.5": 2,
        "DA-Transformer\nmost global: head 3, w = 0.3": 3,
    }
    only_global = run_figures.Seen(["a", "b"], weights, np.array([[0.1, 0.5, 0.3, 0.2]]))
    (name,) = run_figures.maps_of({"distance_aware": only_global})
    assert "most global: head 2" in name
