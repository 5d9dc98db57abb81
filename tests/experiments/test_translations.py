"""Translations that are stored in a run, and their scores."""

import json
import sys

import pytest
from etils import epath

from distattn_jax.data import DataError
from distattn_jax.train import Run, RunError
from experiments.papers.translations import (
    MissingPackageError,
    add_scores,
    compute_scores,
    score_translations,
    store_translations,
)
from tests.experiments import stored

REFERENCES = ["Ein Mann läuft nach Hause.", "Zwei Hunde spielen im Schnee."]
ABOUT = {
    "members": [{"member": 0, "seed": 7, "step": 30}, {"member": 1, "seed": 8, "step": 20}],
    "beam": 4,
}


@pytest.fixture
def run(tmp_path):
    """A finished run with two seeds, whose translations are stored."""
    run = Run(epath.Path(tmp_path))
    losses = {"setting": {}, "validation": {"loss": 1.0}, "test": {"loss": 2.0}}
    members = [{"seed": x["seed"], "best_step": x["step"], **losses} for x in ABOUT["members"]]
    content = stored.run("vanilla", members, criterion="loss", steps=40)
    (tmp_path / "result.json").write_text(json.dumps(content["result"]))
    found = {0: REFERENCES, 1: ["ein mann läuft nach hause.", "Zwei Katzen schlafen."]}
    store_translations(run, "test", found, REFERENCES, ABOUT)
    return run


def test_scores_have_signatures_and_lower_case_forgives_case():
    scores, signatures = compute_scores(["ein mann läuft nach hause."], REFERENCES[:1])
    assert scores["bleu_lowercase"] == pytest.approx(100)
    assert scores["bleu"] < 50
    assert scores["chrf"] < 100
    assert "case:mixed" in signatures["bleu"]
    assert "case:lc" in signatures["bleu_lowercase"]
    assert all("version:" in signature for signature in signatures.values())


def test_every_seed_is_scored_from_its_file(run):
    assert add_scores(run)[0]["members"][0]["test"] == {"loss": 2.0}  # not yet scored
    first, second = score_translations(run, "test")["members"]
    assert first["scores"]["bleu"] == pytest.approx(100)
    assert second["scores"]["bleu"] < second["scores"]["bleu_lowercase"] < 60
    result, about = add_scores(run)
    assert result["members"][0]["test"] == {"loss": 2.0, **first["scores"]}
    assert result["members"][1]["test"]["chrf"] == second["scores"]["chrf"]
    assert about["test"]["beam"] == 4
    text = (run.path / "translations" / "test_model_1.txt").read_text()
    assert text == "ein mann läuft nach hause.\nZwei Katzen schlafen.\n"


def test_new_translations_replace_old_ones_and_their_scores(run):
    score_translations(run, "test")
    about = {**ABOUT, "members": ABOUT["members"][:1]}
    store_translations(run, "test", {0: REFERENCES}, REFERENCES, about)
    names = {path.name for path in (run.path / "translations").iterdir()}
    assert names == {"test.json", "test_reference.txt", "test_model_0.txt"}
    assert add_scores(run)[0]["members"][0]["test"] == {"loss": 2.0}


def test_scores_of_other_parameters_are_left_out(run):
    score_translations(run, "test")
    result = json.loads((run.path / "result.json").read_text())
    result["members"][1]["best_step"] = 90
    (run.path / "result.json").write_text(json.dumps(result))
    result, about = add_scores(run)
    assert [member["test"] for member in result["members"]] == [{"loss": 2.0}] * 2
    assert about == {}


@pytest.mark.parametrize(
    ("average", "step", "is_current"),
    [(None, None, False), (3, None, False), (3, 30, False), (3, 40, True)],
)
def test_translations_from_before_the_end_of_the_run_are_left_out(run, average, step, is_current):
    about = {"members": [{"member": 0, "seed": 7, "step": step}], "average": average}
    store_translations(run, "test", {0: REFERENCES}, REFERENCES, about)
    score_translations(run, "test")
    result, found = add_scores(run)
    assert ("bleu" in result["members"][0]["test"]) == is_current
    assert ("test" in found) == is_current


def test_missing_and_damaged_files_are_named(run):
    with pytest.raises(RunError, match=r"holds no translations of the split 'validation': .*--spl"):
        score_translations(run, "validation")
    path = run.path / "translations" / "test_model_1.txt"
    path.write_text("one line\n")
    with pytest.raises(DataError, match=r"test_model_1.txt: must have 2 lines.* got 1"):
        score_translations(run, "test")
    path.unlink()
    with pytest.raises(DataError, match=r"test_model_1.txt is missing"):
        score_translations(run, "test")


def test_without_sacrebleu_the_error_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    with pytest.raises(MissingPackageError, match=r"pip install '\.\[experiments\]'"):
        score_translations(run, "test")
