"""Tests of tables and their columns of sequences."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distattn_jax.data import PADDING_ROW, Nested, Ragged, Table


def make_ragged(rows):
    values = np.array([value for row in rows for value in row], np.int32)
    return Ragged(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=5),
    st.integers(1, 7),
    st.data(),
)
def test_rows_are_truncated_or_padded_to_one_length(rows, length, data):
    indices = data.draw(st.lists(st.integers(PADDING_ROW, len(rows) - 1), max_size=4))
    table = Table({"text": make_ragged(rows), "label": np.arange(len(rows)) + 5})
    batch = table.take(np.array(indices, np.int32), length)
    assert batch["text"].shape == (len(indices), length)
    for place, i in enumerate(indices):
        expected = [] if i == PADDING_ROW else rows[i][:length]
        assert batch["text"][place].tolist() == expected + [0] * (length - len(expected))
        assert batch["text_length"][place] == len(expected)
        assert batch["label"][place] == (0 if i == PADDING_ROW else i + 5)


@pytest.mark.parametrize("rows", [[], [[]], [[1, 2], [], [3]]])
def test_a_column_is_split_into_its_rows(rows):
    assert [row.tolist() for row in make_ragged(rows).split()] == rows


@given(st.lists(st.tuples(st.lists(st.integers(1, 9), max_size=4), st.booleans()), max_size=6))
def test_selected_rows_keep_their_order(pairs):
    column = make_ragged([row for row, _ in pairs])
    chosen = column.select(np.array([keep for _, keep in pairs], bool))
    expected = make_ragged([row for row, keep in pairs if keep])
    np.testing.assert_array_equal(chosen.values, expected.values)
    np.testing.assert_array_equal(chosen.offsets, expected.offsets)


def test_float_sequences_keep_their_dtype_and_values():
    scores = Ragged(np.asarray([0.5, 1.5, 2.25], np.float32), np.asarray([0, 2, 3]))
    rows = Table({"score": scores}).take(np.asarray([1, 0, PADDING_ROW]), 2)
    assert rows["score"].dtype == np.float32
    assert rows["score"].tolist() == [[2.25, 0], [0.5, 1.5], [0, 0]]
    assert rows["score_length"].tolist() == [1, 2, 0]


def test_changing_a_batch_does_not_change_the_table():
    labels = np.arange(3)
    Table({"label": labels}).take(np.array([0, PADDING_ROW]), 1)["label"] += 1
    assert labels.tolist() == [0, 1, 2]


def test_an_invalid_column_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"the 2 rows of 'text'; got 3 rows in 'label'"):
        Table({"text": make_ragged([[1], [2]]), "label": np.zeros(3)})
    with pytest.raises(ValueError, match=r"columns must contain numbers; got <U1 in 'label'"):
        Table({"label": np.array(["a"])})
    with pytest.raises(ValueError, match=r"columns must contain at least one"):
        Table({})
    with pytest.raises(ValueError, match=r"offsets must rise from 0 to the number of values, 2"):
        Ragged(np.ones(2, np.int32), np.array([0, 3]))


def test_documents_are_padded_in_sentences_and_words():
    # Two documents, "2 3 4 | 5" and "6 7", whose sentences are truncated to two words.
    words = Ragged(np.asarray([2, 3, 4, 5, 6, 7], np.int32), np.asarray([0, 3, 4, 6]))
    text = Nested.from_counts(words, [2, 1], 2)
    assert text.truncated == 1
    assert text.padding_share == pytest.approx(1 / 6)  # of three sentences of two words
    assert Table({"text": text}).lengths(("text",)).tolist() == [2, 1]
    rows = Table({"text": text}).take(np.asarray([1, 0, PADDING_ROW]), 3)
    assert rows["text"].tolist() == [
        [[6, 7], [0, 0], [0, 0]],
        [[2, 3], [5, 0], [0, 0]],
        [[0, 0], [0, 0], [0, 0]],
    ]
    assert rows["text_words"].tolist() == [[2, 0, 0], [2, 1, 0], [0, 0, 0]]
    assert rows["text_length"].tolist() == [1, 2, 0]
