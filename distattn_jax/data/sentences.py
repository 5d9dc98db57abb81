"""A text cut into sentences, by a rule that can be read."""

import itertools
import re

# A run of marks, and what closes with it, before a space or the end of the text; the marks alone
# where sentences run together ("fine.But"), which reviews often do; or a line break.
END = re.compile(
    r"""
      [.!?](?:\ *[.!?])*["')\]”’]*(?=\s|$)
    | (?<=[a-z0-9])[.!?]+(?=[A-Z])
    | [\r\n]+
    """,
    re.VERBOSE,
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a text in order, each stripped and none empty.

    A sentence ends after a run of `.`, `!` and `?`, or with its line. A mark inside a word or a
    number (3.5, example.com) ends none; an abbreviation before a space (`Mr. `) does.

    >>> split_sentences("I paid 3.5 dollars... Worth it!!! (Really.)")
    ['I paid 3.5 dollars...', 'Worth it!!!', '(Really.)']
    """
    cuts = [0, *(end.end() for end in END.finditer(text)), len(text)]
    pieces = (text[start:stop].strip() for start, stop in itertools.pairwise(cuts))
    return [piece for piece in pieces if piece]
