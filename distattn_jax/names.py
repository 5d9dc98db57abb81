"""Suggestions for misspelled names, for error messages."""

import difflib
from collections.abc import Iterable


def suggest(name: str, known_names: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name.

    The text suggests the most similar known name, or lists all known names if none is similar.
    """
    known = sorted(known_names)
    similar = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {similar[0]!r}?" if similar else f"known are: {', '.join(known)}."
