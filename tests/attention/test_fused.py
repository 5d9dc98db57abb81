"""The fused kernels against the oracles and the reference: values, what is received, gradients.

Where there is no GPU they run in Pallas's interpreter, which is slow: few cases, each with many of
the things that can go wrong in it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import MAPPINGS, DistanceAware, DotProduct, attention, early_add
from tests import oracles
from tests.attention.cases import TOLERANCE, Sizes, inputs, needs_kernels
from tests.attention.test_parity import kept_by_dropout

pytestmark = needs_kernels
NEAR_AND_FAR = jnp.asarray([-0.5, 0.5]), jnp.asarray([1.0, -0.5])  # w and v of two heads


@pytest.fixture(autouse=True)
def kernels():
    """On a GPU as they are, elsewhere interpreted."""
    if jax.default_backend() == "gpu":
        yield
        return
    from distattn_jax.attention.fused.gpu.mosaic import (
        interpreted,  # what it needs, older JAX has not
    )

    with interpreted():
        yield


def outputs_and_gradients(implementation, arrays, variant, **arguments):
    """Outputs, and the gradients of a sum of them that weighs each entry differently, by name."""

    def loss(query, key, value, variant):
        attended = attention(query, key, value, variant, implementation=implementation, **arguments)
        total = jnp.float32(0)
        for output in jax.tree.leaves(attended):
            signs = jnp.sin(1 + jnp.arange(output.size, dtype=jnp.float32))
            total += (output.astype(jnp.float32) * signs.reshape(output.shape)).sum()
        return total, attended

    gradients, attended = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*arrays, variant)
    named = {"values": attended.values, "received": attended.received}
    named |= dict(zip(("dq", "dk", "dv"), gradients, strict=False))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients[3]):
        named[f"d{jax.tree_util.keystr(path)}"] = leaf
    return {name: x for name, x in named.items() if x is not None}


def assert_close(actual: dict, expected: dict, dtype):
    """No entry is off by much of its array's largest; NaN is."""
    for name, wanted in expected.items():
        wanted = np.asarray(wanted, np.float64)
        off = np.abs(np.asarray(actual[name], np.float64) - wanted).max()
        off /= max(np.abs(wanted).max(), 1e-6)
        assert off <= TOLERANCE[dtype], f"{name}: {off:.1e}"


def checked(arrays, variant, **arguments) -> dict[str, np.ndarray]:
    """What the kernels give, held to the reference on the same numbers in float32."""

    def by(implementation, arrays):
        def program(arrays, variant):
            return outputs_and_gradients(implementation, arrays, variant, **arguments)

        return jax.tree.map(np.asarray, jax.jit(program)(arrays, variant))

    fused = by("pallas", arrays)
    exact = by("reference", [x.astype(jnp.float32) for x in arrays])
    assert_close(fused, exact, str(arrays[0].dtype))
    return fused


def by_oracle(oracle, arrays, **arguments) -> dict[str, np.ndarray]:
    arrays, arguments = jax.tree.map(np.asarray, (arrays, arguments))
    values, received, _ = oracles.attend(*arrays, **oracle, **arguments)
    return {"values": values, "received": received}


@pytest.fixture(params=["short", "long"])
def blocks(request, monkeypatch):
    """Those for short maps, and those for long ones."""
    if request.param == "long":
        monkeypatch.setattr("distattn_jax.attention.fused.gpu.tile_configs.SHORTEST_LONG", 1)
    jax.clear_caches()  # programs remember their blocks
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("blocks")
def test_dot_product_with_tails_in_every_block():
    sizes = Sizes(batch=1, queries=130, keys=70, heads=1, width=16, value_width=32)
    arrays = inputs(sizes, "float16")
    fused = checked(arrays, DotProduct(), received=True)
    assert_close(fused, by_oracle(oracles.dot_product(), arrays), "float16")


RESTRICTIONS = {
    "query_lengths": jnp.asarray([131, 140, 0]),
    "key_lengths": jnp.asarray([135, 0, 150]),
    "query_offset": jnp.asarray([-9, 3, 0]),
    "is_causal": True,
}


def restricted(sizes: Sizes, dtype) -> list[jax.Array]:
    """Inputs that are large where nobody should look."""
    query, key, value = inputs(sizes, dtype)

    def filled(x, lengths):
        inside = jnp.arange(x.shape[1])[None, :] < lengths[:, None]
        return jnp.where(inside[:, :, None, None], x, 100)

    keys = RESTRICTIONS["key_lengths"]
    return [filled(query, RESTRICTIONS["query_lengths"]), filled(key, keys), filled(value, keys)]


def assert_nothing_where_nothing_is_seen(fused, sizes):
    B, T, S, N, *_ = sizes
    lengths = [np.asarray(RESTRICTIONS[name]) for name in list(RESTRICTIONS)[:3]]
    visible = oracles.visible_pairs((B, N, T, S), None, *lengths)
    blind, unseen = ~visible.any(axis=3), ~visible.any(axis=2)
    assert blind[0, 0].sum() == 9 + 9, "before the first key, and beyond the length"
    for name, where in {"values": blind, "dq": blind, "dk": unseen, "dv": unseen}.items():
        assert not fused[name].swapaxes(1, 2)[where].any(), name
    if "received" in fused:
        assert not fused["received"][unseen].any()


def test_distance_aware_under_every_restriction():
    sizes = Sizes(batch=3, queries=140, keys=150, heads=2, width=16, value_width=16)
    arrays = restricted(sizes, "bfloat16")
    fused = checked(arrays, DistanceAware(*NEAR_AND_FAR), received=True, **RESTRICTIONS)
    oracle = oracles.distance_aware(*NEAR_AND_FAR, "learnable_sigmoid", "early_multiply")
    assert_close(fused, by_oracle(oracle, arrays, **RESTRICTIONS), "bfloat16")
    assert_nothing_where_nothing_is_seen(fused, sizes)


def test_dropout_drops_what_the_others_drop():
    sizes = Sizes(batch=3, queries=140, keys=150, heads=1, width=24, value_width=20)
    arrays, (weight, shape) = restricted(sizes, "float16"), (x[:1] for x in NEAR_AND_FAR)
    rate, key = 0.3, jax.random.key(3)
    variant = DistanceAware(weight, shape)
    fused = checked(arrays, variant, dropout_rate=rate, dropout_key=key, **RESTRICTIONS)
    oracle = oracles.distance_aware(weight, shape, "learnable_sigmoid", "early_multiply")
    kept = kept_by_dropout(3, rate, sizes)
    expected = by_oracle(oracle, arrays, kept=kept, dropout_rate=rate, **RESTRICTIONS)
    assert_close(fused, {"values": expected["values"]}, "float16")
    assert_nothing_where_nothing_is_seen(fused, sizes)


# From here on float16, which holds the gradients of the parameters closely: they are sums of many
# terms A (dO · V - D) of both signs, and in D = dO · O the values are as rounded as they are given.


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(
    ("blocks", "is_causal"), [("long", False), ("short", True)], indirect=["blocks"]
)
def test_where_f_has_saturated_nothing_changes(is_causal):
    """One head that averages what is far, one to which all that is far is the same."""
    sizes = Sizes(batch=1, queries=300, keys=300, heads=2, width=16, value_width=16)
    variant = DistanceAware(*NEAR_AND_FAR, tolerance=2.0**-10)
    checked(inputs(sizes, "float16"), variant, received=True, is_causal=is_causal)


OFFSET = {
    "not yet a constant": DistanceAware(jnp.asarray([0.002]), jnp.asarray([2.0])),
    "a negative one": DistanceAware(jnp.asarray([0.5]), jnp.asarray([-1.0]), MAPPINGS["clip"]),
}


@pytest.mark.parametrize("name", OFFSET)
def test_where_all_keys_are_far_a_tolerance_changes_nothing(name):
    sizes = Sizes(batch=1, queries=20, keys=40, heads=1, width=16, value_width=16)
    query, key, value = inputs(sizes, "float16")
    tolerant, exact = (
        jax.jit(
            lambda *arrays, variant: outputs_and_gradients(
                "pallas", arrays, variant, query_offset=1000
            )
        )(8 * query, key, value, variant=dataclasses.replace(OFFSET[name], tolerance=tolerance))
        for tolerance in (1e-3, 0.0)
    )
    assert_close(tolerant, exact, "float16")


WEIGHT = jnp.asarray([0.03])
OTHERS = {
    "sigmoid": DistanceAware(WEIGHT, (), MAPPINGS["sigmoid"]),
    "exponent": DistanceAware(WEIGHT, (), MAPPINGS["exponent"]),
    "linear": DistanceAware(WEIGHT, (jnp.asarray([0.8]), jnp.asarray([0.3])), MAPPINGS["linear"]),
    "clip": DistanceAware(WEIGHT, jnp.asarray([1.01]), MAPPINGS["clip"]),
    "early_add": DistanceAware(WEIGHT, jnp.asarray([0.4]), adjust=early_add),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_mappings_and_adjustments(name):
    sizes = Sizes(batch=1, queries=40, keys=50, heads=1, width=16, value_width=16)
    arrays, variant = inputs(sizes, "float16"), OTHERS[name]
    fused = checked(arrays, variant)
    chosen = ("learnable_sigmoid", name) if name == "early_add" else (name, "early_multiply")
    oracle = oracles.distance_aware(WEIGHT, variant.shape, *chosen)
    assert_close(fused, {"values": by_oracle(oracle, arrays)["values"]}, "float16")


def test_seeds_in_a_vmap_and_layers_in_a_scan_change_nothing():
    """Two layers of two seeds, each with arrays, w and v of its own."""
    sizes = Sizes(batch=4, queries=20, keys=30, heads=1, width=16, value_width=16)
    arrays = [x.reshape(2, 2, 1, *x.shape[1:]) for x in inputs(sizes, "float16")]
    weight, shape = jnp.asarray([-0.5, 0.1, 0.5, -0.2]), jnp.asarray([1.0, 0.3, -0.5, 0.0])
    variant = jax.tree.map(lambda leaf: leaf.reshape(2, 2, 1), DistanceAware(weight, shape))

    def program(implementation, arrays, variant):
        def layer(_, layer):
            seeds = jax.vmap(lambda seed: outputs_and_gradients(implementation, *seed))
            return None, seeds(layer)

        return jax.lax.scan(layer, None, (arrays, variant))[1]

    fused = jax.jit(lambda *x: program("pallas", *x))(arrays, variant)
    exact = jax.jit(lambda *x: program("reference", *x))(
        [x.astype(jnp.float32) for x in arrays], variant
    )
    for layer in np.ndindex(2, 2):
        one, other = (jax.tree.map(lambda x, at=layer: x[at], x) for x in (fused, exact))
        assert_close(one, other, "float16")
