"""The picture in the README: arrows point down only."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each layer, and the layers of the project it may import. What is not listed does not exist.
LAYERS = {
    "experiments": {"distattn_jax"},
    "distattn_jax.plot": {"attention"},
    "distattn_jax.train": {
        *("attention", "guiding", "modules", "models", "data", "datasets", "sharding", "tree"),
    },
    "distattn_jax.datasets": {"data"},
    "distattn_jax.data": set(),
    "distattn_jax.sharding": set(),
    "distattn_jax.models": {"attention", "modules"},
    "distattn_jax.guiding": {"attention"},
    "distattn_jax.modules": {"attention"},
    "distattn_jax.attention": {"fused", "fused.gpu", "hash", "tree", "variants"},
    "distattn_jax.attention.variants": {"tree"},
    "distattn_jax.attention.fused": {"hash"},
    "distattn_jax.attention.fused.gpu": {"attention.fused", "hash"},
    "distattn_jax.hash": set(),
    "distattn_jax.tree": set(),
}
FORBIDDEN = {"distattn_jax.attention": {"flax", "optax"}, "distattn_jax.guiding": {"flax"}}


def layer_of(module: str) -> str:
    """The longest listed layer that a dotted name lies in."""
    inside = [layer for layer in LAYERS if f"{module}.".startswith(f"{layer}.")]
    return max(inside, key=len, default="distattn_jax" if module == "distattn_jax" else "")


def imported_by(path: Path) -> set[str]:
    """Dotted names of all that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def sources():
    packages = (ROOT / "distattn_jax", ROOT / "experiments")
    return [path for package in packages for path in sorted(package.rglob("*.py"))]


def upward_arrows(module: str, imports: set[str]) -> list[str]:
    """Imports that the picture does not allow to a module of this dotted name."""
    here = layer_of(module)
    wrong = []
    for name in imports:
        there = layer_of(name)
        if there and there != here and here != "experiments":
            allowed = {f"distattn_jax.{layer}" for layer in LAYERS.get(here, ())}
            allowed |= {f"{here}.{layer}" for layer in LAYERS.get(here, ())}
            if there not in allowed:
                wrong.append(name)
        if any(name.split(".")[0] == package for package in FORBIDDEN.get(here, ())):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_arrow_points_up(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if module != "distattn_jax":
        assert layer_of(module), f"{module} is in no layer of the picture"
    assert not upward_arrows(module, imported_by(path))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("distattn_jax.attention.call", "distattn_jax.modules.encoder"),
        ("distattn_jax.attention.call", "flax.nnx"),
        ("distattn_jax.guiding.loss", "distattn_jax.modules"),
        ("distattn_jax.models.text", "distattn_jax.plot"),
        ("distattn_jax.modules.encoder", "distattn_jax.train.loop"),
        ("distattn_jax.modules.encoder", "experiments.default"),
    ],
)
def test_an_arrow_that_points_up_is_found(module, name):
    assert upward_arrows(module, {name}) == [name]
