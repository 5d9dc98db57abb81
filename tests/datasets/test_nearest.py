"""The made-up task is what it says: the nearest opinion is the label."""

import collections

import pytest

from distattn_jax.data import load_split
from distattn_jax.datasets import Nearest, nearest
from distattn_jax.datasets.nearest import LABELS, OPINIONS, SPLITS, examples

OPINION_OF = {word: opinion for opinion, words in OPINIONS.items() for word in words}


@pytest.fixture(scope="module")
def made():
    return {split: list(examples(split)) for split in SPLITS}


def opinions(text):
    """(distance from the service, opinion) of every opinion in a text, nearest first."""
    words = text.split()
    (service,) = (i for i, word in enumerate(words) if word == "service")
    return sorted(
        (abs(i - service), OPINION_OF[word]) for i, word in enumerate(words) if word in OPINION_OF
    )


@pytest.mark.parametrize("split", SPLITS)
def test_the_label_is_the_nearest_opinion_and_by_far(made, split):
    assert len(made[split]) == SPLITS[split].size
    for example in made[split]:
        (distance, opinion), *others = opinions(example["text"])
        assert example["label"] == opinion
        assert 1 <= distance <= SPLITS[split].nearest
        assert 1 <= len(others) <= 3
        assert all(distance + 3 <= other <= SPLITS[split].farthest for other, _ in others)


def test_the_test_asks_for_distances_and_lengths_that_training_never_had(made):
    def longest(split):
        found = [opinions(example["text"]) for example in made[split]]
        length = max(len(example["text"].split()) for example in made[split])
        return max(one[0][0] for one in found), max(one[-1][0] for one in found), length

    assert longest("train")[:2] == longest("validation")[:2] == (4, 10)
    assert longest("test")[:2] == (6, 14)
    assert longest("test")[2] > longest("train")[2]


@pytest.mark.parametrize("split", SPLITS)
def test_no_label_is_much_more_frequent_than_another(made, split):
    counts = collections.Counter(example["label"] for example in made[split])
    assert counts.keys() == set(LABELS)
    for count in counts.values():
        assert 0.2 < count / len(made[split]) < 0.3


def test_other_opinions_mislead(made):
    """The label is no better guessed from the farthest opinion than by chance."""
    hits = [example["label"] == opinions(example["text"])[-1][1] for example in made["test"]]
    assert 0.2 < sum(hits) / len(hits) < 0.3


def test_the_examples_are_always_the_same_and_no_split_has_those_of_another(made):
    for split, expected in made.items():
        assert list(examples(split)) == expected
    texts = {split: {example["text"] for example in made[split]} for split in made}
    assert not texts["train"] & (texts["validation"] | texts["test"])


def test_tfds_gives_the_examples_back_in_order(tmp_path, monkeypatch):
    sizes = {"train": 12, "validation": 5, "test": 3}
    few = {split: SPLITS[split]._replace(size=size) for split, size in sizes.items()}
    monkeypatch.setattr(nearest, "SPLITS", few)
    for _ in range(2):  # prepared, and found prepared
        builder = Nearest(data_dir=tmp_path)
        for split, size in sizes.items():
            rows = load_split(builder, split)
            assert len(rows) == size
            names = builder.info.features["label"].names
            given = [{"text": row["text"], "label": names[row["label"]]} for row in rows]
            assert given == list(examples(split))
