"""Language modeling: examples, training, and continuations of prompts."""

import dataclasses

import numpy as np
import pytest

from distattn_jax.data import END_ID, decode
from distattn_jax.tasks import load, prepare
from distattn_jax.train import RunError
from experiments.commands import evaluate, explore, generate, translate
from tests.tasks.letters import TEXT, make_config


@pytest.fixture(scope="module")
def loaded(letters_run):
    return load(letters_run)


def test_texts_are_joined_and_cut_into_examples(letters_folder):
    prepared = prepare(make_config(letters_folder))
    table = prepared.tables["validation"]
    tokens = table.columns["tokens"]
    assert (tokens.lengths[:-1] == 24).all()
    np.testing.assert_array_equal(table.columns["inputs"].values, [END_ID, *tokens.values[:-1]])
    texts = np.split(tokens.values, np.flatnonzero(tokens.values == END_ID) + 1)[:-1]
    assert decode(prepared.tokenizer, texts) == [TEXT] * 3
    assert "tokens: 864 of train, 48 of validation, 48 of test" in prepared.messages


def test_only_the_start_of_the_validation_and_test_set_is_used(letters_folder):
    config = make_config(letters_folder)
    whole = prepare(config).tables
    data = dataclasses.replace(config.data, validation_tokens=30, test_tokens=1000)
    used = prepare(dataclasses.replace(config, data=data)).tables
    validation = used["validation"]
    np.testing.assert_array_equal(validation.columns["tokens"].lengths, [24, 6])
    for name, column in validation.columns.items():
        np.testing.assert_array_equal(column.values, whole["validation"].columns[name].values[:30])
    for split in ("train", "test"):  # The test set has fewer than 1000 tokens.
        for name, column in used[split].columns.items():
            np.testing.assert_array_equal(column.values, whole[split].columns[name].values)


def test_a_trained_model_continues_prompts_of_different_lengths(loaded):
    prompts = [TEXT[:3], "", TEXT[:8]]
    assert loaded.model.decoder.remat  # Decoding with caches ignores it.
    texts = generate.generate(loaded, prompts, tokens=30, temperature=0)
    assert [prompt + text for prompt, text in zip(prompts, texts, strict=True)] == [TEXT] * 3


def test_the_command_prints_prompts_with_their_continuations(letters_run, capsys):
    generate.main([str(letters_run), "--prompt", TEXT[:5], "--tokens", "30", "--top-p", "0.5"])
    assert capsys.readouterr().out == f"{TEXT}\n"


def test_explore_without_a_text_shows_one_that_the_model_wrote(letters_run, capsys):
    assert explore.find_example(str(letters_run)) == [TEXT]
    assert "--text TEXT chooses another one" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value"), [("tokens", 0), ("temperature", -1), ("top-p", 0), ("seed", -1)]
)
def test_wrong_options_are_refused(loaded, option, value):
    options = {"tokens": 1, option.replace("-", "_"): value}
    with pytest.raises(ValueError, match=f"--{option} must be .* got {value}"):
        generate.generate(loaded, [""], **options)


def test_commands_for_translators_refuse_a_language_model(letters_run, loaded):
    with pytest.raises(RunError, match="RUN must have the task translation; got language_modeling"):
        list(translate.translate(loaded, [""]))
    with pytest.raises(RunError, match="--stored need a run of the task translation"):
        evaluate.main([str(letters_run), "--stored"])
