"""Kernel views: one per variant, found by exact type, for whole calls and for blocks of keys."""

import ast
import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import attention as package
from distattn_jax.attention import (
    Adapted,
    DistanceAware,
    DistanceBias,
    DotProduct,
    RelativePosition,
    TransformerXL,
    Variant,
    attention,
    devices,
    product,
    variant,
)
from distattn_jax.attention.fused import derivative, interpreter
from distattn_jax.attention.fused.attend import Inputs, Settings, prepare
from distattn_jax.attention.fused.kernel_view import KERNEL_VIEWS
from distattn_jax.attention.fused.operands import BackwardOperands
from distattn_jax.attention.fused.scoring import Scoring
from distattn_jax.attention.fused.variants import find_view
from distattn_jax.attention.fused.visible_columns import Window
from tests.attention.cases import Sizes, inputs, needs_kernels
from tests.evaluation import evaluate, interpreted

ROOT = Path(package.__file__).parent
DOCUMENTATION = ROOT.parent.parent / "docs" / "variants.md"


def find_type_tests(path: Path, names: set[str]) -> list[str]:
    """Return the places that compare the type of an object with one of the named classes."""

    def mentions(node: ast.AST) -> bool:
        return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))

    def is_call(node: ast.AST, name: str) -> bool:
        return isinstance(node, ast.Call) and getattr(node.func, "id", "") == name

    places = []
    for node in ast.walk(ast.parse(path.read_text())):
        is_test = is_call(node, "isinstance") and mentions(node.args[1])
        if isinstance(node, ast.Compare) and is_call(node.left, "type"):
            is_test = any(map(mentions, node.comparators))
        if is_test:
            places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return places


def test_only_the_modules_of_a_variant_ask_for_its_type(tmp_path, monkeypatch):
    def subclasses(cls: type) -> set[type]:
        return {cls}.union(*map(subclasses, cls.__subclasses__()))

    classes = (subclasses(Variant) | subclasses(Scoring)) - {Variant}
    names = {cls.__name__ for cls in classes if cls.__module__.startswith("distattn_jax.")}
    paths = [path for path in ROOT.rglob("*.py") if path.parent.name != "variants"]
    assert len(paths) > 40
    assert [place for path in paths for place in find_type_tests(path, names)] == []
    planted = tmp_path / "planted.py"
    planted.write_text("isinstance(x, A | DotProduct)\ntype(x) is TableScoring\nisinstance(x, A)")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert find_type_tests(planted, names) == ["planted.py:1", "planted.py:2"]


@variant
class Doubled(DistanceAware):
    """Distance-aware attention with other scores."""

    def scores(self, query, key, relative_positions, scale):
        return 2 * super().scores(query, key, relative_positions, scale)


@variant
class DoubledAdapted(Adapted):
    """Adapted attention with other scores, which `as_dot_product` of `Adapted` does not give."""

    def scores(self, query, key, relative_positions, scale):
        return 2 * super().scores(query, key, relative_positions, scale)


@variant
class Projected(Variant):
    """Attention that its own `as_dot_product` writes as dot products."""

    def scores(self, query, key, relative_positions, scale):
        return scale * product(2 * query, key)

    def as_dot_product(self, query, key, offset):
        return 2 * query, key


def test_a_subclass_with_other_scores_has_no_kernel():
    ones = jnp.ones((2, 4))
    for inherited in (Doubled(ones[:, 0], ones[:, 0]), DoubledAdapted(ones, ones)):
        assert find_view(inherited) is None
        assert inherited.as_dot_product is None
    for served in (DotProduct(), Adapted(ones, ones), Projected()):
        assert find_view(served) is not None


@needs_kernels
def test_the_documented_kernel_of_an_own_variant_equals_its_equation():
    """Run the example of docs/variants.md, and the view that it registers, in the interpreter."""
    section = DOCUMENTATION.read_text().split("## A kernel for your own variant")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    namespace: dict = {}
    exec(compile(code, str(DOCUMENTATION), "exec"), namespace)
    own = namespace["Tilted"](jnp.asarray([0.3, -0.1]))
    assert type(own) in KERNEL_VIEWS
    arrays = inputs(Sizes(queries=9, keys=17, heads=2, width=16, value_width=16), "float32")

    def compute(implementation, query, own):
        values = attention(query, *arrays[1:], own, implementation=implementation).values
        return jnp.sum(values * jnp.cos(jnp.arange(16.0))[None, None, None])

    machine = devices.local_machine()._replace(platform="tpu")
    with devices.assumed(machine), interpreted():
        fused = evaluate(jax.grad(lambda *x: compute("pallas", *x), (0, 1)), arrays[0], own)
    expected = evaluate(jax.grad(lambda *x: compute("reference", *x), (0, 1)), arrays[0], own)
    for actual, desired in zip(*map(jax.tree.leaves, (fused, expected)), strict=True):
        np.testing.assert_allclose(actual, desired, rtol=2e-5, atol=2e-5)


DIFFERENTIABLE = (
    *("query", "key", "value", "coefficients", "factor_table", "bias_table"),
    *("relation_products", "position_query", "positions"),
)
HEADS, WIDTH, OFFSET = 2, 16, 9


def make_variants() -> dict[str, Variant]:
    generator = np.random.default_rng(0)

    def draw(*shape):
        return jnp.asarray(generator.normal(size=shape), jnp.float32)

    return {
        "distance_aware": DistanceAware(jnp.asarray([-0.5, 0.3]), draw(HEADS)),
        "kerple": DistanceBias((jnp.ones(HEADS), jnp.full(HEADS, 0.5)), "kerple_log"),
        "relative_position": RelativePosition(keys=draw(HEADS, 7, WIDTH)),
        "transformer_xl": TransformerXL(draw(HEADS, 6, WIDTH), draw(1, WIDTH), draw(1, WIDTH)),
    }


@needs_kernels
@pytest.mark.parametrize("name", make_variants())
def test_blocks_of_keys_add_up_to_the_whole_call(name):
    """Each block is computed alone, backward with the logsumexp and the values of all blocks.

    One program computes both blocks, because their first key is one of its arguments.
    """
    from distattn_jax.attention.fused.tpu.kernels import make_kernels

    chosen = make_variants()[name]
    sizes = Sizes(batch=1, queries=16, keys=32, heads=HEADS, width=WIDTH, value_width=WIDTH)
    arrays = *inputs(sizes, "float32"), chosen
    cotangent = jnp.cos(jnp.arange(arrays[0].size, dtype=jnp.float32)).reshape(arrays[0].shape)
    is_causal = name == "distance_aware"  # The mask does not depend on the variant.
    window = Window(right=0 if is_causal else None)
    settings = Settings(WIDTH**-0.5, window, False, True, widths=(WIDTH,))

    def make_operands(first_key, *block):
        position = jnp.full(1, OFFSET, jnp.int32)
        plan, operands = prepare(settings, Inputs(*block, position, first_key))
        operands = derivative.complete_operands(plan, operands)
        return {field: getattr(operands, field) for field in DIFFERENTIABLE}, (plan, operands)

    @jax.jit
    def run_forward(first_key, *block):
        _, (plan, operands) = make_operands(first_key, *block)
        outputs = derivative.forward_block(kernels, plan, operands)
        return outputs.values, derivative.to_natural_logsumexp(outputs.logsumexp, 16)

    @jax.jit
    def run_backward(logsumexp, values, first_key, *block):
        make = functools.partial(make_operands, first_key)
        _, pull_back, (plan, operands) = jax.vjp(make, *block, has_aux=True)
        logsumexp = derivative.from_natural_logsumexp(logsumexp)
        backward = BackwardOperands(cotangent, None, logsumexp, values)
        found = derivative.backward_block(kernels, plan, operands, backward)
        return pull_back({field: getattr(found, field) for field in DIFFERENTIABLE})

    def compute_in_blocks(query, key, value, chosen):
        blocks = [
            (jnp.full(1, start, jnp.int32), query, key[:, part], value[:, part], chosen)
            for start, part in ((0, slice(0, 16)), (16, slice(16, 32)))
        ]
        block_values, block_logsumexp = zip(*(run_forward(*block) for block in blocks), strict=True)
        logsumexp = jnp.logaddexp(*block_logsumexp)
        values = sum(
            jnp.swapaxes(jnp.exp(own - logsumexp), 1, 2)[..., None] * x
            for own, x in zip(block_logsumexp, block_values, strict=True)
        )
        gradients = [run_backward(logsumexp, values, *block) for block in blocks]
        (first_query, *first), (second_query, *second) = gradients
        key_gradient, value_gradient = (
            jnp.concatenate(parts, axis=1) for parts in zip(first[:2], second[:2], strict=True)
        )
        variant_gradient = jax.tree.map(jnp.add, first[2], second[2])
        return values, first_query + second_query, key_gradient, value_gradient, variant_gradient

    def compute_whole(*arrays):
        arguments = {"query_offset": OFFSET, "is_causal": is_causal}
        attend = functools.partial(attention, implementation="reference", **arguments)
        values, pull_back = jax.vjp(lambda *x: attend(*x).values, *arrays)
        return values, *pull_back(cotangent)

    with interpreted():
        kernels = interpreter.select_kernels(make_kernels)
        actual = compute_in_blocks(*arrays)
    desired = evaluate(compute_whole, *arrays)
    for x, y in zip(*map(jax.tree.leaves, (actual, desired)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=5e-5)
