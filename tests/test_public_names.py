"""Public names are those of public_names.txt, and each change of them is in CHANGELOG.md.

A line of the file is a name. A name that is newer than the list has the mark "# added in VERSION".
A name that is gone stays in the list and has the mark "# removed in VERSION", or both marks with a
comma between them. The section of CHANGELOG.md about that version must mention the name.
"""

import hashlib
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).parent / "public_names.txt"
CHANGELOG = ROOT / "CHANGELOG.md"
LINE = re.compile(
    r"(?P<name>[\w.]+)"
    r"(?:  # (?:added in (?P<added>[\d.]+))?(?:, )?(?:removed in (?P<removed>[\d.]+))?)?"
)
# Digest of the names that are not marked as added, so that a new name needs the mark.
FIRST_LIST = "3909132769e9394841871473aed6553fd05508ce5771ee2b2005c95624b6f518"


def find_public_names():
    """Return the names in `__all__` of each package that the reference documents."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    packages = re.findall(r"^\.\. public-names:: (\S+)", pages, re.MULTILINE)
    return {f"{name}.{each}" for name in packages for each in importlib.import_module(name).__all__}


def read_lines():
    return [LINE.fullmatch(line) for line in LIST.read_text().splitlines()]


def read_section(version):
    """Return the section of CHANGELOG.md about one version."""
    pattern = rf"^## {re.escape(version)}\b(.*?)(?=^## |\Z)"
    return "".join(re.findall(pattern, CHANGELOG.read_text(), re.DOTALL | re.MULTILINE))


def test_the_list_has_exactly_the_public_names():
    present = {line["name"] for line in read_lines() if line["removed"] is None}
    names = find_public_names()
    advice = "To tests/public_names.txt, and to CHANGELOG.md"
    assert not names - present, f"{advice}, add these with the mark '  # added in VERSION'."
    assert not present - names, f"{advice}, add that these are removed: '  # removed in VERSION'."


def test_the_list_is_sorted_and_a_new_name_has_a_mark():
    names = [line["name"] for line in read_lines()]
    assert names == sorted(names)
    first = [line["name"] for line in read_lines() if line["added"] is None]
    digest = hashlib.sha256("\n".join(first).encode()).hexdigest()
    assert digest == FIRST_LIST, "A new name needs the mark '  # added in VERSION'."


def test_the_changelog_mentions_every_added_and_every_removed_name():
    silent = [
        line["name"]
        for line in read_lines()
        for version in (line["added"], line["removed"])
        if version is not None
        and not re.search(
            rf"`[^`\n]*\b{line['name'].rpartition('.')[2]}\b[^`\n]*`", read_section(version)
        )
    ]
    assert not silent, "CHANGELOG.md must mention these changed names, in code quotes."
