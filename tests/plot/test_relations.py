"""Figures of position vectors."""

import numpy as np
import pytest

from distattn_jax import plot

POSITIONS = np.arange(-2, 3)


def draw_norms(layers=2, heads=3):
    return np.random.default_rng(0).uniform(0, 1, (layers, heads, len(POSITIONS)))


def test_norms_have_a_row_for_each_table_and_a_column_for_each_layer():
    norms = {"keys": draw_norms(), "values": 7 * draw_norms()}
    figure = plot.relation_norms(norms, POSITIONS)
    panels = [axes for axes in figure.axes if axes.get_title()]
    titles = ["keys, layer 1", "keys, layer 2", "values, layer 1", "values, layer 2"]
    assert [axes.get_title() for axes in panels] == titles
    assert figure.get_supxlabel() == "key before (−) / after (+) the query"
    for axes, title in zip(panels, titles, strict=True):
        (image,) = axes.images
        table = norms[title.split(",")[0]]
        np.testing.assert_array_equal(image.get_array(), table[int(title[-1]) - 1])
        assert list(image.get_extent()) == [-2.5, 2.5, 3.5, 0.5]
        assert image.get_clim() == (0, table.max())  # Each table has its own scale.


def test_tables_that_are_equal_everywhere_can_be_drawn():
    figure = plot.relation_norms({"keys": np.zeros((1, 1, 1))}, np.array([0]))  # k = 0
    assert figure.axes[0].images[0].get_clim() == (0, 1)


def test_similarities_of_all_panels_share_one_scale():
    similarities = {"keys": np.stack([np.eye(5), -np.eye(5)])}
    *panels, bar = plot.relation_similarities(similarities, POSITIONS).axes
    assert [axes.get_title() for axes in panels] == ["keys, layer 1", "keys, layer 2"]
    assert {axes.images[0].get_clim() for axes in panels} == {(-1, 1)}
    assert list(panels[1].images[0].get_extent()) == [-2.5, 2.5, 2.5, -2.5]
    assert bar.get_ylabel() == "cosine similarity"


def test_similarities_of_one_layer_have_room_beside_labels_and_colour_bar():
    tables = {"keys": np.eye(5)[None], "values": np.eye(5)[None]}
    figure = plot.relation_similarities(tables, POSITIONS)
    sizes = figure.axes[0].get_window_extent().size / figure.dpi
    assert sizes.min() > 1.4  # inches, of a height of 2.2 inches for each row


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"norms\['keys'\] must have shape \(L, N, 4\)"):
        plot.relation_norms({"keys": draw_norms()}, POSITIONS[:4])
    with pytest.raises(ValueError, match=r"similarities must have at least one table.* got layers"):
        plot.relation_similarities({}, POSITIONS)
    with pytest.raises(ValueError, match=r"same number of layers; got layers \[1, 2\]"):
        plot.relation_norms({"keys": draw_norms(), "values": draw_norms(1)}, POSITIONS)
