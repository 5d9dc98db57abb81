"""Imports between layers: a module imports only the layers that the table allows."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each layer, and the layers that it may import besides itself. A short name is relative to
# distattn_jax or to the layer of its row. "distattn_jax" allows every layer of the package.
LAYERS = {
    "experiments.__main__": {"distattn_jax", "experiments", "experiments.commands"},
    "experiments.commands": {
        "distattn_jax",
        "experiments.bench",
        "experiments.papers",
        "experiments.recipes",
    },
    "experiments.bench": {"distattn_jax", "experiments.papers"},
    "experiments.papers": {"distattn_jax", "experiments.recipes"},
    "experiments.recipes": {"experiments", "names", "tasks", "train"},
    "experiments": set(),
    "distattn_jax.plot": {"attention"},
    "distattn_jax.tasks": {
        *("attention", "guiding", "modules", "models", "data", "datasets", "train"),
        *("names", "sharding", "token_scores", "tree"),
    },
    "distattn_jax.train": {"attention", "data", "names", "sharding", "token_scores", "tree"},
    "distattn_jax.datasets": {"data"},
    "distattn_jax.data": {"token_ids"},
    "distattn_jax.sharding": set(),
    "distattn_jax.models": {"attention", "modules", "token_ids", "token_scores"},
    "distattn_jax.guiding": {"attention"},
    "distattn_jax.modules": {"attention"},
    "distattn_jax.attention": {"fused", "fused.gpu", "fused.tpu", "hash", "tree", "variants"},
    "distattn_jax.attention.variants": {"tree"},
    "distattn_jax.attention.fused": {"attention.variants", "hash"},
    "distattn_jax.attention.fused.gpu": {"attention.fused", "hash"},
    "distattn_jax.attention.fused.tpu": {"attention.fused", "hash"},
    "distattn_jax.hash": set(),
    "distattn_jax.names": set(),
    "distattn_jax.token_ids": set(),
    "distattn_jax.token_scores": set(),
    "distattn_jax.tree": set(),
}
# Recipes, and all that they import, must start fast, without these packages.
SLOW = {"matplotlib", "pandas", "scipy"}
# Third-party packages that a layer, including the layers inside it, must not import.
FORBIDDEN = {
    "distattn_jax.attention": {"flax", "optax", *SLOW},
    "distattn_jax.guiding": {"flax", *SLOW},
    "distattn_jax.modules": SLOW,
    "distattn_jax.models": SLOW,
    "distattn_jax.data": SLOW,
    "distattn_jax.datasets": SLOW,
    "distattn_jax.train": SLOW,
    "distattn_jax.tasks": SLOW,
    "experiments.recipes": SLOW,
}


def is_inside(module: str, layer: str) -> bool:
    return f"{module}.".startswith(f"{layer}.")


def find_layer(module: str) -> str | None:
    """Return the innermost layer of a module, or None if no layer contains it."""
    return max((layer for layer in LAYERS if is_inside(module, layer)), key=len, default=None)


def find_imports(path: Path) -> set[str]:
    """Return the dotted names that a file imports, at its top or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            names |= {f"{prefix}.{alias.name}" for alias in node.names}
    return names


def find_violations(module: str, imports: set[str]) -> set[str]:
    """Return the imports that the table does not allow to a module."""
    layer = find_layer(module)
    row = LAYERS.get(layer, set())
    allowed = (
        {layer} | row | {f"{prefix}.{name}" for prefix in ("distattn_jax", layer) for name in row}
    )
    violations = set()
    for name in imports:
        target = find_layer(name)
        is_allowed = (
            target is None
            or target in allowed
            or ("distattn_jax" in row and is_inside(target, "distattn_jax"))
        )
        is_forbidden = any(
            is_inside(module, outer) and name.split(".")[0] in packages
            for outer, packages in FORBIDDEN.items()
        )
        if name.startswith(".") or is_forbidden or not is_allowed:
            violations.add(name)
    return violations


@functools.cache
def find_modules() -> dict[str, set[str]]:
    """Return the dotted name and the imports of every module of the repository."""
    paths = [
        path
        for package in ("distattn_jax", "experiments")
        for path in (ROOT / package).rglob("*.py")
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return {
        name.removesuffix(".__init__"): find_imports(path)
        for name, path in zip(names, paths, strict=True)
    }


def test_modules_import_only_what_the_table_allows():
    wrong = [
        f"{module} imports {name}"
        for module, imports in sorted(find_modules().items())
        for name in sorted(find_violations(module, imports))
    ]
    assert not wrong, "\n".join(["Imports that the table does not allow:", *wrong])


def test_every_module_is_in_a_layer_and_every_layer_has_a_module():
    modules = find_modules().keys() - {"distattn_jax"}
    assert {module for module in modules if find_layer(module) is None} == set()
    assert LAYERS.keys() - {find_layer(module) for module in modules} == set()


# Imports of modules, and if the table allows them.
EXAMPLES = {
    ("distattn_jax", "distattn_jax.modules"): False,
    ("distattn_jax.attention.call", "distattn_jax.attention.fused.derivative"): True,
    ("distattn_jax.attention.call", "flax.nnx"): False,
    ("distattn_jax.attention.call", ".reference"): False,
    ("distattn_jax.attention.fused.schedule", "distattn_jax.attention.call"): False,
    ("distattn_jax.attention.fused.schedule", "optax"): False,
    ("distattn_jax.models.text", "distattn_jax.plot"): False,
    ("distattn_jax.modules.encoder", "experiments.default"): False,
    ("distattn_jax.modules.encoder", "flax.nnx"): True,
    ("distattn_jax.tasks.guides", "distattn_jax.guiding"): True,
    ("distattn_jax.tasks.inspection", "pandas"): False,
    ("experiments.bench.cases", "experiments.commands.bench"): False,
    ("experiments.commands.report", "experiments.commands.train.run"): True,
    ("experiments.papers.statistics", "distattn_jax.plot"): True,
    ("experiments.recipes.ag", "distattn_jax.models"): False,
}


@pytest.mark.parametrize(("module", "name"), EXAMPLES)
def test_a_forbidden_import_is_detected(module, name):
    assert find_violations(module, {name}) == (set() if EXAMPLES[module, name] else {name})
