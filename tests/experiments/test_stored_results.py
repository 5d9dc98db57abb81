"""Files of stored results."""

import json

import numpy as np
import pytest

from experiments.papers import stored_results

CONTENT = {
    "experiment": "made_up",
    "runs": {"vanilla": {"result": {"method": "vanilla"}}, "adapted": {"result": {}}},
}


def test_written_results_can_be_read(tmp_path):
    path = stored_results.write_results(CONTENT, tmp_path)
    assert json.loads(path.read_text()) == CONTENT
    assert stored_results.read_results("made_up", tmp_path) == CONTENT
    assert stored_results.read_results("nothing", tmp_path) is None


def test_results_are_selected_in_the_order_of_the_methods():
    found = stored_results.select_results(CONTENT, ("adapted", "none", "vanilla"))
    assert found == [{}, {"method": "vanilla"}]


def test_an_option_is_found_under_any_of_its_names():
    assert stored_results.find_option({"b": 1, "c": 2}, "a", "b", "c") == 1
    assert stored_results.find_option({}, "a") is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (np.asarray([[0.1234567]]), [[0.12346]]),
        ({"a": (1, 123456.7)}, {"a": [1, 123460.0]}),
        (True, True),
    ],
)
def test_numbers_are_rounded_to_five_digits(content, expected):
    assert stored_results.round_numbers(content) == expected


def test_only_the_text_between_the_comments_is_replaced(tmp_path):
    path = tmp_path / "RESULTS.md"
    path.write_text("a\n<!-- begin of report x -->\nb\n<!-- end of report x -->\nc\n")
    stored_results.update_results_page("x", "new\n", path)
    expected = "a\n<!-- begin of report x -->\n\nnew\n\n<!-- end of report x -->\nc\n"
    assert path.read_text() == expected
    with pytest.raises(ValueError, match="must hold the lines <!-- begin of report y -->"):
        stored_results.update_results_page("y", "new\n", path)
