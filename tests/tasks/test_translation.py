"""Translation: data, loss, metrics and training."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from distattn_jax.data import END_ID, DataError, decode
from distattn_jax.models.translator import TranslatorOutput
from distattn_jax.tasks import make_task, prepare
from distattn_jax.train import Run
from tests.tasks.parallel_texts import make_config, write_pairs


@pytest.fixture(scope="module")
def folder(made_once):
    return made_once("parallel_texts", lambda folder: write_pairs(folder / "raw", words=(1, 2, 5)))


@pytest.fixture(scope="module")
def prepared(folder):
    return prepare(make_config(folder))


def test_both_columns_end_with_the_end_token_and_decode_to_the_texts(folder, prepared):
    for split, table in prepared.tables.items():
        for column, language in (("source", "en"), ("target", "de")):
            texts = (folder / "raw" / f"{split}.{language}").read_text().splitlines()
            tokens, lengths = table.columns[column].pad(np.arange(len(table)), 40)
            assert (np.take_along_axis(tokens, lengths[:, None] - 1, 1) == END_ID).all()
            assert decode(prepared.tokenizer, tokens) == texts
    assert prepared.about["longest_sequences"].keys() == {"encoder", "decoder"}


def test_the_tokenizer_is_trained_again_only_if_the_data_or_an_option_changes(tmp_path):
    def prepare_again(**data):
        return prepare(make_config(tmp_path, data=data)).tokenizer.to_str()

    def list_files():
        return set((tmp_path / "prepared").glob("*/tokenizers/*.json"))

    trained, larger = prepare_again(), prepare_again(vocabulary=264)
    assert trained != larger
    assert len(list_files()) == 2
    first = min(list_files(), key=lambda path: path.stat().st_size)
    (second,) = list_files() - {first}
    first.write_text(second.read_text())
    assert prepare_again() == larger  # The stored tokenizer is used.
    first.write_text("{")
    assert prepare_again() == trained
    assert prepare_again() == trained
    raw = tmp_path / "raw" / "train.en"
    raw.write_text(raw.read_text().replace("old", "new"))
    assert prepare_again(vocabulary=264) != larger
    assert len(list_files()) == 3


def test_the_languages_can_be_swapped_and_unknown_ones_are_refused(folder, prepared):
    other = prepare(make_config(folder, data={"source": "de", "target": "en"}))
    for one, two in (("source", "target"), ("target", "source")):
        text = decode(other.tokenizer, [other.tables["test"].take(np.array([0]), 40)[one][0]])
        expected = prepared.tables["test"].take(np.array([0]), 40)[two][0]
        assert text == decode(prepared.tokenizer, [expected])
    with pytest.raises(DataError, match=r"--data.target must be .* de and en; got 'fr'"):
        prepare(make_config(folder, data={"target": "fr"}))
    with pytest.raises(ValueError, match="target must be another language than 'en'"):
        make_config(folder, data={"target": "en"})


def test_long_training_pairs_are_left_out_and_other_pairs_are_kept_whole(folder, prepared):
    whole = prepared.tables
    lengths = {split: table.lengths(("source", "target")) for split, table in whole.items()}
    longest = int(lengths["train"].min()) + 4  # a second word
    short = prepare(make_config(folder, data={"longest": longest}))
    left_out, kept = ((lengths[split] > longest).sum() for split in ("train", "test"))
    assert len(short.tables["train"]) == len(whole["train"]) - left_out
    assert short.tables["train"].lengths(("source", "target")).max() == longest
    np.testing.assert_array_equal(
        short.tables["test"].columns["source"].values, whole["test"].columns["source"].values
    )
    reason = f"with more than {longest} tokens on a side (--data.longest)"
    assert f"left out: {left_out} pairs of train {reason}" in short.messages
    assert f"kept whole: {kept} pairs of test {reason}" in short.messages
    assert not any("tokens on a side" in line for line in prepared.messages)
    with pytest.raises(
        DataError, match=r"--data.longest \(2\) must be .*; all 48 pairs are longer"
    ):
        prepare(make_config(folder, data={"longest": 2}))


def test_loss_and_metrics_are_means_over_target_tokens(folder, prepared):
    draw = np.random.default_rng(0)
    logits = draw.normal(size=(3, 4, 7)).astype(np.float32)
    target = np.asarray([[3, 4, 2, 0], [5, 2, 0, 0], [6, 6, 6, 2]], np.int32)
    lengths, weight = np.asarray([3, 2, 4], np.int32), np.asarray([1, 1, 0], np.float32)
    batch = {"target": target, "target_length": lengths, "weight": weight}
    batch = {name: jnp.asarray(column) for name, column in batch.items()}
    task = make_task(make_config(folder, label_smoothing=0.3), prepared)
    losses, plain, right = [], [], []
    for b, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        z = logits[b, t].astype(np.float64)
        log_probability = z - np.log(np.exp(z).sum())
        wanted = np.full(7, 0.3 / 7)
        wanted[target[b, t]] += 0.7
        losses.append(-(wanted * log_probability).sum())
        plain.append(-log_probability[target[b, t]])
        right.append(z.argmax() == target[b, t])
    outputs = TranslatorOutput(jnp.asarray(logits), jnp.eye(7))
    loss, weights = task.loss(outputs, batch), task.example_weights(batch)
    np.testing.assert_allclose(loss[:2], [np.mean(losses[:3]), np.mean(losses[3:])], rtol=1e-5)
    np.testing.assert_allclose((loss * weights).sum() / weights.sum(), np.mean(losses), rtol=1e-5)
    counts = {name: np.asarray(x) for name, x in task.counts(outputs, batch).items()}
    metrics = task.metrics(counts)
    np.testing.assert_allclose(metrics["perplexity"], math.exp(np.mean(plain)), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy"], np.mean(right), rtol=1e-6)


def test_a_run_learns_and_measures_all_metrics(translation_run):
    run = Run(epath.Path(translation_run))
    messages = run.data["messages"]
    assert messages[0] == (
        "parallel_text: 48 train, 8 validation, 8 test; 259 tokens in the vocabulary"
    )
    assert run.result["steps"] == 60
    member = run.result["members"][0]
    for split in ("validation", "test"):
        assert member[split].keys() == {"loss", "perplexity", "accuracy"}
        assert member[split]["perplexity"] < 20  # equally frequent letters would have 14
