"""The table of the command `evaluate`."""

import numpy as np

from distattn_jax.train import Member
from experiments.commands.evaluate import format_metrics


def split_rows(table):
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()]


def make_members(rates):
    return [Member(seed, {"rate": rate, "size": 8}) for rate in rates for seed in (3, 4)]


def test_seeds_of_one_setting_are_averaged():
    table = split_rows(format_metrics({"loss": np.array([1.0, 2.0])}, make_members([0.1])))
    assert table[0] == ["seed", "loss"]
    assert table[2:] == [["3", "1.0000"], ["4", "2.0000"], ["mean", "1.5000"]]


def test_models_of_a_grid_show_their_settings_and_each_setting_has_its_own_mean():
    metrics = {"loss": np.array([1.0, 2.0, 5.0, 9.0])}
    table = split_rows(format_metrics(metrics, make_members([0.1, 0.2])))
    assert table[0] == ["seed", "rate", "loss"]
    assert table[2:] == [
        *(["3", "0.1", "1.0000"], ["4", "0.1", "2.0000"], ["mean", "0.1", "1.5000"]),
        *(["3", "0.2", "5.0000"], ["4", "0.2", "9.0000"], ["mean", "0.2", "7.0000"]),
    ]


def test_a_setting_with_one_seed_has_no_mean():
    members = [Member(0, {"rate": rate}) for rate in (0.1, 0.2)]
    table = split_rows(format_metrics({"loss": np.array([1.0, 2.0])}, members))
    assert table[2:] == [["0", "0.1", "1.0000"], ["0", "0.2", "2.0000"]]
