"""Rows drawn by a seed share none, and are always the same."""

import pytest

from distattn_jax.data.sampling import draw_disjoint


def test_the_sets_have_their_sizes_and_share_no_row():
    first, second, none = draw_disjoint(50, [30, 20, 0], seed="a")
    assert (len(first), len(second), none) == (30, 20, set())
    assert first | second == set(range(50))
    assert first != set(range(30))


def test_the_seed_decides():
    assert (
        draw_disjoint(1000, [3], seed="a") == draw_disjoint(1000, [3], seed="a") == [{68, 278, 518}]
    )
    assert draw_disjoint(1000, [3], seed="a") != draw_disjoint(1000, [3], seed="b")


@pytest.mark.parametrize("sizes", [[6, 5], [11], [-1, 5]])
def test_more_rows_than_there_are_cannot_be_drawn(sizes):
    with pytest.raises(ValueError, match="sizes must be 0 or more, in sum at most 10; got"):
        draw_disjoint(10, sizes, seed="a")
