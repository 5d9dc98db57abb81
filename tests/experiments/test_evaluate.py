"""The table and the warning of the command `evaluate`."""

import numpy as np

from distattn_jax.train import Member
from experiments.commands.evaluate import describe_empty, format_metrics


def make_table(losses, rates, seeds):
    """Return header and rows for models of all rates and seeds."""
    members = [Member(seed, {"rate": rate, "size": 8}) for rate in rates for seed in seeds]
    table = format_metrics({"loss": np.array(losses)}, members)
    header, _, *rows = ([x.strip() for x in row.split("|")[1:-1]] for row in table.splitlines())
    return header, rows


def test_seeds_of_one_setting_are_averaged():
    header, rows = make_table([1.0, 2.0], [0.1], (3, 4))
    assert header == ["seed", "loss"]
    assert rows == [["3", "1.0000"], ["4", "2.0000"], ["mean", "1.5000"]]


def test_models_of_a_grid_show_their_settings_and_each_setting_has_its_own_mean():
    header, rows = make_table([1.0, 2.0, 5.0, 9.0], [0.1, 0.2], (3, 4))
    assert header == ["seed", "rate", "loss"]
    assert rows == [
        *(["3", "0.1", "1.0000"], ["4", "0.1", "2.0000"], ["mean", "0.1", "1.5000"]),
        *(["3", "0.2", "5.0000"], ["4", "0.2", "9.0000"], ["mean", "0.2", "7.0000"]),
    ]


def test_a_setting_with_one_seed_has_no_mean():
    _, rows = make_table([1.0, 2.0], [0.1, 0.2], (0,))
    assert rows == [["0", "0.1", "1.0000"], ["0", "0.2", "2.0000"]]


def test_translations_that_are_mostly_empty_are_a_warning():
    assert describe_empty(["a", ""]) == ""
    assert describe_empty(["a", "", ""]).startswith("warning: 2 of 3 translations are empty. ")
