"""First lines of docstrings name the thing, or say what it does."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    *("What", "Which", "Those", "That", "Of", "As", "With", "Where", "Whether", "How", "By")
}


def find_docstrings(path: Path):
    """Yield name and docstring of the module, and of every class and function in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield getattr(node, "name", "module"), docstring


def test_no_docstring_opens_with_a_question_word():
    wrong = [
        f"{path.relative_to(ROOT)}: {name}: {docstring.splitlines()[0]}"
        for folder in ("distattn_jax", "experiments", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, docstring in find_docstrings(path)
        if docstring.split()[0].rstrip(",:;.") in FORBIDDEN
    ]
    assert not wrong
