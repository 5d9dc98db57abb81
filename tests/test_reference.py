"""The reference of the documentation covers every public package and page."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Packages inside of the attention layer, whose public names are those of `distattn_jax.attention`.
PRIVATE = "distattn_jax.attention."


def test_every_public_package_has_a_reference():
    pages = "".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    documented = re.findall(r"^\.\. public-names:: (\S+)", pages, re.MULTILINE)
    packages = [
        ".".join(file.parent.relative_to(ROOT).parts)
        for file in (ROOT / "distattn_jax").rglob("__init__.py")
        if "__all__" in file.read_text(encoding="utf-8")
    ]
    assert sorted(documented) == sorted(x for x in packages if not x.startswith(PRIVATE))


def test_the_table_of_contents_lists_every_page_and_notebook():
    index = (DOCS / "index.md").read_text()
    listed = " ".join(re.findall(r"^```{toctree}\n(.*?)^```", index, re.DOTALL | re.MULTILINE))
    pages = [page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")]
    notebooks = [f"../notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")]
    expected = {str(page) for page in pages if page.parts[0] not in ("_build", "index")}
    assert expected | set(notebooks) <= set(listed.split())
