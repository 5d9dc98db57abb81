"""Heat maps of attention weights."""

import numpy as np
import pytest

from distattn_jax import plot
from tests.plot.pages import lies_inside

# Two dollar signs must not start mathematics.
TOKENS = ["rose", "$", "5", "to", "$", "internationalization"]


def weights(rows, columns, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(columns), rows)


def names(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_each_map_has_its_title_and_tokens_on_both_axes():
    maps = {"head 0": weights(6, 6), "head 1": weights(6, 6, 1)}
    *panels, bar = plot.attention_maps(maps, TOKENS).axes
    assert [axes.get_title() for axes in panels] == list(maps)
    for axes, expected in zip(panels, maps.values(), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert names(axes.xaxis) == TOKENS
    assert names(panels[0].yaxis) == TOKENS
    assert bar.get_ylabel() == "attention weight"


def test_all_maps_share_one_scale_that_the_largest_weight_or_max_weight_ends():
    maps = {"faint": np.full((6, 6), 0.1), "strong": np.full((6, 6), 0.7)}
    for max_weight, end in ((None, 0.7), (0.2, 0.2), (0.9, 0.7)):
        *panels, bar = plot.attention_maps(maps, TOKENS, max_weight=max_weight).axes
        assert {axes.images[0].get_clim() for axes in panels} == {(0.0, end)}
        assert bar.get_ylim() == (0.0, end)
    with pytest.raises(ValueError, match="max_weight must be above 0, the lowest weight; got 0"):
        plot.attention_maps(maps, TOKENS, max_weight=0.0)


def test_query_tokens_may_differ_from_key_tokens_and_long_tokens_are_cut():
    options = {"query_tokens": ["was", 100 * "x"], "axis_names": ("target", "source")}
    axes, _ = plot.attention_maps({"": weights(2, 6)}, TOKENS, **options).axes
    assert names(axes.yaxis) == ["was", 23 * "x" + "…"]
    assert names(axes.xaxis) == TOKENS
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "target")


@pytest.mark.parametrize(("count", "columns", "rows"), [(3, 2, 2), (3, 9, 1)])
def test_columns_sets_the_number_of_maps_in_a_row(count, columns, rows):
    maps = {f"head {i}": weights(6, 6, i) for i in range(count)}
    *panels, _ = plot.attention_maps(maps, TOKENS, columns=columns).axes
    assert [axes.get_title() for axes in panels] == list(maps)
    tops = [round(axes.get_position().y1, 6) for axes in panels]
    assert tops == sorted(tops, reverse=True)
    assert len(set(tops)) == rows
    assert max(map(tops.count, tops)) == min(columns, count)
    assert names(panels[-1].xaxis) == TOKENS


@pytest.mark.parametrize(
    ("count", "queries", "keys"), [(1, 1, 1), (3, 6, 6), (2, 40, 40), (1, 2, 50)]
)
def test_everything_lies_inside_the_figure(count, queries, keys):
    maps = {f"head {i}": weights(queries, keys) for i in range(count)}
    query_tokens, tokens = ((TOKENS * 9)[-length:] for length in (queries, keys))
    figure = plot.attention_maps(maps, tokens, query_tokens=query_tokens)
    assert lies_inside(figure)


@pytest.mark.parametrize(("count", "length", "named"), [(3, 80, 1), (1, 200, 2), (16, 24, 1)])
def test_many_or_long_maps_fit_a_page_and_leave_tokens_out(count, length, named):
    tokens = [str(i % 7) for i in range(length)]
    figure = plot.attention_maps({f"{i}": np.eye(length) for i in range(count)}, tokens)
    width, height = figure.get_size_inches()
    assert width <= 14.01
    assert height <= 16.01
    axes = figure.axes[0]
    assert names(axes.xaxis) == names(axes.yaxis) == tokens[::named]
    assert axes.get_xlabel() == ("key" if named == 1 else f"key, 1 of {named} named")
    row = sorted(label.get_window_extent().x0 for label in axes.get_xticklabels())
    assert min(np.diff(row)) >= 5 / 72 * figure.dpi  # the smallest font


def test_errors_name_the_argument():
    message = r"maps\['head 0'\] must have shape \(6, 6\).*got \(6, 5\)"
    with pytest.raises(ValueError, match=message):
        plot.attention_maps({"head 0": weights(6, 5)}, TOKENS)
    with pytest.raises(ValueError, match="must not be empty; got 0 maps, 6 tokens, 6 query_tokens"):
        plot.attention_maps({}, TOKENS)
    with pytest.raises(ValueError, match="columns must be at least 1; got 0"):
        plot.attention_maps({"head 0": weights(6, 6)}, TOKENS, columns=0)
