"""Interactive pages of attention heads in a real browser: mouse, keyboard, phones, dark mode."""

import itertools
import time

import numpy as np
import pytest
from PIL import Image

from distattn_jax import plot
from tests.browser import Browser, find_browser
from tests.plot.pages import TOKENS, distance_aware, random_maps, two_sided

pytestmark = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium or Chrome on PATH (apt-get install chromium)"
)
MAPS = random_maps(2, 3, 6, 6)
OTHER = random_maps(2, 3, 6, 6, seed=2)
CROSS = random_maps(1, 2, 3, 6, seed=1)
VIEW = "attentionPage.views[0]"
# Contrast of a token in every colour, and of all running text, with the ground behind it, as WCAG
# defines it.
CONTRASTS = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255);
    const linear = parts.map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const contrast = (element, ground) => {
    const [a, b] = [getComputedStyle(element).color, ground].map(light).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const ground = getComputedStyle(document.body).backgroundColor;
  const token = document.querySelector(".token");
  const tokens = Array.from({ length: 256 }, (_, i) => {
    attentionPage.palette.colour(token, i / 255);
    return contrast(token, getComputedStyle(token).backgroundColor);
  });
  const words = [...document.querySelectorAll(".readout, .caption, h1, footer, .parameters span")];
  return [...tokens, ...words.map((element) => contrast(element, ground))];
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Folder of pages: one model, one model with two sides, two models with two parts."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {"title": "<u>one</u>", "caption": "predicts <bad>"}
    plot.explore(MAPS, TOKENS, variants=distance_aware(), **texts).save(folder / "one.html")
    plot.explore(MAPS, TOKENS, variants=[two_sided()] * 2).save(folder / "sides.html")
    cross = plot.AttentionPart(CROSS, TOKENS, ["a", "b", "c"])
    first, second = (
        {"encoder": plot.AttentionPart(maps, TOKENS), "cross": cross} for maps in (MAPS, OTHER)
    )
    page = plot.explore(first, title="first", against=plot.explore(second, title="second"))
    page.save(folder / "two.html")
    return folder


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({selector!r}).textContent")


def press(browser, *keys):
    for key in keys:
        browser.press(key)


def choose(browser, name, value):
    """Choose a value of a menu."""
    browser.evaluate(
        f"const menu = document.querySelector('[name={name}]'); menu.value = '{value}';"
        "menu.dispatchEvent(new Event('change', {bubbles: true}))"
    )


def point_at(browser, query, key):
    """Return the middle of an entry of the large map, in pixels of the window."""
    return browser.evaluate(
        f"(() => {{ const map = {VIEW}.heatMap, box = map.canvas.getBoundingClientRect();"
        f" return [box.left + map.left + ({key} + 0.5) * map.cell,"
        f" box.top + map.top + ({query} + 0.5) * map.cell]; }})()"
    )


def map_all(browser, selector, expression):
    """Return an expression of x for all elements x of a selector."""
    return browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].map((x) => {expression})"
    )


def test_text_full_of_html_shows_as_text_and_nothing_is_requested(browser, pages):
    browser.open(pages / "one.html")
    assert map_all(browser, ".token", "x.textContent") == TOKENS
    assert text_of(browser, "h1") == "<u>one</u>"
    assert text_of(browser, ".caption") == "predicts <bad>"
    assert browser.evaluate("document.querySelectorAll('.token *, h1 *').length") == 0
    assert browser.requests == [(pages / "one.html").as_uri()]
    assert browser.errors == []


def test_an_injected_script_is_not_run(browser, pages):
    browser.open(pages / "one.html")
    browser.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.bad = 1\">');"
        "const s = document.createElement('script'); s.textContent = 'window.bad = 1';"
        "document.body.append(s)"
    )
    assert browser.evaluate("window.bad === undefined")
    assert any("Content Security Policy" in error for error in browser.errors)


def test_the_browser_decodes_the_weights(browser, pages):
    browser.open(pages / "one.html")
    for layer, head in itertools.product(range(2), range(3)):
        found = browser.evaluate(f"Array.from({VIEW}.part.weights({layer}, {head}))")
        largest = MAPS[layer, head].max()
        np.testing.assert_allclose(found, MAPS[layer, head].ravel(), atol=largest / 255)
    mean = browser.evaluate(f"Array.from({VIEW}.part.weights(1, 3))")
    np.testing.assert_allclose(mean, MAPS[1].mean(axis=0).ravel(), atol=1 / 255)


def test_the_mouse_on_the_map_says_who_attends_to_whom(browser, pages):
    browser.open(pages / "one.html")
    assert text_of(browser, ".readout").startswith("Colours show received attention")
    query, key = np.unravel_index(MAPS[0, 0].argmax(), (6, 6))
    browser.move_to(*point_at(browser, query, key))
    shown = text_of(browser, ".readout")
    assert shown.startswith(f"{TOKENS[query]} attends to {TOKENS[key]}: ")
    percent = float(shown.split(": ")[1].split("\N{NO-BREAK SPACE}")[0])
    assert percent == pytest.approx(100 * MAPS[0, 0].max(), abs=1)
    ratio = MAPS[0, 0].sum(axis=0)[key]  # The mean over keys is 1.
    assert f" receives {float(f'{ratio:.3g}'):g} times the mean." in shown
    # The row of the query colours the text: the strongest colour is on the token of this key.
    colours = map_all(browser, ".token", "x.style.backgroundColor")
    assert colours.index("rgb(8, 48, 107)") == key
    browser.move_to(2, 2)
    assert text_of(browser, ".readout").startswith("Colours show received attention")


def test_the_strongest_colour_of_the_map_is_its_largest_weight(browser, pages):
    browser.open(pages / "one.html")
    pixels = browser.evaluate(
        f"Array.from({VIEW}.heatMap.pixels.getContext('2d').getImageData(0, 0, 6, 6).data)"
    )
    red = np.asarray(pixels).reshape(6, 6, 4)[..., 0]
    assert red.argmin() == MAPS[0, 0].argmax()
    percent = round(100 * MAPS[0, 0].max())
    assert text_of(browser, ".scale") == f"strongest colour: {percent}\N{NO-BREAK SPACE}%"
    choose(browser, "scale", "all")
    percent = round(100 * MAPS.max())
    assert text_of(browser, ".scale") == f"strongest colour: {percent}\N{NO-BREAK SPACE}%"


def test_the_keyboard_reaches_tokens_map_and_heads(browser, pages):
    browser.open(pages / "one.html")
    browser.evaluate("document.querySelector('.token').focus({focusVisible: true})")
    browser.press("ArrowRight")
    assert browser.evaluate("document.activeElement.textContent") == TOKENS[1]
    order = MAPS[0, 0, 1].argsort()[::-1]
    expected = f"{TOKENS[1]} attends most to {TOKENS[order[0]]} "
    assert text_of(browser, ".readout").startswith(expected)
    press(browser, "d", "Enter")
    assert text_of(browser, ".readout").startswith(f"{TOKENS[1]} receives ")
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "map"
    press(browser, "ArrowDown", "ArrowDown")
    assert text_of(browser, ".readout").startswith(f"{TOKENS[1]} attends to {TOKENS[1]}: ")
    browser.press("Escape")
    assert text_of(browser, ".readout").startswith("Colours show received attention")
    press(browser, "Tab", "ArrowRight", "ArrowDown")
    assert text_of(browser, "figcaption") == "layer 2, head 2"
    assert text_of(browser, ".parameters").startswith("w = 0.5, v = 0.5 ")
    browser.press("v")
    assert browser.evaluate("document.querySelector('[value=lines]').checked")
    assert browser.errors == []


def test_each_side_of_a_head_has_a_line_of_parameters(browser, pages):
    browser.open(pages / "sides.html")
    before, after = map_all(browser, ".parameters", "x.textContent")
    assert before.startswith("keys before the query: w = −0.5, v = 0.5, c = 1, slope = 0.5 – local")
    assert after.startswith("keys after the query: w = 0.25, v = 0.5, c = −2, slope = 0.5 – global")
    assert map_all(browser, ".charts figcaption", "x.textContent")[:2] == [
        "factor f(w|i − j|)",
        "bias g(|i − j|)",
    ]
    assert browser.errors == []


def test_lines_follow_the_mouse(browser, pages):
    browser.open(pages / "one.html")
    browser.press("v")
    x, y = browser.evaluate(
        f"(() => {{ const box = {VIEW}.canvas.getBoundingClientRect();"
        f" return [box.right - 20, box.top + {VIEW}.lines.y(2)]; }})()"
    )
    browser.move_to(x, y)
    assert text_of(browser, ".readout").startswith(f"{TOKENS[2]} receives ")
    browser.move_to(x, y, click=True)
    browser.move_to(2, 2)
    assert text_of(browser, ".readout").startswith(f"{TOKENS[2]} receives ")


def test_lines_of_several_heads_have_their_own_colours(browser, pages):
    browser.open(pages / "one.html")
    assert browser.evaluate("document.querySelector('.heads').hidden")
    browser.press("v")
    browser.evaluate("document.querySelectorAll('.heads button')[2].click()")
    assert text_of(browser, "figcaption") == "layer 1, heads 1 and 3"
    colours = browser.evaluate(f"{VIEW}.lineHeads().map((head) => head.colour)")
    assert colours == [[0, 114, 178], [0, 158, 115]]
    red, green, blue = colours[MAPS[0, [0, 2]].max(axis=(1, 2)).argmax()]
    assert browser.evaluate(  # The line of the largest weight is opaque.
        f"{VIEW}.canvas.getContext('2d').getImageData(0, 0, {VIEW}.canvas.width, 200).data.some("
        f"(x, i, all) => i % 4 === 0 && x === {red} && all[i + 1] === {green} && "
        f"all[i + 2] === {blue} && all[i + 3] === 255)"
    )
    browser.press("a")
    assert text_of(browser, "figcaption") == "layer 1, heads 1, 2 and 3"
    browser.press("a")
    assert text_of(browser, "figcaption") == "layer 1, head 1"
    assert browser.errors == []


def test_subwords_show_their_spaces_and_even_attention_names_no_token(browser, tmp_path):
    even, causal = np.full((1, 2, 3, 3), 1 / 3), np.tril(np.ones((1, 2, 3, 3)))
    causal /= causal.sum(axis=-1, keepdims=True)
    plot.explore(even, ["a", "Ġcab", "\u2581"]).save(tmp_path / "even.html")
    browser.open(tmp_path / "even.html")
    assert map_all(browser, ".token", "x.textContent") == ["a", "␣cab", "␣"]
    assert text_of(browser, ".readout").endswith(
        "nearly even: every token receives 1 times the mean."
    )
    browser.move_to(*point_at(browser, 1, -0.7))  # beside the map: the query alone
    assert text_of(browser, ".readout").startswith("␣cab attends nearly evenly to 3 tokens")
    browser.press("d")
    assert text_of(browser, ".readout").startswith("␣cab receives 1 times the mean, nearly evenly")
    assert browser.evaluate("document.querySelectorAll('.grid .cell').length") == 3
    browser.evaluate("document.querySelector('.grid button').focus()")
    browser.press("ArrowDown")  # The maps of one layer wrap: two in the first row.
    assert text_of(browser, "figcaption") == "layer 1, mean of all heads"
    slightly_uneven = np.full((1, 1, 3, 3), [0.38, 0.38, 0.24])
    plot.explore(slightly_uneven, ["a", "b", "c"]).save(tmp_path / "uneven.html")
    browser.open(tmp_path / "uneven.html")
    assert text_of(browser, ".readout").endswith("by a 1.14, b 1.14 times the mean.")
    plot.explore(causal, ["a", "b", "c"]).save(tmp_path / "causal.html")
    browser.open(tmp_path / "causal.html")
    assert "1 times what even attention to itself and all tokens before" in text_of(
        browser, ".readout"
    )


def test_layers_and_heads_of_the_grid_are_named(browser, pages):
    browser.open(pages / "one.html")
    box = "x.getBoundingClientRect()"
    left, top, text = (
        map_all(browser, ".grid .label", x) for x in (f"{box}.left", f"{box}.top", "x.textContent")
    )
    assert text == ["head", "layer", "1", "2", "3", "mean", "1", "2"]
    assert top[0] < min(top[1:6])
    assert max(top[1:6]) < top[6] < top[7]
    layer, numbers = left[1], left[2:6]
    assert [layer, *numbers] == sorted([layer, *numbers])
    assert max(left[6:]) < min(map_all(browser, ".grid button", f"{box}.left"))


def test_two_models_move_together_and_show_their_difference(browser, pages):
    browser.open(pages / "two.html")
    assert browser.evaluate("document.querySelectorAll('.model').length") == 2
    browser.evaluate("document.querySelectorAll('.model .grid button')[5].click()")
    captions = (browser, ".head > figcaption", "x.textContent")
    assert map_all(*captions) == ["layer 2, head 2", "layer 2, head 2"]
    browser.move_to(*point_at(browser, 1, 2))
    readouts = map_all(browser, ".readout", "x.textContent.split(':')[0]")
    assert readouts == [f"{TOKENS[1]} attends to {TOKENS[2]}"] * 2
    browser.evaluate("document.querySelector('[name=difference]').click()")
    assert map_all(*captions)[1] == "layer 2, head 2, minus first"
    red = browser.evaluate("attentionPage.views[1].lineHeads()[0].colour")  # of more attention
    assert red == [178, 50, 26]
    fraction = browser.evaluate("attentionPage.views[1].fractionOf()(7)")
    difference = OTHER[1, 1] - MAPS[1, 1]
    assert fraction == pytest.approx(difference[1, 1] / np.abs(difference).max(), abs=0.02)
    browser.evaluate("document.querySelectorAll('.parts button')[1].click()")
    assert map_all(browser, "[aria-checked=true]", "x.textContent") == ["cross", "cross"]
    assert browser.evaluate("document.querySelectorAll('.strip').length") == 4
    assert browser.errors == []


def test_the_attention_between_two_texts_can_be_shown_alone(browser, tmp_path):
    plot.explore(MAPS, TOKENS, segments=[0, 0, 0, 1, 1, 1]).save(tmp_path / "pair.html")
    browser.open(tmp_path / "pair.html")
    choose(browser, "segments", "01")
    shown = browser.evaluate(f"Array.from({{length: 36}}, (_, i) => {VIEW}.fractionOf()(i) > 0)")
    assert np.asarray(shown).reshape(6, 6)[3:].sum() == 0
    assert np.asarray(shown).reshape(6, 6)[:3, :3].sum() == 0
    share = round(100 * MAPS[0, 0, :3, 3:].sum() / MAPS[0, 0].sum())
    assert f"The selected attention is {share}\N{NO-BREAK SPACE}%" in text_of(browser, ".readout")


def test_the_mouse_moves_over_144_large_maps_without_drawing_them_again(browser, tmp_path):
    maps = random_maps(12, 12, 100, 100)
    plot.explore(maps, [f"t{i}" for i in range(100)]).save(tmp_path / "large.html")
    browser.open(tmp_path / "large.html")
    assert browser.evaluate("document.querySelectorAll('.grid canvas').length") == 12 * 13
    browser.evaluate(
        "painted = 0; paint = paintPixels; paintPixels = (...x) => (painted++, paint(...x))"
    )
    for place in range(0, 50, 10):
        browser.move_to(*point_at(browser, place, 2 * place))
        assert text_of(browser, ".readout").startswith(f"t{place} attends to t{2 * place}: ")
    assert browser.evaluate("painted") == 0
    browser.evaluate("document.querySelectorAll('.grid button')[14].click()")
    assert text_of(browser, "figcaption") == "layer 2, head 2"
    assert browser.evaluate("painted") == 1


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_phone_needs_no_horizontal_scrolling(browser, pages, name):
    browser.open(pages / f"{name}.html", width=360, height=740)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert max(map_all(browser, ".map", "x.getBoundingClientRect().right")) <= 360
    browser.resize(1200, 900)
    browser.wait_for(f"{VIEW}.canvas.getBoundingClientRect().width > 0")


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read_in_light_and_dark_mode(browser, pages, dark):
    browser.open(pages / "one.html", dark=dark)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 24, 31)" if dark else "rgb(255, 255, 255)")
    assert min(browser.evaluate(CONTRASTS)) >= 4.5
    browser.evaluate("document.getElementById('theme').click()")  # automatic -> light
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"


def test_the_frame_of_a_notebook_shows_the_page(browser, tmp_path):
    frame = plot.explore(MAPS, TOKENS)._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><body>{frame}</body>")
    browser.open(tmp_path / "notebook.html", ready="true")
    # Programs that export a notebook parse its HTML and write it anew.
    exported = browser.evaluate("document.documentElement.outerHTML")
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html>{exported}")
    browser.open(tmp_path / "notebook.html", ready="true")
    end, colours = time.monotonic() + 30, set()
    while (8, 48, 107) not in colours:  # the colour of the largest weight of a map
        assert time.monotonic() < end, "the frame stays empty"
        browser.screenshot(tmp_path / "frame.png")
        image = Image.open(tmp_path / "frame.png").convert("RGB")
        colours = {colour for _, colour in image.getcolors(1 << 20)}
        time.sleep(0.1)
