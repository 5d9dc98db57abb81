"""Tests of the synthetic task of the nearest opinion."""

import collections

import pytest

from distattn_jax.data import load_split
from distattn_jax.datasets import Nearest, nearest
from distattn_jax.datasets.nearest import LABELS, OPINIONS, SPLITS, make_examples

OPINION_OF = {word: opinion for opinion, words in OPINIONS.items() for word in words}


@pytest.fixture(scope="module")
def examples():
    return {split: list(make_examples(split)) for split in SPLITS}


def find_opinions(text):
    """Return the distance from "service" and the class of every opinion, nearest first."""
    words = text.split()
    (service,) = (i for i, word in enumerate(words) if word == "service")
    return sorted(
        (abs(i - service), OPINION_OF[word]) for i, word in enumerate(words) if word in OPINION_OF
    )


@pytest.mark.parametrize("split", SPLITS)
def test_the_label_is_the_nearest_opinion_by_a_margin_and_labels_are_balanced(examples, split):
    assert len(examples[split]) == SPLITS[split].size
    for example in examples[split]:
        (distance, opinion), *others = find_opinions(example["text"])
        assert example["label"] == opinion
        assert 1 <= distance <= SPLITS[split].nearest
        assert 1 <= len(others) <= 3
        assert all(distance + 3 <= other <= SPLITS[split].farthest for other, _ in others)
    counts = collections.Counter(example["label"] for example in examples[split])
    assert counts.keys() == set(LABELS)
    for count in counts.values():
        assert 0.2 < count / len(examples[split]) < 0.3


def test_the_test_split_has_longer_distances_and_sentences_than_train(examples):
    def longest(split):
        found = [find_opinions(example["text"]) for example in examples[split]]
        length = max(len(example["text"].split()) for example in examples[split])
        return max(one[0][0] for one in found), max(one[-1][0] for one in found), length

    assert longest("train")[:2] == longest("validation")[:2] == (4, 10)
    assert longest("test")[:2] == (6, 14)
    assert longest("test")[2] > longest("train")[2]


def test_the_farthest_opinion_predicts_the_label_no_better_than_chance(examples):
    hits = [row["label"] == find_opinions(row["text"])[-1][1] for row in examples["test"]]
    assert 0.2 < sum(hits) / len(hits) < 0.3


def test_examples_are_reproducible_and_splits_are_disjoint(examples):
    assert list(make_examples("test")) == examples["test"]
    texts = {split: {example["text"] for example in examples[split]} for split in examples}
    assert not texts["train"] & (texts["validation"] | texts["test"])


def test_prepared_examples_are_loaded_in_order(tmp_path, monkeypatch):
    sizes = {"train": 12, "validation": 5, "test": 3}
    few = {split: SPLITS[split]._replace(size=size) for split, size in sizes.items()}
    monkeypatch.setattr(nearest, "SPLITS", few)
    for _ in range(2):  # The second builder finds the prepared examples.
        builder = Nearest(data_dir=tmp_path)
        for split, size in sizes.items():
            rows = load_split(builder, split)
            assert len(rows) == size
            names = builder.info.features["label"].names
            loaded = [{"text": row["text"], "label": names[row["label"]]} for row in rows]
            assert loaded == list(make_examples(split))
