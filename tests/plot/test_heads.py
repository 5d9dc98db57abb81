"""Bars of the head parameters w and v."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_hex

from distattn_jax import plot

WEIGHT = np.array([[[0.3, -0.5], [0.1, -0.1]], [[-0.2, 0.5], [-0.3, 0.2]]])  # (seeds, L, N)
SHAPE = np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])


def heights(axes):
    return [bar.get_height() for bar in axes.patches]


def test_heads_are_sorted_by_w_within_each_seed_and_have_the_colours_of_the_legend():
    figure = plot.head_parameters(WEIGHT, SHAPE)
    of_w, of_v = figure.axes
    # Seed 0: w = -0.5, -0.1, 0.1, 0.3 and v = 2, 4, 3, 1; seed 1: -0.3, -0.2, 0.2, 0.5, 7, 5, 8, 6.
    np.testing.assert_allclose(heights(of_w), [-0.4, -0.15, 0.15, 0.4])
    np.testing.assert_allclose(heights(of_v), [4.5, 4.5, 5.5, 3.5])
    whiskers = [segment[:, 1] for segment in of_v.collections[0].get_segments()]
    np.testing.assert_allclose(whiskers, [[2, 7], [4, 5], [3, 8], [1, 6]])
    (entries,) = figure.legends  # The third entry is the line from lowest to highest seed.
    legend = {
        text.get_text().split()[0]: to_hex(patch.get_facecolor())
        for text, patch in zip(entries.texts[:2], entries.get_patches(), strict=True)
    }
    for axes in figure.axes:
        colours = [to_hex(bar.get_facecolor()) for bar in axes.patches]
        assert colours == 2 * [legend["local"]] + 2 * [legend["global"]]
    assert legend["local"] != legend["global"]


def test_unpaired_v_is_sorted_by_itself_and_grey():
    of_w, of_v = plot.head_parameters(WEIGHT, SHAPE, paired=False).axes
    np.testing.assert_allclose(heights(of_w), [-0.4, -0.15, 0.15, 0.4])
    np.testing.assert_allclose(heights(of_v), [3, 4, 5, 6])
    assert of_v.get_xlabel() == "rank of the head by $v$"
    colours = [{bar.get_facecolor() for bar in axes.patches} for axes in (of_w, of_v)]
    assert len(colours[1]) == 1
    assert not colours[0] & colours[1]


@pytest.mark.parametrize("heads", [2, 26])
def test_each_part_of_a_model_has_its_own_titled_panels(heads):
    weight = {"words": np.tile(WEIGHT, heads // 2), "users": WEIGHT[:, :1] + 1}
    shape = {"words": jnp.tile(SHAPE, heads // 2), "users": SHAPE[:, :1]}
    panels = plot.head_parameters(weight, shape).axes
    assert [axes.get_title() for axes in panels] == ["words", "words", "users", "users"]
    assert [axes.get_ylabel() for axes in panels] == ["$w$", "$v$", "$w$", "$v$"]
    assert [len(axes.patches) for axes in panels] == [2 * heads, 2 * heads, 2, 2]
    # Seed 0: w = 0.5, 1.3; seed 1: 0.8, 1.5.
    np.testing.assert_allclose(heights(panels[2]), [0.65, 1.4])


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match=r"weight must have shape \(seeds, L, N\).*got \(2, 2\)"):
        plot.head_parameters(WEIGHT[0], SHAPE[0])
    with pytest.raises(ValueError, match=r"shape must have shape \(2, 2, 2\).*got \(1, 2, 2\)"):
        plot.head_parameters(WEIGHT, SHAPE[:1])
    with pytest.raises(ValueError, match=r"shape\['words'\] must have shape.*got \(1, 2, 2\)"):
        plot.head_parameters({"words": WEIGHT}, {"words": SHAPE[:1]})
    with pytest.raises(ValueError, match=r"same titles.*got \['words'\] and \['users'\]"):
        plot.head_parameters({"words": WEIGHT}, {"users": SHAPE})
