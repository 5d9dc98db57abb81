"""Spans that tags mark, by hand and by the rules of conlleval."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.tasks.spans import count_spans, parse_tags, span_metrics
from tests.tasks import conlleval

TAGS = ("O", "B-x", "I-x", "E-x", "S-x", "B-y", "I-y", "E-y")
SPANS = parse_tags(TAGS)
LENGTH = 5  # words of every sentence, with padding
count = jax.jit(lambda true, predicted, valid: count_spans(true, predicted, valid, SPANS))


def test_tags_that_mark_no_spans_have_no_prefixes():
    assert parse_tags(("NOUN", "O", "VERB")) is None
    assert parse_tags(("O",)) is None
    prefixes, types = parse_tags(("B-y", "I-x-z", "O"))
    assert (prefixes.tolist(), types.tolist()) == ([1, 2, 0], [2, 1, 0])


def test_every_short_sequence_has_the_spans_of_conlleval():
    draw = np.random.default_rng(0)
    true = np.asarray(list(itertools.product(range(len(TAGS)), repeat=LENGTH - 1)))
    true = np.insert(true, LENGTH - 1, draw.integers(len(TAGS), size=len(true)), axis=1)
    # Random tags alone have few right spans.
    predicted = np.where(draw.random(true.shape) < 0.2, draw.permutation(true), true)
    lengths = draw.integers(LENGTH + 1, size=len(true))
    valid = np.arange(LENGTH) < lengths[:, None]
    found = count(*map(jnp.asarray, (true, predicted, valid)))
    pairs = [
        [conlleval.find_spans([TAGS[i] for i in row[:length]]) for row in rows]
        for *rows, length in zip(true, predicted, lengths, strict=True)
    ]
    assert {name: int(number) for name, number in found.items()} == {
        "true_spans": sum(len(one) for one, _ in pairs),
        "predicted_spans": sum(len(other) for _, other in pairs),
        "right_spans": sum(len(one & other) for one, other in pairs),
    }


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("I-x I-x O I-x", 2),  # IOB1: B- only separates spans of the same type
        ("I-x B-x I-y", 3),
        ("B-x I-x O B-x B-x", 3),  # IOB2
        ("B-x I-x E-x S-x", 2),  # IOBES
        ("E-x E-x I-x I-y", 4),  # breaks every scheme
        ("O I-x E-y", 2),
    ],
)
def test_spans_of_each_scheme_by_hand(tags, spans):
    indices = [TAGS.index(tag) for tag in tags.split()]
    row = jnp.asarray([indices + [0] * (LENGTH - len(indices))])
    found = count(row, row, jnp.arange(LENGTH)[None] < len(indices))
    assert {int(number) for number in found.values()} == {spans}


def test_metrics_are_ratios_of_the_counts():
    assert span_metrics(true=4, predicted=2, right=1) == pytest.approx(
        {"precision": 1 / 2, "recall": 1 / 4, "f1": 1 / 3}
    )
    assert set(span_metrics(0, 0, 0).values()) == {0}
