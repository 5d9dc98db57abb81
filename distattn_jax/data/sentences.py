"""Split a text into sentences with one regular expression."""

import itertools
import re

# A sentence ends at one of these:
# - marks and closing quotes or brackets, before white space or the end of the text;
# - marks between a lower-case letter or digit and a capital ("fine.But"), common in reviews;
# - a line break.
END = re.compile(
    r"""
      [.!?](?:\ *[.!?])*["')\]”’]*(?=\s|$)
    | (?<=[a-z0-9])[.!?]+(?=[A-Z])
    | [\r\n]+
    """,
    re.VERBOSE,
)


def split_sentences(text: str) -> list[str]:
    """Return the nonempty sentences of a text in order, without surrounding white space.

    A sentence ends after a run of `.`, `!` and `?`, or at a line break. Marks inside a word or a
    number (example.com, 3.5) are ignored. The abbreviation `Mr.` wrongly
    ends a sentence.

    >>> split_sentences("I paid 3.5 dollars... Worth it!!! (Really.)")
    ['I paid 3.5 dollars...', 'Worth it!!!', '(Really.)']
    """
    cuts = [0, *(end.end() for end in END.finditer(text)), len(text)]
    pieces = (text[start:stop].strip() for start, stop in itertools.pairwise(cuts))
    return [piece for piece in pieces if piece]
