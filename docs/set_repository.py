"""Write the GitHub address of the project into its files, once it has one.

    python docs/set_repository.py OWNER/NAME

The address goes into pyproject.toml, CITATION.cff, the first cells of the notebooks (a badge that
opens the notebook in Colab, and the cell that installs the package there) and the README. Another
run with another address replaces it.
"""

import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
BADGE = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
OLD_BADGE = re.compile(r" ?" + re.escape(BADGE) + r"\([^)]*\)")
INSTALL = """\
# Only Colab needs this cell. It installs the package from its repository.
import importlib.util
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("distattn_jax") is None:
    import subprocess

    package = "distattn-jax @ git+{address}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)"""


def main(arguments: list[str], root: Path = ROOT) -> None:
    """Write the address into all files below `root`."""
    if len(arguments) != 1 or not re.fullmatch(r"[\w.-]+/[\w.-]+", arguments[0]):
        raise SystemExit("usage: python docs/set_repository.py OWNER/NAME")
    (repository,) = arguments
    address = f"https://github.com/{repository}"
    edit(root / "pyproject.toml", lambda text: set_urls(text, address))
    edit(root / "CITATION.cff", lambda text: set_code(text, address))
    edit(root / "README.md", lambda text: add_badges_to_table(text, repository))
    for path in sorted((root / "notebooks").glob("*.py")):
        edit(path, lambda text, name=path.stem: set_up_text(text, name, repository))
        set_up_notebook(path.with_suffix(".ipynb"), repository)


def edit(path: Path, change) -> None:
    """Replace the text of a file by `change(text)`."""
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


def make_badge(name: str, repository: str) -> str:
    """Return the badge of a notebook in Markdown."""
    place = f"github/{repository}/blob/main/notebooks/{name}.ipynb"
    return f"{BADGE}(https://colab.research.google.com/{place})"


def set_urls(text: str, address: str) -> str:
    """Return the text of pyproject.toml with the addresses of the project."""
    text = re.sub(r"\[project\.urls\]\n(?:\w+ = .*\n)*\n", "", text)
    urls = {"Repository": "", "Issues": "/issues", "Changelog": "/blob/main/CHANGELOG.md"}
    lines = [f'{name} = "{address}{path}"\n' for name, path in urls.items()]
    table = f"[project.urls]\n{''.join(lines)}\n"
    return text.replace(
        "[project.optional-dependencies]\n", f"{table}[project.optional-dependencies]\n"
    )


def set_code(text: str, address: str) -> str:
    """Return the text of CITATION.cff with the address of the code."""
    text = re.sub(r"^repository-code: .*\n", "", text, flags=re.MULTILINE)
    return text.replace("license:", f"repository-code: {address}\nlicense:", 1)


def add_badges_to_table(text: str, repository: str) -> str:
    """Return the text of the README with a badge in the row of each notebook."""
    row = re.compile(r"^(\| \[notebooks/(\w+)\.ipynb\]\([^)]*\) \| .*) \|$", re.MULTILINE)
    return row.sub(
        lambda found: f"{found[1]} {make_badge(found[2], repository)} |", OLD_BADGE.sub("", text)
    )


def add_badge_to_cell(source: str, name: str, repository: str) -> str:
    """Return the first cell of a notebook with a badge below its title."""
    title, _, rest = source.partition("\n")
    lines = [line for line in rest.split("\n") if not OLD_BADGE.fullmatch(line)]
    rest = "\n".join(lines).lstrip("\n")
    return f"{title}\n\n{make_badge(name, repository)}\n\n{rest}"


def set_up_text(text: str, name: str, repository: str) -> str:
    """Return the text version of a notebook with the badge and the cell that installs."""
    first, mark, rest = text.partition('# %% tags=["remove-cell"]\n')
    _, *cells = re.split(r"(?=^# %%)", rest, flags=re.MULTILINE)
    head, *lines = first.rstrip("\n").split("\n")
    source = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines)
    source = add_badge_to_cell(source, name, repository)
    commented = [f"# {line}".rstrip() for line in source.split("\n")]
    install = INSTALL.format(address=f"https://github.com/{repository}")
    return "\n".join([head, *commented, "", mark + install, "", "".join(cells)])


def set_up_notebook(path: Path, repository: str) -> None:
    """Add the badge and the cell that installs to a notebook. Its outputs stay as they are."""
    notebook = nbformat.read(path, as_version=4)
    first, second = notebook.cells[:2]
    first.source = add_badge_to_cell(first.source, path.stem, repository)
    second.source = INSTALL.format(address=f"https://github.com/{repository}")
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
