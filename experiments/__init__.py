"""Experiments: recipes, benchmarks, tables and figures of the papers, and the command line."""

from pathlib import Path


def summarize_modules(folder: Path) -> dict[str, str]:
    """Return a dict from the name of each module in a folder to the first line of its docstring.

    The modules are not imported. Modules whose names start with an underscore are left out.
    """
    import ast  # later, because Ctrl-C before the first line of `__main__` prints a traceback

    summaries = {}
    for path in sorted(folder.glob("*.py")):
        if not path.name.startswith("_"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            summaries[path.stem] = docstring.partition("\n")[0]
    return summaries
