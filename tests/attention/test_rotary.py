"""Rotary positions: the rotation, its frequencies, and scores of rotated queries and keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax.attention import Rotary, rotary, rotate
from tests import oracles
from tests.unchecked import as_users_have_it

B, T, N, H = 2, 5, 2, 8
X = np.random.default_rng(0).normal(size=(B, T, N, H))
STEPS = np.arange(T)
OPTIONS = {
    "llama": Rotary(),
    "paper": Rotary(interleaved=True),
    "share": Rotary(base=500_000.0, share=0.8),  # W = 6
    "linear": Rotary(linear_factor=4.0),
    "ntk": Rotary(share=0.5, ntk_factor=8.0, interleaved=True),
}
FAR = np.asarray([STEPS, 30_000 + STEPS])  # positions of the two examples
compiled = functools.partial(jax.jit, static_argnums=1)(rotate)


def rotate_by_oracle(x, options, positions):
    return oracles.rotate(
        x,
        positions,
        options.base,
        int(options.share * H),
        options.linear_factor,
        options.ntk_factor,
        options.interleaved,
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_rotation_equals_the_oracle(options):
    found = compiled(jnp.float32(X), options, FAR)
    np.testing.assert_allclose(found, rotate_by_oracle(X, options, FAR), atol=1.5e-6)


@pytest.mark.parametrize(
    ("positions", "expanded"),
    [
        (2000, [2000 + STEPS] * B),
        (np.asarray([0, 30_000]), FAR),
        (np.asarray([[7, 3, 1, 0, 90]]), [[7, 3, 1, 0, 90]] * B),
    ],
    ids=["first", "first of each example", "shared by all examples"],
)
def test_positions_may_be_those_of_the_first_tokens(positions, expanded):
    found = compiled(jnp.float32(X), Rotary(), positions)
    np.testing.assert_allclose(found, rotate_by_oracle(X, Rotary(), expanded), atol=1.5e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2**-8), ("float64", 1e-10)])
def test_the_result_has_the_dtype_of_the_input(dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(X, dtype)
        found = compiled(x, Rotary(), FAR)
        assert found.dtype == dtype
        wanted = rotate_by_oracle(x, Rotary(), FAR)
        np.testing.assert_allclose(found.astype(float), wanted, atol=tolerance, rtol=tolerance)


# -- Hugging Face: the definitions in its models, written again here in NumPy


def llama_frequencies(base, width, scaling=None, factor=1.0):
    """Return 1 / base^(2c/width) with the rope_scaling "linear", or "ntk" with a fixed factor.

    The type "dynamic" of Hugging Face with factor f is "ntk" with the factor
    f length / trained length - (f - 1).
    """
    if scaling == "ntk":
        base = base * factor ** (width / (width - 2))
    frequencies = 1.0 / (base ** (np.arange(0, width, 2) / width))
    return frequencies / factor if scaling == "linear" else frequencies


def rotate_like_llama(x, angles):
    """Return x cos + rotate_half(x) sin, as in Llama and GPT-NeoX."""
    angles = np.concatenate([angles, angles], axis=-1)[None, :, None]
    half = x.shape[-1] // 2
    rotated_half = np.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * np.cos(angles) + rotated_half * np.sin(angles)


def rotate_like_gptj(x, angles):
    """Return x cos + rotate_every_two(x) sin, as in GPT-J."""
    angles = np.repeat(angles, 2, axis=-1)[None, :, None]
    every_two = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return x * np.cos(angles) + every_two * np.sin(angles)


@pytest.mark.parametrize(
    ("options", "width", "apply", "scaling"),
    [
        (Rotary(), H, rotate_like_llama, {}),
        (Rotary(share=0.25 * 3), 6, rotate_like_llama, {}),  # partial_rotary_factor
        (Rotary(share=0.5, interleaved=True), 4, rotate_like_gptj, {}),  # rotary_dim
        (Rotary(linear_factor=3.0), H, rotate_like_llama, {"scaling": "linear", "factor": 3.0}),
        (Rotary(ntk_factor=3.0), H, rotate_like_llama, {"scaling": "ntk", "factor": 3.0}),
    ],
    ids=["llama", "gpt_neox", "gptj", "linear", "ntk"],
)
def test_rotation_equals_hugging_face(options, width, apply, scaling):
    positions = 1000 * STEPS[None].repeat(B, axis=0)
    angles = positions[0, :, None] * llama_frequencies(options.base, width, **scaling)
    wanted = np.concatenate([apply(X[..., :width], angles), X[..., width:]], axis=-1)
    np.testing.assert_allclose(compiled(jnp.float32(X), options, positions), wanted, atol=1e-6)


# -- scores


def test_scores_depend_only_on_the_difference_of_positions():
    scores = []
    for first in (0, 1, 1000, 123_456_789):
        query, key = (compiled(jnp.float32(x), Rotary(), first) for x in (X, X[::-1]))
        scores.append(np.einsum("btnh,bsnh->bnts", query, key))
    for shifted in scores[1:]:
        np.testing.assert_allclose(shifted, scores[0], atol=1e-5)
    unrotated = np.einsum("btnh,bsnh->bnts", X, X[::-1])
    change = np.abs(scores[0] - unrotated).max(axis=(0, 1))
    assert (change < 1e-5).tolist() == np.eye(T, dtype=bool).tolist()


def test_ntk_scaling_keeps_the_highest_frequency_and_divides_the_lowest():
    before, after = (Rotary(ntk_factor=factor).frequencies(H) for factor in (1.0, 8.0))
    np.testing.assert_allclose(after[0], before[0])
    np.testing.assert_allclose(after[-1], before[-1] / 8)


# -- errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": 0.0}, r"Rotary\.base must be a Python number above 0; got 0\.0"),
        ({"base": float("inf")}, r"Rotary\.base must .* got inf"),
        ({"share": 0.0}, r"Rotary\.share must be a Python number above 0"),
        ({"share": 1.5}, r"Rotary\.share must be above 0 and at most 1; got 1\.5"),
        ({"linear_factor": -2.0}, r"Rotary\.linear_factor must .* got -2\.0"),
        ({"ntk_factor": "8"}, r"Rotary\.ntk_factor must .* got '8'"),
        ({"interleaved": 1}, r"Rotary\.interleaved must be True or False; got 1"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        as_users_have_it(rotary).Rotary(**options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[..., :7], Rotary()), r"Rotary\.share \(1\.0\) must rotate an even number .* got 7"),
        ((X, Rotary(share=0.1)), r"Rotary\.share \(0\.1\) must rotate .* at least 2.* got 0"),
        ((X, Rotary(share=0.25, ntk_factor=2.0)), r"Rotary\.ntk_factor must be 1 if only 2"),
        ((X, Rotary(), 1.5), "positions must be an integer or an array of integers; got 1.5"),
        ((X, Rotary(), np.arange(3)), r"positions must broadcast to \(2,\).* got \(3,\)"),
        ((X, Rotary(), np.ones((2, 4), int)), r"positions must broadcast to .* got \(2, 4\)"),
        ((np.ones((2, 5, 2, 8), int), Rotary()), "x must be an array of floating point numbers"),
        ((X[0, 0], Rotary()), r"x must be .* got shape \(2, 8\)"),
        ((X, None), r"rotary must be a Rotary such as Rotary\(\); got None"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    plain = as_users_have_it(rotary)
    x, options, *positions = arguments
    options = options and plain.Rotary(**vars(options))
    with pytest.raises((ValueError, TypeError), match=message):
        plain.rotate(x, options, *positions)
