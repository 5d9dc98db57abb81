"""Spans of tags by the rules of the script conlleval, one rule on each line."""


def find_spans(tags):
    """Return the set of (first word, word after the last, type) of a sentence."""
    spans, first = set(), None
    before, type_before = "O", ""
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if first is not None and _ends(before, prefix, type_before, name):
            spans.add((first, i, type_before))
            first = None
        if _starts(before, prefix, type_before, name):
            first = i
        before, type_before = prefix, name
    return spans


def score(true, predicted):
    """Return precision, recall and F1 of the predicted tags of sentences."""
    pairs = [
        (find_spans(one), find_spans(other)) for one, other in zip(true, predicted, strict=True)
    ]
    right = sum(len(one & other) for one, other in pairs)
    recall = right / sum(len(one) for one, _ in pairs)
    precision = right / sum(len(other) for _, other in pairs)
    return precision, recall, 2 * precision * recall / (precision + recall)


def _starts(before, prefix, type_before, name):
    """Return True if a span starts at a word, given the word before."""
    return (
        prefix in ("B", "S")
        or (before in ("E", "S", "O") and prefix in ("E", "I"))
        or (prefix != "O" and name != type_before)
    )


def _ends(before, prefix, type_before, name):
    """Return True if a span ends before a word, given the word before."""
    return (
        before in ("E", "S")
        or (before in ("B", "I") and prefix in ("B", "S", "O"))
        or (before != "O" and name != type_before)
    )
