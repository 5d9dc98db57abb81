"""`python -m experiments explore`: pages of trained and of pre-trained models."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from distattn_jax import plot
from distattn_jax.tasks import load
from experiments.__main__ import main
from experiments.commands import explore
from experiments.commands.translate import count_steps
from experiments.recipes import nearest
from tests.plot.pages import read_data
from tests.train import pretrained as tiny_pretrained
from tests.train.runs import keep_compiled


@pytest.fixture(autouse=True)
def _run_here(tmp_path, monkeypatch, compiled):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(compiled))
    monkeypatch.chdir(tmp_path)
    with keep_compiled(compiled):
        yield


@pytest.fixture
def saved(monkeypatch):
    """List of the pages that the command saves."""
    pages = []
    save = plot.AttentionPage.save
    monkeypatch.setattr(
        plot.AttentionPage, "save", lambda page, path: (pages.append(page), save(page, path))
    )
    return pages


def test_two_seeds_of_a_run_stand_side_by_side(finished_run, tmp_path, capsys, saved):
    run = str(finished_run)
    main(["explore", run, "--text", "a b <i>", "--against", run, "--against-member", "1"])
    printed = capsys.readouterr().out
    assert printed == "attention.html: 0.1 MB; open it in a browser.\n"
    assert (tmp_path / "attention.html").read_bytes() == saved[0].html.encode()
    first, second = read_data(saved[0])["models"]
    assert first["title"] == second["title"] == "little/distance_aware"
    assert first["caption"].startswith(("predicts early, 0.", "predicts late, 0."))
    for model in (first, second):
        (part,) = model["parts"]
        assert part["tokens"] == ["a", "b", "[UNK]", "[UNK]", "[UNK]"]
        assert part["positions"][0]["numbers"].keys() == {"w", "v"}


def test_a_translator_translates_first(translation_run, saved):
    main(["explore", str(translation_run), "--text", "two old", "--output", "new/page.html"])
    (model,) = read_data(saved[0])["models"]
    encoder, decoder, cross = model["parts"]
    assert [part["name"] for part in model["parts"]] == ["encoder", "decoder", "cross-attention"]
    assert cross["tokens"] == encoder["tokens"]
    assert cross["queryTokens"][:-1] == decoder["tokens"][1:]
    assert decoder["causal"]
    spelled = "".join(model["caption"].removeprefix("translates: ").split())
    assert spelled == "".join(cross["queryTokens"][:-1])
    assert [table["title"] for table in encoder["positions"][0]["tables"]] == [
        "similarity of the position vectors of keys",
        "similarity of the position vectors of values",
    ]


def test_an_empty_translation_says_why(translation_run):
    loaded = load(translation_run)
    graph, params = nnx.split(loaded.model)
    untrained = loaded._replace(model=nnx.merge(graph, jax.tree.map(jnp.zeros_like, params)))
    caption = explore.describe_output(untrained, ["two old"], steps=count_steps(translation_run))
    assert caption.startswith("translates into an empty text: ")
    assert caption.endswith(
        "The model is hardly trained, after 60 steps; translators need thousands."
    )


def test_a_pretrained_folder_has_an_example_of_its_own(tmp_path, saved, capsys):
    tiny_pretrained.write_model(tmp_path / "bert")
    main(["explore", "bert"])
    (model,) = read_data(saved[0])["models"]
    assert (model["title"], model["caption"]) == (f"{tmp_path.name}/bert", "pre-trained")
    assert model["parts"][0]["tokens"][0] == "[CLS]"
    with pytest.raises(SystemExit, match="error: --member must be left out: bert is a pre-trained"):
        main(["explore", "bert", "--member", "0", "--layers", "1"])
    with pytest.raises(SystemExit, match="2"):
        main(["explore", "bert", "--layers", "0"])
    assert "--layers must be from 1 on: the first layer is 1; got 0" in capsys.readouterr().err


def test_the_example_text_is_that_of_the_recipe(finished_run, monkeypatch):
    monkeypatch.setattr(explore, "find_recipe", lambda config: nearest)
    assert explore.find_example(str(finished_run)) == [nearest.SENTENCE]
    monkeypatch.setattr(explore, "find_recipe", lambda config: None)
    with pytest.raises(
        ValueError, match=r"--text must be given, because the recipe of .* has no ex"
    ):
        explore.find_example(str(finished_run))


def test_a_damaged_config_is_no_pretrained_model(tmp_path):
    (tmp_path / "config.json").write_text("{")
    assert not explore.is_pretrained(str(tmp_path))
