"""Tests of batches: every row occurs once an epoch, and batch i depends on i only."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distattn_jax.data import PADDING_ROW, Batches, Ragged, Table, choose_buckets

LENGTHS = [3, 0, 9, 4, 5, 12, 1, 1, 8, 7, 2]
DEFAULTS = {
    "batch_size": 4,
    "buckets": (4, 8),
    "length_columns": "text",
    "seed": 0,
    "shuffle": True,
}


def make_table(lengths):
    """Make a table whose row i repeats the number i + 1, so that rows can be recognized."""
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    values = np.repeat(np.arange(len(lengths), dtype=np.int32) + 1, lengths)
    return Table({"text": Ragged(values, offsets), "label": np.arange(len(lengths)) * 10})


def make_batches(lengths=LENGTHS, **arguments):
    return Batches(make_table(lengths), **{**DEFAULTS, **arguments})


def epoch(batches, number=0):
    first = number * batches.batches_per_epoch
    return [batches[first + i] for i in range(batches.batches_per_epoch)]


def assert_same(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_equal(one, other)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40),
    st.sets(st.integers(1, 16), min_size=1, max_size=4).map(lambda bounds: tuple(sorted(bounds))),
    st.integers(1, 7),
    st.booleans(),
    st.integers(0, 3),
)
def test_every_row_occurs_once_an_epoch_in_the_first_bucket_that_is_long_enough(
    lengths, buckets, batch_size, shuffle, number
):
    batches = make_batches(lengths, buckets=buckets, batch_size=batch_size, shuffle=shuffle)
    found = []
    padded = positions = 0
    for batch in epoch(batches, number):
        rows, bucket = batch["text"].shape
        assert rows == batch_size
        positions += rows * bucket
        padded += (batch["text"] == 0).sum()
        for text, size, label, weight, i in zip(
            *(batch[name] for name in ("text", "text_length", "label", "weight", "index")),
            strict=True,
        ):
            if i == PADDING_ROW:
                assert not np.any([*text, size, label, weight])
                continue
            assert weight == 1
            assert label == i * 10
            assert size == min(lengths[i], buckets[-1])
            assert text.tolist() == [i + 1] * size + [0] * (bucket - size)
            assert bucket == min([b for b in buckets if b >= size])
            found.append(i)
    assert sorted(found) == list(range(len(lengths)))
    assert batches.truncated == sum(length > buckets[-1] for length in lengths)
    np.testing.assert_allclose(batches.padding_share, padded / positions)


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40),
    st.lists(st.integers(1, 7), min_size=3, max_size=3).map(tuple),
    st.sampled_from([1, 2, 3, 4]),
    st.booleans(),
    st.integers(0, 3),
)
def test_every_bucket_has_its_own_batch_size_and_padding_rows_follow_the_rows(
    lengths, sizes, multiple, shuffle, number
):
    buckets = (2, 6, 13)
    arguments = {"buckets": buckets, "batch_size": sizes, "shuffle": shuffle}
    plain = make_batches(lengths, **arguments)
    batches = make_batches(lengths, **arguments, row_multiple=multiple)
    assert batches.batches_per_epoch == plain.batches_per_epoch
    found = []
    padded = positions = 0
    for batch, expected in zip(epoch(batches, number), epoch(plain, number), strict=True):
        size = sizes[buckets.index(batch["text"].shape[1])]
        assert len(expected["index"]) == size
        assert len(batch["index"]) == -(-size // multiple) * multiple
        assert (batch["index"][size:] == PADDING_ROW).all()
        assert not batch["weight"][size:].any()
        np.testing.assert_equal({name: x[:size] for name, x in batch.items()}, expected)
        padded += (batch["text"] == 0).sum()
        positions += batch["text"].size
        found += [i for i in batch["index"] if i != PADDING_ROW]
    assert sorted(found) == list(range(len(lengths)))
    np.testing.assert_allclose(batches.padding_share, padded / positions)


@example(5, (6, 1, 3), True)
@given(st.integers(0, 50), st.sampled_from([(6, 1, 6), ((5, 2), 4, 2), (5, 4, 4)]), st.booleans())
def test_several_processes_together_make_the_batch_of_one_process(i, sizes, shuffle):
    batch_size, row_multiple, processes = sizes
    arguments = {"batch_size": batch_size, "row_multiple": row_multiple, "shuffle": shuffle}
    whole = make_batches(**arguments)
    parts = [
        make_batches(**arguments, process_index=p, process_count=processes)
        for p in range(processes)
    ]
    joined = {name: np.concatenate([part[i][name] for part in parts]) for name in whole[i]}
    np.testing.assert_equal(joined, whole[i])
    first = whole.locate(i)
    stacks = [part.stack(first, 3) for part in parts]
    expected = whole.stack(first, 3)
    joined = {name: np.concatenate([s[name] for s in stacks], axis=1) for name in expected}
    np.testing.assert_equal(joined, expected)
    np.testing.assert_equal(expected["text"][0], whole[i]["text"])


def test_the_order_differs_between_epochs_and_seeds():
    batches = make_batches(range(40))
    orders = [[b["index"].tolist() for b in epoch(batches, number)] for number in (0, 1)]
    orders.append([b["index"].tolist() for b in epoch(make_batches(range(40), seed=1))])
    for one, other in itertools.combinations(orders, 2):
        assert one != other


def test_without_shuffling_batches_are_sorted_by_bucket_and_row():
    batches = make_batches(shuffle=False)
    expected = [[0, 1, 3, 6], [7, 10, -1, -1], [2, 4, 5, 8], [9, -1, -1, -1]]
    assert [b["index"].tolist() for b in epoch(batches)] == expected
    assert_same(epoch(batches, 1), epoch(batches))


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=40),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_stack_holds_the_following_batches_of_its_bucket(lengths, count, shuffle, i):
    batches = make_batches(lengths, shuffle=shuffle)
    first = batches.locate(i)
    stack = batches.stack(first, count)
    end = (i // batches.batches_per_epoch + 1) * batches.batches_per_epoch
    same_bucket = [j for j in range(i, end) if batches.locate(j).bucket == first.bucket]
    for position in range(count):
        entry = {name: column[position] for name, column in stack.items()}
        if position < len(same_bucket):
            expected = batches[same_bucket[position]]
            assert batches.locate(same_bucket[position]).rank == first.rank + position
            del expected["index"]
            np.testing.assert_equal(entry, expected)
        else:
            assert not any(column.any() for column in entry.values())
    others = [j for j in range(i, end) if batches.locate(j).bucket != first.bucket]
    assert batches.run_length(i) == min(others, default=end) - i


def test_the_length_of_a_row_is_the_maximum_of_the_length_columns():
    text = make_table(LENGTHS).columns["text"]
    other = make_table(LENGTHS[::-1]).columns["text"]
    table = Table({"text": text, "other": other})
    both = Batches(
        table, **{**DEFAULTS, "buckets": (4, 8, 12), "length_columns": ("text", "other")}
    )
    assert both.truncated == 0
    one = Batches(table, **{**DEFAULTS, "buckets": (4, 8, 12)})
    buckets = [next(b for b in (4, 8, 12) if b >= length) for length in LENGTHS]
    assert one.truncated == sum(
        length > bucket for length, bucket in zip(LENGTHS[::-1], buckets, strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        ({"batch_size": (4, 0)}, r"batch_size must be at least 1; got \(4, 0\)"),
        ({"batch_size": (4,)}, r"batch_size must be one number, or one for each of the 2 buckets"),
        ({"row_multiple": 0}, "row_multiple must be at least 1; got 0"),
        ({"process_count": 3}, "batch_size must be a multiple of process_count = 3; got 4"),
        ({"process_index": 1}, "process_index must be in 0 .. process_count - 1 = 0; got 1"),
        ({"buckets": (8, 4)}, r"buckets must be positive lengths .*; got \(8, 4\)"),
        ({"buckets": ()}, r"buckets must be positive lengths .*; got \(\)"),
        ({"length_columns": "label"}, r"names must be .* sequences, \['text'\]; got 'label'"),
        ({"lengths": []}, "table must have rows; got 0"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
    ],
)
def test_an_invalid_argument_raises_an_error_that_names_it(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_batches(**arguments)


def test_negative_indices_and_plain_iteration_are_refused():
    with pytest.raises(IndexError, match="i must be at least 0; got -1"):
        make_batches()[-1]
    with pytest.raises(TypeError, match="not iterable"):
        iter(make_batches())


@example([8, 8, 40], 2, 40)  # lengths that equal a bound
@given(st.lists(st.integers(0, 45), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 40))
def test_no_other_choice_of_buckets_has_less_padding(lengths, count, longest):
    def cost(bounds):
        return sum(min(b for b in bounds if b >= min(x, longest)) for x in lengths)

    candidates = range(8, longest, 8)
    choices = [
        (*chosen, longest)
        for size in range(count)
        for chosen in itertools.combinations(candidates, size)
    ]
    actual = choose_buckets(np.array(lengths), count=count, longest=longest)
    assert actual in choices
    assert cost(actual) == min(map(cost, choices))
    assert len(actual) == min(len(c) for c in choices if cost(c) == cost(actual))


def test_any_number_of_buckets_is_chosen_at_once():
    assert choose_buckets([3, 9], count=10**12, longest=20) == (8, 16, 20)
