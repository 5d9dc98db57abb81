"""Commands on a trained translator: `translate`, `evaluate`, `collect` and `report`."""

import contextlib
import io
import json
import re
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath
from flax import nnx

from distattn_jax.tasks import TRAINED, load, load_config
from distattn_jax.train import Run
from experiments.commands import evaluate, translate
from experiments.commands.report import report
from experiments.papers.collecting import collect_results
from tests.train.runs import keep_compiled


@pytest.fixture(scope="module", autouse=True)
def _keep_compiled(compiled):
    with keep_compiled(compiled):
        yield


@pytest.fixture(scope="module")
def evaluated(translation_run, made_once, compiled):
    """Folder of a run with two seeds, and what `evaluate` prints about it."""

    def make(folder):
        printed = io.StringIO()
        with keep_compiled(compiled), contextlib.redirect_stdout(printed):
            evaluate.main([str(translation_run)])
        (folder / "printed.txt").write_text(printed.getvalue())

    return translation_run, (made_once("evaluated", make) / "printed.txt").read_text()


@pytest.fixture(scope="module")
def run(evaluated):
    return evaluated[0]


@pytest.fixture(scope="module")
def loaded(run):
    return load(run)


# As many sentences as the test set has, so that both are translated by one compiled program.
SENTENCES = ["one red cow", "sea", "old old sea", "two", "red sea", "cow", "one", "two old cow"]


def test_every_line_is_translated_in_its_place(run, loaded, tmp_path, capsys, monkeypatch):
    (tmp_path / "sentences.txt").write_text("\n".join(["", *SENTENCES, "  \n"]))
    translate.main([str(run), str(tmp_path / "sentences.txt")])
    lines = capsys.readouterr().out.split("\n")[:-1]
    assert len(lines) == 10
    assert lines[0] == lines[9] == ""
    text = "".join(f"{line}\n" for line in SENTENCES[::-1])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    monkeypatch.setattr(translate, "load", lambda *_, **__: loaded)
    translate.main([str(run)])
    assert capsys.readouterr().out.split("\n")[:-1] == lines[8:0:-1]


def test_alignments_show_a_source_word_for_each_word(loaded, capsys):
    texts = list(translate.translate(loaded, SENTENCES, alignments=True))
    assert "attention of decoder layer 1:" in capsys.readouterr().err
    translation, *rows = texts[0].split("\n")
    assert len(rows) >= len(translation.split())
    for row in rows:
        *_, source, weight = row.split()
        assert source in ("one", "red", "cow", "[END]")
        assert 0.25 <= float(weight) <= 1


def test_an_empty_translation_says_why(loaded, capsys):
    graph, params = nnx.split(loaded.model)
    untrained = loaded._replace(model=nnx.merge(graph, jax.tree.map(jnp.zeros_like, params)))
    lines = ["", *SENTENCES[:7]]  # as many sentences as are compiled for already
    assert list(translate.translate(untrained, lines, steps=3)) == [""] * 8
    message = capsys.readouterr().err
    assert message.startswith("empty translation of line 2, 3, 4, 5, 6, ...: ")
    assert message.endswith("is hardly trained, after 3 steps; translators need thousands.\n")
    only_end = translate.explain_empty({2: []}, 5000)
    assert only_end.startswith("empty translation of line 2: the model predicts the end token alo")
    assert only_end.endswith("--length-penalty favours longer translations.")


def test_the_steps_of_a_saved_model_are_known():
    assert translate.count_steps(str(TRAINED["tagger"])) == 975


def test_progress_is_shown_on_a_terminal(loaded, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    list(translate.translate(loaded, [*SENTENCES, ""], total=9))
    assert re.search(r"0/9.*lines/s", terminal.getvalue(), re.DOTALL)


def test_wrong_options_are_refused(run, loaded, monkeypatch):
    monkeypatch.setattr(translate, "load", lambda *_, **__: loaded)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"sea\n")))
    with pytest.raises(ValueError, match=r"beam_size \(--beam\) must be at least 1; got 0"):
        translate.main([str(run), "--beam", "0"])
    with pytest.raises(ValueError, match=r"layer \(--layer\) must be from 1 to 1; got 2"):
        list(translate.translate(loaded, ["sea"], alignments=True, layer=1))


def test_evaluate_prints_scores_and_signatures_of_every_seed(evaluated):
    run, printed = evaluated
    assert "Translations of 8 sentences, beam 4, length penalty 0.6, best checkpoint:" in printed
    header, _, *rows = printed[printed.index("| seed | BLEU") :].split("\n")[:5]
    assert header == "| seed | BLEU | BLEU, lower case | chrF |"
    assert [row.split()[1] for row in rows] == ["0", "1", "mean"]
    assert "\nBLEU: nrefs:1|case:mixed|" in printed
    folder = run / "translations"
    sentences = (folder / "test_model_1.txt").read_text().split("\n")[:-1]
    assert len(sentences) == 8
    german = run.parents[2] / "raw" / "test.de"
    assert (folder / "test_reference.txt").read_text() == german.read_text()


def test_stored_translations_are_scored_without_data_or_checkpoints(evaluated, tmp_path, capsys):
    run, printed = evaluated
    shutil.copy(run / "config.json", tmp_path)
    shutil.copytree(run / "translations", tmp_path / "translations")
    evaluate.main([str(tmp_path), "--stored"])
    scores = capsys.readouterr().out
    assert scores.startswith("Translations of 8 sentences, beam 4")
    assert scores.strip() in printed
    evaluate.main([str(tmp_path), "--stored", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"run", "task", "split", "translations"}
    assert document["translations"]["signatures"]["bleu"].startswith("nrefs:1|case:mixed|")
    assert [one["member"] for one in document["translations"]["members"]] == [0, 1]


def test_without_sacrebleu_the_translations_wait_to_be_scored(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    text, scores = evaluate.describe_scores(Run(epath.Path(run)), "test", load_config(run))
    assert scores is None
    assert text.startswith(f"The translations are stored in {run / 'translations'}. BLEU and chrF")
    assert text.endswith("Then score them, here or elsewhere, with --stored.")


def test_collect_keeps_scores_vectors_and_attention(run):
    content = collect_results(run.parent)
    found = content["runs"]["relative_position"]
    scores = [member["test"]["bleu"] for member in found["result"]["members"]]
    stored = json.loads((run / "translations" / "test.json").read_text())
    expected = [member["scores"]["bleu"] for member in stored["members"]]
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert found["translations"]["test"]["signatures"].keys() == {"bleu", "bleu_lowercase", "chrf"}
    keys = content["relations"]["decoder"]["keys"]
    assert keys["positions"] == list(range(-16, 1))
    assert np.shape(keys["norms"]) == (1, 2, 17)
    assert "norms" in content["relations"]["encoder"]["values"]
    assert content["alignment"]["source"][:2] == ["Two", "young"]
    weights = np.asarray(content["alignment"]["weights"])
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-3)  # rounded


def test_report_draws_vectors_and_attention_and_shows_scores(run, tmp_path):
    # The sentence is padded to as many tokens as that of `collect`, and shares its program.
    text = report([run], output=tmp_path, sentence="one red cow sees two old cows by the sea")
    assert "test BLEU |" in text
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    kinds = ("relation_norms", "relation_similarities")
    names = {f"{kind}_{level}" for kind in kinds for level in ("encoder", "decoder")}
    assert drawn == {"learning_curves", "alignment"} | names
