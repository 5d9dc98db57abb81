"""Tagging: training on sentences whose tags depend on the order of words, metrics, predictions."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distattn_jax import tasks
from distattn_jax.data import DataError, Ragged, Table, train_word_level
from distattn_jax.models import TaggerOutput
from distattn_jax.tasks.tagging import encode_words
from distattn_jax.tasks.text_attention import attend_to_texts
from experiments.commands import predict
from experiments.commands.train import train
from tests.tasks import conlleval
from tests.train.runs import quick_run


def make_sentences(seed, count):
    """Return random words, each with a tag that the word before it decides, and 5 % wrong tags."""
    draw = np.random.default_rng(seed)
    tags = {"A": "B-x", "b": "I-x"}
    for length in draw.integers(4, 9, count):
        words = draw.choice(list("AbcD"), length)
        right = [tags.get(word, "O") for word in ["", *words[:-1]]]
        wrong = draw.choice(["B-x", "I-x", "O"], length)
        yield words, np.where(draw.random(length) < 0.05, wrong, right).tolist()


def make_config(folder, longest=7):
    raw = folder / "raw"
    if not raw.exists():
        raw.mkdir()
        for seed, (split, count) in enumerate({"train": 256, "dev": 32, "test": 32}.items()):
            blocks = (
                "".join(f"{word} {tag}\n" for word, tag in zip(*sentence, strict=True))
                for sentence in make_sentences(seed, count)
            )
            (raw / f"{split}.txt").write_text("\n".join(blocks))
    return tasks.TaggingConfig(
        name="neighbours",
        methods=("relative_position",),
        seeds=2,
        data=tasks.TaggingData(
            directory=str(folder / "prepared"),
            manual_dir=str(raw),
            batch_size=32,
            buckets=1,
            longest=longest,
            spelling_bytes=2,
        ),
        model=tasks.TaggingModelConfig(
            heads=2,
            head_features=8,
            features=16,
            hidden_features=16,
            embedding_features=8,
            spelling_features=4,
            dropout_rate=(0.0,),
            max_distance=2,
        ),
        **quick_run(folder, steps=25),
    )


def make_task(labels, **model):
    config = tasks.TaggingConfig(model=tasks.TaggingModelConfig(**model))
    return tasks.Tagging(config, tokenizer=train_word_level(["a b"]), labels=labels)


@pytest.fixture(scope="module")
def folder(made_once):
    return made_once("neighbours", lambda folder: train(make_config(folder)))


@pytest.fixture(scope="module")
def run(folder):
    return folder / "runs" / "neighbours" / "relative_position"


def read_columns(printed):
    """Return the words and the tags of all sentences of a column file."""
    sentences = [block.splitlines() for block in printed.removesuffix("\n\n").split("\n\n")]
    pairs = [[line.split("\t") for line in lines] for lines in sentences]
    return [[[pair[i] for pair in sentence] for sentence in pairs] for i in range(2)]


def read_json(printed):
    """Return the words and the tags of all sentences of a JSON document."""
    document = json.loads(printed)
    assert document.keys() == {"run", "task", "predictions"}
    found = document["predictions"]
    assert [one["line"] for one in found] == list(range(1, len(found) + 1))
    return [[one[name] for one in found] for name in ("words", "tags")]


def test_relative_positions_find_the_word_before_and_predictions_have_the_metrics_of_the_run(
    run, tmp_path, capsys
):
    # The method no_positions, trained for 60 steps instead of 25, stays below 0.1.
    result = json.loads((run / "result.json").read_text())
    assert all(0.8 < member["test"]["f1"] < 1 for member in result["members"])
    words, true = zip(*make_sentences(2, 32), strict=True)
    (tmp_path / "texts.txt").write_text("".join(f"{' '.join(row)}\n" for row in words))
    for i, member in enumerate(result["members"]):
        as_json = ["--json"] if i else []
        predict.main([str(run), str(tmp_path / "texts.txt"), "--member", str(i), *as_json])
        printed = capsys.readouterr().out
        read_words, predicted = read_json(printed) if as_json else read_columns(printed)
        assert read_words == [list(row) for row in words]
        precision, recall, f1 = conlleval.score(true, predicted)
        accuracy = np.mean(np.concatenate(true) == np.concatenate(predicted))
        found = {name: value for name, value in member["test"].items() if name != "loss"}
        expected = {"accuracy": accuracy, "f1": f1, "precision": precision, "recall": recall}
        assert found == pytest.approx(expected)


def test_attention_maps_of_a_sentence_have_a_row_for_each_word(run):
    part = attend_to_texts(tasks.load(run), ["A  b c"])["text"]
    assert part.tokens == ["A", "b", "c"]
    np.testing.assert_allclose(part.maps.sum(axis=-1), np.ones((1, 2, 3)), rtol=1e-5)


def test_long_sentences_are_left_out_of_train_only_and_counted(folder):
    prepared = tasks.prepare(make_config(folder))
    lengths = {split: table.lengths(("words",)) for split, table in prepared.tables.items()}
    assert lengths["train"].max() == 7
    assert lengths["test"].max() == 8
    left_out = 256 - len(lengths["train"])
    kept = int((lengths["test"] > 7).sum())
    reason = "with more than 7 words (--data.longest)"
    assert f"left out: {left_out} sentences of train {reason}" in prepared.messages
    assert f"kept whole: {kept} sentences of test {reason}" in prepared.messages
    with pytest.raises(DataError, match=r"--data.longest \(3\) must be at least .* all 256 sent"):
        tasks.prepare(make_config(folder, longest=3))


def test_new_tags_and_long_words_are_reported(tmp_path):
    (tmp_path / "raw").mkdir()
    for split, tag in {"train": "NOUN", "dev": "VERB", "test": "NOUN"}.items():
        (tmp_path / "raw" / f"{split}.txt").write_text(f"abc {tag}\nd NOUN\n")
    messages = tasks.prepare(make_config(tmp_path)).messages
    assert "words: 2 of train, 2 of validation, 2 of test; 2 tags" in messages
    assert "tags of validation that train lacks: VERB" in messages
    assert "1 words of train have more than 2 bytes" in " ".join(messages)


def test_metrics_are_those_of_a_known_example():
    # The example in the documentation of seqeval.
    labels = ("B-MISC", "B-PER", "I-MISC", "I-PER", "O")
    true = ["O O O B-MISC I-MISC I-MISC O", "B-PER I-PER O"]
    predicted = ["O O B-MISC I-MISC I-MISC I-MISC O", "B-PER I-PER O"]
    tags, guesses = np.zeros((2, 3, 7), int)  # The last row only fills up the batch.
    for rows, texts in ((tags, true), (guesses, predicted)):
        for row, text in zip(rows, texts, strict=False):
            row[: len(text.split())] = [labels.index(tag) for tag in text.split()]
    batch = {
        "tags": jnp.asarray(tags),
        "tags_length": jnp.asarray([7, 3, 7]),
        "weight": jnp.asarray([1.0, 1.0, 0.0]),
    }
    task = make_task(labels)
    outputs = TaggerOutput(jax.nn.one_hot(guesses, 5), batch["tags_length"])
    assert task.criterion == "f1"
    assert task.metrics(jax.device_get(jax.jit(task.counts)(outputs, batch))) == pytest.approx(
        {"accuracy": 0.8, "f1": 0.5, "precision": 0.5, "recall": 0.5}
    )
    rows = [{"text": "In the old  town of Ulm ."}, {"text": "Anna Smith ."}]
    found = task.make_predictions(rows, outputs)
    assert [one.summary for one in found] == predicted
    assert found[1].lines == "Anna\tB-PER\nSmith\tI-PER\n.\tO\n"
    assert found[0].values == {
        **rows[0],
        "words": ["In", "the", "old", "town", "of", "Ulm", "."],
        "tags": predicted[0].split(),
    }


def test_a_word_has_one_token_and_its_bytes():
    tokenizer = train_word_level(["can't a"], split_punctuation=False)
    columns = encode_words(["Can't ö", ""], tokenizer, 3)
    assert columns["words"].lengths.tolist() == [2, 0]
    assert tokenizer.id_to_token(int(columns["words"].values[0])) == "can't"
    spelling, lengths, counts = columns["spelling"].pad(np.arange(2), 2)
    assert spelling[0].tolist() == [[ord("C") + 1, ord("a") + 1, ord("n") + 1], [0xC4, 0xB7, 0]]
    assert lengths.tolist() == [[3, 2], [0, 0]]
    assert counts.tolist() == [2, 0]


def test_parts_of_speech_have_no_spans_and_their_loss_is_the_mean_over_words():
    task = make_task(("NOUN", "VERB"))
    assert task.criterion == "accuracy"
    assert task.metrics({"right": np.asarray(3), "words": np.asarray(4)}) == {"accuracy": 0.75}
    logits = jnp.log(jnp.asarray([[[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]]]))
    batch = {"tags": jnp.asarray([[0, 0, 1]]), "tags_length": jnp.asarray([2])}
    loss = task.loss(TaggerOutput(logits, batch["tags_length"]), batch)
    np.testing.assert_allclose(loss, [-(np.log(0.5) + np.log(0.25)) / 2], rtol=1e-6)


def test_the_baseline_is_the_most_frequent_tag_of_each_word():
    task = make_task(("O", "B-x"))

    def make_table(words, tags):
        columns = {"words": np.asarray(words, np.int32), "tags": np.asarray(tags, np.int32)}
        return Table({name: Ragged(values, np.asarray([0, 4])) for name, values in columns.items()})

    train_table = make_table([2, 2, 2, 3], [1, 1, 0, 0])
    table = make_table([1, 2, 3, 2], [1, 1, 0, 1])  # The training set lacks word 1.
    assert task.baseline(train_table, table) == pytest.approx(
        {"accuracy": 3 / 4, "f1": 4 / 5, "precision": 1, "recall": 2 / 3}
    )
