"""Tests of the table of impressions on disk."""

import numpy as np
import pytest

from distattn_jax.data import PADDING_ROW, Batches, Ragged, train_word_level
from distattn_jax.datasets import Impression, Mind, OnDiskImpressions
from tests.datasets.synthetic_mind import write_mind

# All tokens of title i are i. The last title is longer than the maximum of 30 tokens.
LENGTHS = (0, 1, 2, 3, 40)
TITLES = Ragged(
    np.repeat(np.arange(5, dtype=np.int32), LENGTHS), np.cumsum([0, *LENGTHS], dtype=np.int64)
)


def make_impression(history, candidates, clicks):
    return Impression(*(np.array(numbers, np.int32) for numbers in (history, candidates, clicks)))


IMPRESSIONS = [
    make_impression([1, 4], [2, 3], [0, 1]),
    make_impression([], [4, 1, 2], [1, 0, 1]),
    make_impression([3] * 50, [1, 2, 3, 4], [1, 0, 0, 0]),
]


class RecordingSource(list):
    """Sequence that records the indices that are read."""

    def __init__(self, rows):
        super().__init__(rows)
        self.indices = []

    def __getitem__(self, i):
        self.indices.append(i)
        return super().__getitem__(i)


def make_title(i, width=30):
    length = min(LENGTHS[i], width)
    return [i] * length + [0] * (width - length)


def test_rows_contain_the_titles_of_their_news_and_padding_rows_are_zero():
    source = RecordingSource(IMPRESSIONS)
    rows = OnDiskImpressions(source, TITLES).take(np.array([1, PADDING_ROW, 0]), 4)
    assert source.indices == [1, 0]
    shapes = {name: (column.shape, str(column.dtype)) for name, column in rows.items()}
    assert shapes == {
        "history": ((3, 50, 30), "int32"),
        "history_words": ((3, 50), "int32"),
        "history_length": ((3,), "int32"),
        "candidates": ((3, 4, 30), "int32"),
        "candidates_words": ((3, 4), "int32"),
        "candidates_length": ((3,), "int32"),
        "clicks": ((3, 4), "float32"),
    }
    assert rows["history_length"].tolist() == [0, 0, 2]
    assert rows["candidates_length"].tolist() == [3, 0, 2]
    assert rows["clicks"].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    numbers = {"candidates": [[4, 1, 2, 0], [0] * 4, [2, 3, 0, 0]]}
    numbers["history"] = [[0] * 50, [0] * 50, [1, 4] + [0] * 48]
    for name, expected in numbers.items():
        assert rows[name].tolist() == [[make_title(i) for i in row] for row in expected]
        words = [[min(LENGTHS[i], 30) for i in row] for row in expected]
        assert rows[f"{name}_words"].tolist() == words


def test_candidates_are_counted_once_unless_their_number_is_given():
    source = RecordingSource(IMPRESSIONS)
    table = OnDiskImpressions(source, TITLES)
    for _ in range(2):
        assert table.lengths(("candidates",)).tolist() == [2, 3, 4]
    assert source.indices == [0, 1, 2]
    constant = OnDiskImpressions(RecordingSource(IMPRESSIONS), TITLES, candidates=5)
    assert constant.lengths(constant.sequence_columns).tolist() == [5, 5, 5]
    assert constant.source.indices == []
    assert table.title_lengths.tolist() == [0, 1, 2, 3, 40]


def test_candidates_are_never_truncated():
    table = OnDiskImpressions(IMPRESSIONS, TITLES)
    with pytest.raises(ValueError, match=r"length must be at least 4, .* of row 2; got 3"):
        table.take(np.array([0, 2]), 3)


def test_an_invalid_argument_is_an_error_that_names_it():
    with pytest.raises(ValueError, match=r"names must be \('candidates',\); got \('history',\)"):
        OnDiskImpressions(IMPRESSIONS, TITLES).lengths(("history",))
    with pytest.raises(ValueError, match="titles must begin with an empty title"):
        OnDiskImpressions(IMPRESSIONS, Ragged(np.ones(2, np.int32), np.array([0, 1, 2])))


def test_batches_contain_every_impression_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Mind, "SHARD", 30)
    write_mind(tmp_path / "raw", users=9, news=64, impressions=200, seed=0)
    builder = Mind(manual_dir=tmp_path / "raw", data_dir=tmp_path / "data")
    tokenizer = train_word_level(builder.titles)
    for split in ("train", "validation", "test"):
        table = OnDiskImpressions.from_builder(builder, split, tokenizer)
        source = builder.source(split)
        assert len(table) == len(source)
        buckets = (5,) if split == "train" else (4, 10)
        batches = Batches(
            table, batch_size=8, buckets=buckets, length_columns="candidates", shuffle=True
        )
        found = []
        for batch in map(batches.__getitem__, range(batches.batches_per_epoch)):
            assert batch["candidates"].shape[1] in buckets
            for i, count, clicks, tokens in zip(
                *(batch[name] for name in ("index", "candidates_length", "clicks", "candidates")),
                strict=True,
            ):
                if i == PADDING_ROW:
                    assert not np.any(tokens)
                    continue
                found.append(int(i))
                row = source[int(i)]
                assert clicks[:count].tolist() == row.clicks.tolist()
                texts = [builder.titles[number].split() for number in row.candidates]
                ids = [[tokenizer.token_to_id(word) for word in text] for text in texts]
                assert [line[line > 0].tolist() for line in tokens] == ids + [[]] * (
                    len(tokens) - count
                )
        assert sorted(found) == list(range(len(table)))
        assert batches.truncated == 0
