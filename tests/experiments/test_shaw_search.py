"""The search of translators: its grid, and the setting that all rows use."""

from distattn_jax.train.members import list_members
from experiments.papers.shaw.search import choose_setting, search_config
from experiments.papers.shaw.switched import find_kind
from experiments.recipes import positions


def test_every_setting_is_tried_with_four_kinds_of_positions():
    members = list_members(search_config(positions.get_config()).for_method("switched_positions"))
    kinds = [find_kind(member.setting).method for member in members]
    expected = ("no_positions", "vanilla", "relative_position", "relative_and_absolute")
    assert sorted(kinds) == sorted(6 * expected)


def test_the_setting_with_the_lowest_mean_loss_is_chosen():
    losses = {(1e-3, 0.1): (3.0, 1.0), (1e-3, 0.3): (1.8, 1.9), (3e-3, 0.1): (1.0, 3.5)}
    members = []
    for (rate, dropout), own in losses.items():
        setting = {"learning_rate": rate, "dropout_rate": dropout}
        for kind, loss in enumerate(own):
            own_setting = {**setting, "sinusoids": kind}
            members.append({"setting": own_setting, "validation": {"loss": loss}})
    assert choose_setting({"members": members}) == {"learning_rate": 1e-3, "dropout_rate": 0.3}
