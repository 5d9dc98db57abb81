"""Table of how guides change attention heads. Figures 4 and 5 of the paper illustrate this."""

from collections.abc import Mapping
from typing import Any

from experiments.papers.attention_guiding.head_statistics import MAX_TOKENS
from experiments.papers.comparison_tables import count_pairs, format_test
from experiments.papers.formatting import (
    EMPTY,
    NOT_RUN_SENTENCE,
    format_mean,
    format_range,
    markdown_table,
    method_title,
)

STATISTIC_TITLES = {
    "spread": "spread of maps",
    "likeness": "similarity of heads",
    "special": "attention on special tokens",
}


def head_table(content: Mapping[str, Any] | None, *, with_note: bool = True) -> str:
    """Return a Markdown table of head statistics, with one row per guide.

    Each statistic has a t-test against the run without a guide.

    Args:
      content: Stored results of an experiment, or None if it was not run.
      with_note: Whether to explain the statistics above the table.
    """
    heads = ((content or {}).get("guided") or {}).get("heads")
    if not heads:
        return NOT_RUN_SENTENCE
    by_seed = {
        guide: {
            name: dict(zip(found["seeds"], found[name], strict=True)) for name in STATISTIC_TITLES
        }
        for guide, found in heads.items()
    }
    header, rows, pairs = ["guide", "models"], [], []
    for title in STATISTIC_TITLES.values():
        header += [title, "minus no guide", "p"]
    for guide, found in by_seed.items():
        row = [method_title(guide), str(len(heads[guide]["seeds"]))]
        for name in STATISTIC_TITLES:
            test = [EMPTY] * 2
            if guide != "none" and "none" in by_seed:
                unguided = by_seed["none"][name]
                test = format_test(found[name], unguided, name)[:2]
                pairs += [count_pairs(found[name], unguided)] * (test[1] != EMPTY)
            row += [format_mean(name, found[name].values()), *test]
        rows.append(row)
    table = markdown_table(header, rows)
    if not with_note:
        return table
    return "\n\n".join([_describe_statistics(next(iter(heads.values()))["pairs"], pairs), table])


def _describe_statistics(examples: int, pairs: list[int]) -> str:
    """Return a paragraph that explains the head statistics and the t-tests.

    Args:
      examples: Number of validation pairs that were measured.
      pairs: For each t-test, the number of seeds that it uses.
    """
    note = (
        f"The first {examples} pairs of the validation set with at most {MAX_TOKENS} tokens. "
        "Spread: squared distance of a query's weights from their mean over heads. Similarity: "
        "cosine of the attention that keys receive from two heads. Special tokens: the first token "
        "and the separators."
    )
    if pairs:
        note += (
            f" {len(pairs)} paired t-tests over {format_range(pairs)} seeds, two-sided; p is not "
            "corrected for the number of tests."
        )
    return note
