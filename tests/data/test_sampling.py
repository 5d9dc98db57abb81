"""Tests of the sampling of rows."""

import pytest

from distattn_jax.data.builder import draw_disjoint


def test_the_sets_are_disjoint_and_have_their_sizes():
    first, second, none = draw_disjoint(50, [30, 20, 0], seed="a")
    assert (len(first), len(second), none) == (30, 20, set())
    assert first | second == set(range(50))
    assert first != set(range(30))


def test_equal_seeds_draw_equal_rows():
    assert (
        draw_disjoint(1000, [3], seed="a") == draw_disjoint(1000, [3], seed="a") == [{68, 278, 518}]
    )
    assert draw_disjoint(1000, [3], seed="a") != draw_disjoint(1000, [3], seed="b")


@pytest.mark.parametrize("sizes", [[6, 5], [11], [-1, 5]])
def test_sizes_that_are_negative_or_too_large_are_errors(sizes):
    with pytest.raises(ValueError, match="sizes must be 0 or more and sum to at most 10; got"):
        draw_disjoint(10, sizes, seed="a")
