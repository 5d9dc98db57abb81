"""Reports on artificial run folders, without training."""

import json
import re

import numpy as np
import pytest
from etils import epath

from distattn_jax.tasks import (
    GUIDES,
    GuidingConfig,
    ModelConfig,
    PretrainedClassificationConfig,
    SentenceAttention,
    TextClassificationConfig,
    TextClassificationData,
)
from distattn_jax.train import OptimizerConfig, RunError
from distattn_jax.train.run import Run, config_to_json
from experiments.commands.report import main, report
from experiments.commands.train import summarize_runs
from experiments.papers import run_figures
from experiments.recipes import nearest
from tests.experiments import stored
from tests.plot.pages import two_sided

LOG = (
    {"step": 10, "train/loss": [2.0, 1.0]},
    {"step": 10, "validation/loss": [1.0, 1.0], "validation/accuracy": [0.0, 0.5]},
)


def make_run(folder, method, *, accuracies=None, log=(), **config):
    """Write a run with two seeds. It is finished if accuracies are given."""
    path = folder / method
    path.mkdir(parents=True)
    kind = PretrainedClassificationConfig if method in GUIDES else TextClassificationConfig
    made = kind(name=folder.name, methods=(method,), seeds=2, **config)
    (path / "config.json").write_text(json.dumps(config_to_json(made)))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    if accuracies is not None:
        run = stored.run(method, stored.members(accuracies, ["accuracy"]))
        (path / "result.json").write_text(json.dumps(run["result"]))
    return path


def make_three(folder, log=()):
    """Write three methods, one of them not finished. Without logs, they have no figures."""
    make_run(folder, "vanilla", accuracies=(0.5, 0.25), log=log)
    make_run(folder, "adapted", accuracies=(0.75, 0.75), log=log)
    make_run(folder, "distance_aware", log=log)
    return folder


@pytest.fixture
def folder(tmp_path):
    return make_three(tmp_path / "runs" / "made_up")


@pytest.fixture
def logged(tmp_path):
    folder = make_three(tmp_path / "runs" / "logged", LOG)
    Run(epath.Path(folder / "distance_aware")).write_plan(20)
    return folder


def test_the_report_and_its_figures_are_written_beside_the_runs(logged):
    text = report([logged])
    assert (logged / "report.md").read_text() == text
    assert text.startswith("# logged\n")
    assert "| Transformer | 7 | 37.50 ± 17.68 | 37.50 ± 17.68 | 2 |" in text
    assert "| Adapted Transformer, then Transformer | 37.50 points |" in text
    assert "- DA-Transformer: not finished: step 10 of 20\n" in text
    assert "![learning curves](figures/learning_curves.png)" in text
    assert (logged / "figures" / "learning_curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_without_a_log_are_listed_as_not_finished(tmp_path):
    line = "- Transformer: not finished: step 0 of an unknown number\n"
    make_run(tmp_path / "begun", "vanilla")
    assert report([tmp_path]) == f"# begun\n\n{line}"
    make_run(tmp_path / "begun", "adapted", accuracies=(0.5, 0.5), epochs=3.0)
    assert line in report([tmp_path])  # The finished run has another number of steps.


def test_a_warning_about_the_data_of_several_runs_is_listed_once(folder):
    for method in ("vanilla", "adapted"):
        data = {"warnings": ["warning: test shares 1 of its 2 texts (50.0 %) with train."]}
        (folder / method / "data.json").write_text(json.dumps(data))
    assert report([folder]).count("\n\nwarning: test shares 1 of its 2 texts") == 1


def test_options_that_differ_between_runs_are_listed(folder):
    assert "differ in more" not in report([folder])
    make_run(folder, "no_positions", accuracies=(0.5, 0.5), epochs=3.0)
    text = report([folder])
    assert re.search(
        r"differ in more than their method.*epochs: .*3.0 \(no positions\)", text, re.S
    )


def differing_options(folder, **configs):
    """Return the lines about options in which runs with these configurations differ."""
    for guide, config in configs.items():
        make_run(folder, guide, **config)
    text = report([folder]).partition("differ in more than their method:")[2]
    return text.split("\n\n")[1].splitlines() if text else []


def test_options_without_effect_on_a_method_are_not_compared(tmp_path):
    grid = GuidingConfig(alpha=(0.5,), gamma=(0.5,))
    assert not differing_options(
        tmp_path / "a", none={}, mdg={"guiding": grid}, first={"guiding": grid}
    )
    initial = {"model": ModelConfig(initial_weight=(0.5,))}
    assert not differing_options(tmp_path / "c", vanilla=initial, distance_aware={})
    # All pairs of runs are compared, not only those with the first run.
    assert differing_options(tmp_path / "b", ag={}, next={}, period={"guiding": grid}) == [
        "- guiding.gamma: [1.0] ([Next]), [0.5] ([Period])"
    ]


def test_weights_from_the_same_search_may_differ_but_no_others(tmp_path):
    found = {"guiding": GuidingConfig(alpha=(0.5,)), "search": "s"}
    assert not differing_options(tmp_path / "a", ag={"search": "s"}, mdg=found)
    by_hand = {"guiding": GuidingConfig(alpha=(0.5,))}
    assert differing_options(tmp_path / "b", ag={}, mdg=by_hand) == [
        "- guiding.alpha: [0.01] (AG), [0.5] (MDG)"
    ]
    rate = OptimizerConfig(learning_rate=(0.5,))
    lines = differing_options(tmp_path / "c", ag={"search": "s"}, mdg={**found, "optimizer": rate})
    assert lines == ["- optimizer.learning_rate: [0.001] (AG), [0.5] (MDG)"]


def test_paths_may_be_runs_or_folders_of_folders(folder):
    alone = report([folder / "vanilla", folder / "vanilla"])
    assert "Adapted" not in alone
    assert alone.count("| Transformer | 7 |") == 1
    assert report([folder.parent]) == report([folder])


def test_output_receives_the_report_and_a_subfolder_for_each_of_several(folder, tmp_path):
    output = tmp_path / "reports"
    report([folder], output=output)
    assert (output / "report.md").exists()
    assert not (folder / "report.md").exists()
    make_run(folder.parent / "other", "vanilla", accuracies=(0.5, 0.5))
    text = report([folder.parent], output=output)
    for name in ("made_up", "other"):
        assert (output / name / "report.md").exists()
        assert f"# {name}\n" in text


def test_two_experiments_of_one_name_are_rejected(folder, tmp_path):
    make_run(tmp_path / "elsewhere" / "made_up", "vanilla", accuracies=(0.5, 0.5))
    with pytest.raises(RunError, match="experiments of different names"):
        report([folder, tmp_path / "elsewhere"], output=tmp_path / "reports")
    assert not (tmp_path / "reports").exists()


def test_a_report_without_pandas_says_how_to_install_it(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for arguments in ([str(folder)], ["da"]):
        with pytest.raises(RunError, match=r"need the package pandas: pip install '\.\[exp"):
            main(arguments)


def test_a_training_without_pandas_ends_with_the_command_of_the_report(folder, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = summarize_runs(folder, ["vanilla"])
    assert text.startswith(f"The results are stored in {folder}.")
    assert "pip install '.[experiments]'" in text
    assert f"`python -m experiments report {folder}`" in text


def test_a_path_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match=f"got {tmp_path}, which holds none"):
        report([tmp_path])
    with pytest.raises(RunError, match=r"got .*nowhere, which does not exist"):
        report([tmp_path / "nowhere"])


def test_the_default_is_every_experiment_under_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent.parent)
    main([])
    assert "# made_up" in capsys.readouterr().out
    assert (folder / "report.md").exists()


def test_published_numbers_are_shown_for_experiments_of_the_paper(tmp_path):
    make_run(tmp_path / "sst", "vanilla", accuracies=(0.5, 0.25))
    row = "| Transformer | 7 | 37.50 ± 17.68 | 37.50 ± 17.68 | 89.67 ± 0.22 | 2 |"
    assert row in report([tmp_path])


@pytest.mark.parametrize(
    ("name", "dataset", "sentence"),
    [
        ("nearest", "nearest", nearest.SENTENCE),
        ("grid", "nearest", nearest.SENTENCE),
        ("grid", "text_files", None),
    ],
)
def test_an_experiment_of_any_name_has_the_sentence_of_its_recipe(
    tmp_path, monkeypatch, name, dataset, sentence
):
    make_run(tmp_path / name, "vanilla", data=TextClassificationData(dataset=dataset))
    drawn = []
    monkeypatch.setattr(
        run_figures, "draw_run_figures", lambda *_, sentence: drawn.append(sentence) or []
    )
    report([tmp_path])
    report([tmp_path], sentence="another one")
    assert drawn == [sentence, "another one"]


def test_a_curve_holds_the_steps_at_which_the_metric_was_logged():
    lines = [{"step": 5, "a": [1, 2, 3]}, {"step": 5, "b": [0, 0, 0]}, {"step": 9, "a": [4, 5, 6]}]
    steps, values = run_figures.read_curve(lines, "a", [2, 0])
    np.testing.assert_array_equal(steps, [5, 9])
    np.testing.assert_array_equal(values, [[3, 6], [1, 4]])
    assert run_figures.read_curve(lines, "c", slice(None)) is None


def test_a_curve_of_shares_is_in_percent():
    _, values = run_figures.read_curve(LOG, "validation/accuracy", slice(None))
    np.testing.assert_array_equal(values, [[0], [50]])


def test_learning_curves_are_labelled_with_titles_and_unfinished_runs(logged):
    runs = {path.name: Run(epath.Path(path)) for path in sorted(logged.iterdir())}
    figure = run_figures.plot_learning_curves(runs)
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "training loss",
        "validation accuracy (%)",
    ]
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names == ["Adapted Transformer", "DA-Transformer (not finished)", "Transformer"]


def test_models_of_an_unfinished_grid_are_not_called_seeds(tmp_path):
    rates = OptimizerConfig(learning_rate=(0.1, 0.2))
    log = ({"step": 10, "train/loss": [4.0, 3.0, 2.0, 1.0]},)
    path = make_run(tmp_path, "vanilla", log=log, optimizer=rates)
    figure = run_figures.plot_learning_curves({"vanilla": Run(epath.Path(path))})
    assert figure.legends[0].texts[0].get_text() == "Transformer (not finished, 2 settings)"
    assert figure.get_supxlabel().startswith("line: mean of 4 models;")


def test_the_longest_text_of_the_data_limits_the_distances(tmp_path):
    run = Run(epath.Path(make_run(tmp_path, "distance_aware")))
    assert run_figures.max_sequence_length(run, "text") == 512  # the default of data.longest
    (run.path / "data.json").write_text('{"longest_sequences": {"text": 30}}')
    assert run_figures.max_sequence_length(run, "text") == 30


def test_position_vectors_are_drawn_for_distances_of_the_data(tmp_path):
    run = Run(epath.Path(make_run(tmp_path, "relative_position")))
    assert run_figures.max_drawn_distance(run) == 16
    for longest, distance in ((9, 8), (40, 16), (1, 1)):
        lengths = {"longest_sequences": {"encoder": longest, "decoder": 1}}
        (run.path / "data.json").write_text(json.dumps(lengths))
        assert run_figures.max_drawn_distance(run) == distance


def test_each_layer_has_its_own_figure_of_coefficients():
    weight, shape = np.array([[-0.1, 0.1]]), np.zeros((1, 2))
    ((name, figure),) = run_figures.plot_coefficients(weight, shape, max_distance=1000)
    assert name == "coefficients"
    assert figure.axes[0].get_xlim() == (0, 50)  # |w| R = 5
    ((_, figure),) = run_figures.plot_coefficients(weight, shape, max_distance=20)
    assert figure.axes[0].get_xlim() == (0, 20)
    layers = run_figures.plot_coefficients(
        np.tile(weight, (2, 1)), np.zeros((2, 2)), max_distance=20
    )
    assert [name for name, _ in layers] == ["coefficients_layer_1", "coefficients_layer_2"]


def test_the_figure_of_both_sides_ends_where_half_of_the_factors_are_constant():
    ((name, figure),) = run_figures.plot_sides([two_sided()], max_distance=1000, causal=False)
    assert name == "coefficients"
    assert figure.axes[1].get_xlim() == (-16, 16)  # median of (0.5 + 5) / |w|


def test_maps_are_the_vanilla_mean_and_the_most_extreme_distance_aware_heads():
    weights = np.arange(1.0, 5.0)[None, :, None, None] * np.ones((1, 4, 2, 2))
    vanilla = SentenceAttention(["a", "b"], weights)
    ours = SentenceAttention(["a", "b"], weights, np.array([[0.1, -0.5, 0.3, -0.2]]))
    maps = run_figures.select_maps({"vanilla": vanilla, "distance_aware": ours})
    assert {name: one[0, 0] for name, one in maps.items()} == {
        "Transformer\nmean of 4 heads": 2.5,
        "DA-Transformer\nmost local: head 2, w = −0.5": 2,
        "DA-Transformer\nmost global: head 3, w = 0.3": 3,
    }
    only_global = SentenceAttention(["a", "b"], weights, np.array([[0.1, 0.5, 0.3, 0.2]]))
    (name,) = run_figures.select_maps({"distance_aware": only_global})
    assert "most global: head 2" in name
