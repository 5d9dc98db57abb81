"""Figures of the functions of the position that the heads of a layer have."""

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import attention, plot
from distattn_jax.plot.style import head_colours
from tests.plot.pages import lies_inside, two_sided


def curves_of(axes):
    """Return the curves of a panel, without the dotted lines that mark 0 and 1."""
    return [line.get_xydata() for line in axes.lines if line.get_linestyle() == "-"]


def test_factor_and_bias_have_a_panel_each_with_keys_before_the_query_on_the_left():
    figure = plot.position_curves(two_sided(), max_distance=4)
    factor, bias = figure.axes
    assert factor.get_xlabel() == bias.get_xlabel() == "key before (−) / after (+) the query"
    x, y = curves_of(factor)[0].T
    np.testing.assert_array_equal(x, np.arange(-4, 5))
    weighted = np.array([-2, -1.5, -1, -0.5, 0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(y, (1 + np.exp(0.5)) / (1 + np.exp(0.5 - weighted)), rtol=1e-5)
    _, y = curves_of(bias)[0].T
    np.testing.assert_allclose(y, [-1, -0.5, 0, 0.5, 0, -2.5, -3, -3.5, -4], rtol=1e-5)
    (legend,) = figure.legends
    assert legend.texts[0].get_text() == "head 1: w before = −0.5, w after = 0.25"
    assert len(legend.texts) == len(curves_of(bias)) == 3
    assert lies_inside(figure)


def test_other_variants_with_a_function_of_the_position_have_one_panel():
    biased = attention.DistanceBias(jnp.asarray([0.5, 0.25]), attention.alibi)
    figure = plot.position_curves(biased, max_distance=3, causal=True)
    (axes,) = figure.axes
    np.testing.assert_array_equal(curves_of(axes)[1][:, 0], [-3, -2, -1, 0])
    np.testing.assert_allclose(curves_of(axes)[1][:, 1], [-0.75, -0.5, -0.25, 0])
    assert figure.legends[0].texts[1].get_text() == "head 2: slope = 0.25"


def test_colours_tell_the_four_combinations_of_signs_apart():
    signs = np.array([[-1, -1], [1, -1], [-1, 1], [1, 1]]) / 4
    before = head_colours(np.concatenate((signs, 2 * signs)))
    assert len(set(before)) == 8
    assert head_colours(signs)[:1] + head_colours(signs)[3:] == head_colours(np.array([-1.0, 1.0]))
    lighter, darker = np.sum(before[:4], axis=1), np.sum(before[4:], axis=1)
    assert (darker < lighter).all()


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="max_distance must be at least 1; got 0"):
        plot.position_curves(two_sided(), max_distance=0)
    with pytest.raises(ValueError, match=r"variant must have a function .* got DotProduct"):
        plot.position_curves(attention.DotProduct(), max_distance=3)
