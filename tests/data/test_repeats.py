"""Texts that occur in two splits are counted, and a warning names their share and one of them."""

import random

from distattn_jax.data.repeats import Repeats, TextHashes, describe_repeats

LETTERS = "abcdefgh"


def test_the_counts_and_places_equal_those_of_a_slow_search():
    generator = random.Random(0)
    sizes = {"train": 400, "validation": 30, "test": 50}
    texts = {
        split: [
            tuple("".join(generator.choices(LETTERS, k=2)) for _ in range(2)) for _ in range(size)
        ]
        for split, size in sizes.items()
    }
    hashes, expected = TextHashes(), []
    for split, pairs in texts.items():
        for first, second in pairs:
            space = generator.choice((" ", "\n", "\t  "))
            hashes.add(split, (f"{space}{first}{space}x", second + space))
    for split, other in (("validation", "train"), ("test", "train"), ("test", "validation")):
        found = [i for i, pair in enumerate(texts[split]) if pair in texts[other]]
        if found:
            places = found[0] + 1, texts[other].index(texts[split][found[0]]) + 1
            expected.append(Repeats(split, other, len(found), sizes[split], *places))
    assert len(expected) >= 2
    assert hashes.find_repeats() == expected


def test_order_case_and_number_of_texts_matter():
    hashes = TextHashes()
    hashes.add("train", ("a b", "c"))
    for texts in (("c", "a b"), ("A b", "c"), ("a b c",), ("ab", "c")):
        hashes.add("test", texts)
    assert hashes.find_repeats() == []
    assert describe_repeats([], "texts") == []


def test_the_warning_is_one_line_with_counts_shares_and_places():
    repeats = [
        Repeats("validation", "train", 2, 16, 7, 1234),
        Repeats("test", "train", 1, 12345, 3, 2),
    ]
    assert describe_repeats(repeats, "pairs") == [
        "warning: validation shares 2 of its 16 pairs (12.5 %) with train, e.g. number 7, which is "
        "number 1,234 of train; test shares 1 of its 12,345 pairs (less than 0.1 %) with train, "
        "e.g. number 3, which is number 2 of train. Scores on shared pairs may be too high."
    ]
