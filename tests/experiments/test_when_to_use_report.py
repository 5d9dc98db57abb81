"""Tables and figures of the report on where distance helps, from artificial results."""

import pytest
from matplotlib import image

from experiments.papers import stored_results
from experiments.papers.when_to_use import advice, tables
from experiments.papers.when_to_use.report import REPORT
from experiments.papers.when_to_use.settings import EXPERIMENTS
from tests.experiments import when_to_use_results


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    tagged = when_to_use_results.content("wnut17", ("vanilla", "adapted", "distance_aware"))
    tagged["heads"] = {"distance_aware": when_to_use_results.heads()}
    growths = {"vanilla": 1.5, "distance_aware": 1.0, "alibi": 0.9}
    for content in (tagged, when_to_use_results.language_models(growths)):
        stored_results.write_results(stored_results.round_numbers(content), folder)
    (folder / "notes_when_to_use.md").write_text("Notes.\n")
    return folder


@pytest.fixture(scope="module")
def summary(folder):
    return REPORT.summarize(folder)


def find_row(text, title):
    """Return the cells of the first row with this title."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_tables_show_the_setting_that_is_best_on_the_validation_set(summary):
    # Seeds 0, 1 and 2 of vanilla: 50, 51 and 52. The second setting is worse on validation.
    assert find_row(summary, "Transformer")[1:] == ["not run", "51.00 ± 1.00"]
    assert find_row(summary, "no model")[1:] == ["not run", "25.00"]
    assert find_row(summary, "Transformer-XL")[1:] == ["not run", "not run"]


def test_findings_name_what_was_not_run(summary):
    assert "its own claim): better, 11.00 points" in summary
    assert "on parts of speech: not run." in summary
    assert "**Transformer against no positions**: not run" in summary
    assert "**DA-Transformer on film reviews**: not run" in summary
    assert "parts of speech, UD English-EWT (all methods)" in summary
    assert "WNUT-17 (no positions; Transformer-RPR; Transformer-XL)" in summary


def test_perplexities_are_sorted_by_the_longest_texts(summary):
    lines = summary[summary.index("All lengths predict") :].splitlines()[4:7]
    assert [line.split("|")[1].strip() for line in lines] == [
        "ALiBi",
        "DA-Transformer",
        "Transformer",
    ]
    assert lines[1].split("|")[2].strip() == "101.0 ± 1.0"
    assert "Transformer 7.53" in summary  # (100 * 1.5**5 + 1) / 101


def test_far_attention_is_split_by_the_sign_of_w(summary):
    assert find_row(summary, "uniform attention")[1:] == ["15", "30", "45", "60", "75"]
    assert find_row(summary, "DA-Transformer, heads with w < 0")[-1] == "50"
    assert find_row(summary, "DA-Transformer, heads with w > 0")[-1] == "10"


def test_pruning_is_compared_with_a_random_order(folder):
    rows = [line for line in REPORT.detail(folder).splitlines() if "| largest absolute w |" in line]
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert cells[2:6] == ["90.00", "90.00", "63.00", "50.00"]
    assert cells[6].startswith("-17.00 (p = ")


def test_a_layer_may_have_only_negative_weights():
    content = when_to_use_results.content("wnut17", ("distance_aware",))
    heads = when_to_use_results.heads() | {"weight": [[[-0.5, -0.25]]] * 3}
    content["heads"] = {"distance_aware": heads}
    contents = dict.fromkeys(EXPERIMENTS) | {"wnut17": content}
    row = find_row(tables.layers_table(contents), EXPERIMENTS["wnut17"].title)
    assert row[1:] == ["1", "0", "-0.375", "-", "1.00"]


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        (("vanilla",), ["not run", "not run"]),
        (
            ("vanilla", "adapted"),
            [
                "**Adapted Transformer**",
                "WNUT-17, F1 (%), 2 methods, 3 seeds: Adapted Transformer 62.00 ± 2.00; "
                "Transformer 51.00 ± 1.00",
            ],
        ),
    ],
)
def test_advice_needs_two_methods(methods, expected):
    contents = dict.fromkeys(EXPERIMENTS)
    contents["wnut17"] = when_to_use_results.content("wnut17", methods)
    others = dict.fromkeys(("ag", "sst", "multi30k_small"))
    table = advice.advice_table(contents, others)
    assert find_row(table, "to find named entities")[1:] == expected


def test_details_have_commands_settings_positions_and_every_seed(folder):
    details = REPORT.detail(folder)
    assert details.startswith("Notes.\n")
    assert "python -m experiments train tagging --name wnut17" in details
    # The losses of seeds 0, 1 and 2 of the third method are 0.30, 0.27 and 0.24 in both splits.
    assert find_row(details, "ALiBi")[1:] == ["0.001", *["0.2700 ± 0.0300"] * 2, "3", "yes"]
    assert "| DA-Transformer | 90.0 | 100.0 |" in details


def test_figures_are_drawn(folder, tmp_path):
    REPORT.draw_figures(folder, tmp_path)
    (path,) = (tmp_path / "figures").iterdir()
    assert image.imread(path).shape[1] > 700


def test_a_report_without_results_says_not_run(tmp_path):
    assert not any(REPORT.read_contents(tmp_path).values())
    text = REPORT.summarize(tmp_path)
    assert all(f"{experiment.title} (all methods)" in text for experiment in EXPERIMENTS.values())
    assert text.count("\n\nNot run.") == 4  # every section after the findings
    assert REPORT.detail(tmp_path).endswith("### Data\n\nNot run.\n")
