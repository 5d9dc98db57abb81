"""Interactive pages of attention heads: their data, their limits, and wrong arguments."""

import html
import re

import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import attention, plot
from distattn_jax.plot.explore import FOLDER, SCRIPTS
from tests.plot.pages import TOKENS, distance_aware, random_maps, read_data, two_sided, unpack

MAPS = random_maps(2, 3, 6, 6)


def stored_weights(data, part):
    largest = unpack(part["largest"]).astype(np.float64)
    return largest[..., None, None] * (unpack(part["maps"]) / data["levels"]) ** 2


def read_part(page):
    """Return the only part of the only model of a page."""
    ((part,),) = (model["parts"] for model in read_data(page)["models"])
    return part


def positions_of(variant):
    return read_part(plot.explore(MAPS, TOKENS, variants=[variant] * len(MAPS)))["positions"]


def test_stored_weights_are_within_the_stated_error():
    page = plot.explore(MAPS, TOKENS)
    data, part = read_data(page), read_part(page)
    assert data["levels"] == 255
    largest = MAPS.max(axis=(2, 3), keepdims=True)
    error = np.abs(stored_weights(data, part) - MAPS)
    # Half a level at the square root, as the documentation of the format derives.
    assert (error <= np.sqrt(MAPS * largest) / 255 + largest / (2 * 255) ** 2 + 1e-7).all()
    assert (error <= largest / 255).all()
    np.testing.assert_allclose(unpack(part["received"]), MAPS.sum(axis=2), rtol=1e-6)


def test_a_head_without_attention_is_stored_as_zeros():
    page = plot.explore(np.zeros((1, 1, 6, 6)), TOKENS)
    assert not stored_weights(read_data(page), read_part(page)).any()


def test_twelve_layers_of_twelve_heads_with_128_tokens_need_less_than_3_megabytes():
    # Random logits: noisier, and so larger, than the attention of trained models.
    draw = np.random.default_rng(0)
    weights = np.exp(2 * draw.standard_normal((12, 12, 128, 128), np.float32))
    page = plot.explore(weights / weights.sum(-1, keepdims=True), [f"{i}" for i in range(128)])
    assert len(page.html.encode()) < 3e6


def test_a_large_page_has_fewer_bits_until_it_is_refused():
    maps = random_maps(4, 4, 40, 40)
    tokens = [f"{i}" for i in range(40)]
    size = len(plot.explore(maps, tokens).html.encode())
    smaller = plot.explore(maps, tokens, max_bytes=size - 5_000)
    assert len(smaller.html.encode()) <= size - 5_000
    data = read_data(smaller)
    assert data["levels"] in (127, 63)
    largest = maps.max(axis=(2, 3), keepdims=True)
    error = np.abs(stored_weights(data, read_part(smaller)) - maps)
    assert (error <= largest / data["levels"]).all()
    with pytest.raises(ValueError, match="maps must fit into a page of 50,000 bytes; 25,600 weigh"):
        _ = plot.explore(maps, tokens, max_bytes=50_000).html


def test_a_token_can_neither_end_the_data_nor_start_an_element():
    page = plot.explore(MAPS, TOKENS, title="<i>a & b</i>", caption="</script><script>")
    assert read_part(page)["tokens"] == TOKENS
    assert read_data(page)["models"][0]["title"] == "<i>a & b</i>"
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "<title>&lt;i&gt;a &amp; b&lt;/i&gt;</title>" in page.html
    assert "{{" not in page.html


def test_half_of_a_surrogate_pair_can_be_saved(tmp_path):
    plot.explore(MAPS, [*TOKENS[1:], "\ud83d"], title="\ud83d").save(tmp_path / "page.html")
    assert "<title>&#55357;</title>" in (tmp_path / "page.html").read_text()


def test_the_page_has_all_scripts_and_names_no_address():
    page = plot.explore(MAPS, TOKENS).html
    assert not re.search(r"https?:|//\w+\.\w|@import|url\(", page)
    assert "default-src 'none'" in page
    assert {path.stem for path in FOLDER.glob("*.js")} == set(SCRIPTS)


def test_a_notebook_shows_the_whole_page_in_a_frame():
    page = plot.explore(MAPS, TOKENS)
    frame = r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts" [^<]*></iframe>'
    assert html.unescape(re.fullmatch(frame, page._repr_html_())[1]) == page.html
    assert repr(page) == "<AttentionPage of 'attention'; save(path) writes it>"


def test_distance_aware_heads_have_w_v_and_a_curve():
    layers = positions_of(distance_aware()[0])
    assert len(layers) == 2
    numbers = {name: unpack(x).tolist() for name, x in layers[0]["numbers"].items()}
    assert numbers == {"w": [-0.5, 0.25, -0.125], "v": [0.5, 0.5, 0.5]}
    (curve,) = layers[0]["curves"]
    assert unpack(curve["x"]).tolist() == [0, 1, 2, 3, 4, 5]
    assert curve["baseline"] == 1
    for head, w in enumerate((-0.5, 0.25, -0.125)):
        expected = (1 + np.exp(0.5)) / (1 + np.exp(0.5 - w * np.arange(6)))
        np.testing.assert_allclose(unpack(curve["y"])[head], expected, rtol=1e-5)


def test_other_mappings_have_parameters_of_their_own():
    shape = (jnp.full(3, 2.0), jnp.full(3, 0.5))
    layer = positions_of(attention.DistanceAware(jnp.ones(3), shape, mapping="linear"))[0]
    numbers = {name: unpack(values)[0] for name, values in layer["numbers"].items()}
    assert numbers == {"w": 1, "k": 2, "b": 0.5}


def test_a_bias_has_a_curve_over_relative_positions():
    layer = positions_of(attention.DistanceBias(jnp.asarray([0.5, 0.25, 1.0]), attention.alibi))[0]
    assert unpack(layer["numbers"]["slope"]).tolist() == [0.5, 0.25, 1]
    (curve,) = layer["curves"]
    assert unpack(curve["x"]).tolist() == list(range(-5, 6))
    assert curve["x_label"] == "key before (−) / after (+) the query"
    np.testing.assert_allclose(unpack(curve["y"])[0], -0.5 * np.abs(np.arange(-5, 6)))


def test_both_sides_have_numbers_and_share_the_axis_of_a_curve():
    layer = positions_of(two_sided())[0]
    numbers = {name: unpack(values)[0] for name, values in layer["numbers"].items()}
    assert numbers == {
        **{"w before": -0.5, "w after": 0.25, "v before": 0.5, "v after": 0.5},
        **{"c before": 1, "c after": -2, "slope before": 0.5, "slope after": 0.5},
    }
    factor, bias = layer["curves"]
    assert (factor["baseline"], bias["baseline"]) == (1, 0)
    offsets = np.arange(-5, 6)
    assert unpack(factor["x"]).tolist() == unpack(bias["x"]).tolist() == offsets.tolist()
    weighted = np.where(offsets <= 0, -0.5, 0.25) * np.abs(offsets)
    expected = (1 + np.exp(0.5)) / (1 + np.exp(0.5 - weighted))
    np.testing.assert_allclose(unpack(factor["y"])[0], expected, rtol=1e-5)
    expected = np.where(offsets < 0, 1, np.where(offsets > 0, -2, 0)) - 0.5 * np.abs(offsets)
    np.testing.assert_allclose(unpack(bias["y"])[0], expected, rtol=1e-5)


def test_keys_before_the_query_are_on_the_left():
    tilted = attention.DistanceBias(jnp.ones(3), lambda d, slope: slope * d)  # d = i - j
    (curve,) = positions_of(tilted)[0]["curves"]
    np.testing.assert_array_equal(unpack(curve["y"])[0], np.arange(5, -6, -1))


def test_causal_maps_have_no_later_keys():
    maps = np.tril(np.ones((1, 3, 6, 6)))
    maps /= maps.sum(axis=-1, keepdims=True)
    alibi = attention.DistanceBias(jnp.ones(3), attention.alibi)
    page = plot.explore(maps, TOKENS, variants=[alibi])
    part = read_part(page)
    assert part["causal"]
    assert unpack(part["positions"][0]["curves"][0]["x"]).tolist() == list(range(-5, 1))
    (layer,) = read_part(plot.explore(maps, TOKENS, variants=[two_sided()]))["positions"]
    assert set(layer["numbers"]) == {"w before", "v before", "c before", "slope before"}


def test_tables_of_relative_positions_are_compared_after_their_mean_is_subtracted():
    table = np.random.default_rng(1).normal(size=(3, 41, 4)).astype(np.float32)  # k = 20
    layer = positions_of(attention.RelativePosition(jnp.asarray(table), None))[0]
    (curve,), (similarities,) = layer["curves"], layer["tables"]
    assert unpack(curve["x"]).tolist() == similarities["positions"] == list(range(-16, 17))
    vectors = table[1, 4:37] - table[1, 4:37].mean(axis=0)
    norms = np.sqrt((vectors**2).sum(axis=1))
    np.testing.assert_allclose(unpack(curve["y"])[1], norms, rtol=1e-5)
    expected = vectors @ vectors.T / np.outer(norms, norms)
    cosines = unpack(similarities["cosines"])[1] / 127 - 1
    np.testing.assert_allclose(cosines, expected, atol=0.5 / 127 + 1e-5)


def test_shared_sinusoids_have_the_score_of_the_position_alone():
    random = np.random.default_rng(0)
    bias, projection = random.normal(size=(1, 4)), random.normal(size=(1, 6, 4))
    arrays = [jnp.asarray(x, jnp.float32) for x in (projection, bias, bias)]
    positions = np.arange(5, -6, -1)  # i - j, from keys before the query to keys after it

    def sinusoids(width):
        angles = positions[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    for variant, expected in (
        (attention.TransformerXL(*arrays), sinusoids(6) @ projection[0] @ bias[0] / 2),
        (attention.Adapted(*arrays[1:]), sinusoids(4) @ bias[0]),
    ):
        (curve,) = positions_of(variant)[0]["curves"]
        assert unpack(curve["y"]).shape == (3, 11)
        np.testing.assert_allclose(unpack(curve["y"])[2], expected, rtol=1e-4, atol=1e-5)


def test_dot_product_attention_has_no_parameters():
    assert positions_of(attention.DotProduct())[0] == {"numbers": {}, "curves": [], "tables": []}


def test_selected_layers_keep_their_numbers():
    page = plot.explore(MAPS, TOKENS, variants=distance_aware(), layers=[1])
    part = read_part(page)
    assert part["layers"] == [2]
    np.testing.assert_allclose(stored_weights(read_data(page), part), MAPS[1:], atol=5e-3)
    assert unpack(part["positions"][0]["numbers"]["w"]).tolist() == [-1, 0.5, -0.25]


def test_parts_keep_their_names_and_their_tokens():
    maps, names = random_maps(1, 2, 2, 6), {"axis_names": ("to", "from")}
    cross = plot.AttentionPart(maps, TOKENS, ["was", "schlecht"], **names)
    parts = {"encoder": plot.AttentionPart(MAPS, TOKENS), "cross": cross}
    encoder, cross = read_data(plot.explore(parts))["models"][0]["parts"]
    assert (encoder["name"], encoder["queryTokens"]) == ("encoder", None)
    assert (cross["queryTokens"], cross["axisNames"]) == (["was", "schlecht"], ["to", "from"])


def test_two_models_stand_side_by_side():
    page = plot.explore(MAPS, TOKENS, title="a", against=plot.explore(MAPS, TOKENS, title="b"))
    assert [model["title"] for model in read_data(page)["models"]] == ["a", "b"]
    with pytest.raises(ValueError, match="against must be a page of one model; got a page of two"):
        plot.explore(MAPS, TOKENS, against=page)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((MAPS, None), "tokens must be the key tokens; got None"),
        ((MAPS, "the service was awful"), "tokens must be a list of strings; got 'the service"),
        ((MAPS, TOKENS[1:]), r"maps must have shape \(L, N, 5, 5\), no axis empty; got \(2, 3, 6"),
        ((MAPS[None], TOKENS), r"maps must have shape \(L, N, T, S\), without a batch axis; got"),
        ((-MAPS, TOKENS), "maps must be finite weights of at least 0; the lowest is -"),
        ((MAPS * np.nan, TOKENS), "maps must be finite weights"),
        (({}, None), "maps must have at least one part"),
        (({"a": plot.AttentionPart(MAPS, TOKENS)}, TOKENS), "tokens must be fields of each Attent"),
        (({"a": plot.AttentionPart(MAPS, [])}, None), "maps of the part 'a' must have shape"),
    ],
)
def test_wrong_maps_and_tokens_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.explore(*arguments)


def test_axis_names_of_a_dict_of_parts_are_refused():
    with pytest.raises(ValueError, match="axis_names must be fields of each AttentionPart"):
        plot.explore({"a": plot.AttentionPart(MAPS, TOKENS)}, axis_names=("to", "from"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2]}, "layers must be indices of the 2 layers, from 0 to 1; got"),
        ({"layers": []}, "layers must be indices"),
        ({"variants": distance_aware(1)}, "variants must have one entry for each of the 2 layers"),
        ({"variants": distance_aware(2, 2)}, "variants must have arrays with a leading axis of 3"),
        ({"segments": [0, 1]}, "segments must be 0 or 1 for each of the 6 tokens; got"),
        ({"segments": [0] * 5 + [2]}, "segments must be 0 or 1 for each of the 6 tokens; got"),
        ({"segments": [0] * 6, "query_tokens": TOKENS}, "segments must be None if there are query"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plot.explore(MAPS, TOKENS, **options)


def test_a_page_is_saved_as_html_alone(tmp_path):
    page = plot.explore(MAPS, TOKENS)
    with pytest.raises(ValueError, match=r"path must end in \.html; got page\.png"):
        page.save("page.png")
    page.save(tmp_path / "new" / "page.html")
    assert (tmp_path / "new" / "page.html").read_bytes() == page.html.encode()
