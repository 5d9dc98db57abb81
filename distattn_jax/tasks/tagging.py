"""Tagging (sequence labelling): one tag for each word of a sentence."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int
from tokenizers import Tokenizer

from distattn_jax.data import (
    DataError,
    Nested,
    Ragged,
    Table,
    TextBuilder,
    encode,
    train_word_level,
)
from distattn_jax.models import Tagger
from distattn_jax.sharding import Layout
from distattn_jax.tasks.configs import (
    MethodsConfig,
    TransformerConfig,
    WordConfig,
    dataset_option,
    embedding_option,
)
from distattn_jax.tasks.preparation import (
    SPLITS,
    describe_long_examples,
    iterate_training_texts,
    read_examples,
    read_labels,
)
from distattn_jax.tasks.spans import count_spans, parse_tags, span_metrics
from distattn_jax.tasks.text_task import PredictingTask, Prediction
from distattn_jax.tasks.token_prediction import TokenTask
from distattn_jax.train import Batch, Setting, option
from distattn_jax.train.losses import length_mask

COLUMN = "words"


@dataclasses.dataclass(frozen=True)
class TaggingData(WordConfig):
    """Options of the data set, the vocabulary and the batches, for tagging."""

    dataset: str = dataset_option("conll")
    longest: int = option(256, "training sentences with more words are left out", minimum=1)
    spelling_bytes: int = option(
        24, "largest number of bytes of a word; the rest is cut", minimum=1
    )


@dataclasses.dataclass(frozen=True)
class TaggingModelConfig(TransformerConfig):
    """Options of the sizes and initial values of the tagger."""

    embedding_features: int = embedding_option()
    spelling_features: int = option(
        32, "width of the vector of the spelling of a word; 0 for words without spelling", minimum=0
    )


@dataclasses.dataclass(frozen=True)
class TaggingConfig(MethodsConfig):
    """Options of an experiment on tagging."""

    task: ClassVar[str] = "tagging"
    data: TaggingData = TaggingData()
    model: TaggingModelConfig = TaggingModelConfig()


class Tagging(TokenTask, PredictingTask):
    """Assign a tag to each word of a sentence.

    The accuracy is the mean over all words. If the tags mark spans, such as `B-PER` and `I-PER`,
    the metrics also include precision, recall and F1 over all spans of a split (see `spans`).
    """

    config_class = TaggingConfig
    length_columns = (COLUMN,)
    length_unit = "words"
    network = Tagger
    inputs = (COLUMN, f"{COLUMN}_length", "spelling", "spelling_words")
    predicted: ClassVar[str] = "tags"
    sequences: ClassVar[Mapping[str, str]] = {"encoder": COLUMN}
    embedding_path = ("embedding", "embedding")
    layout = Layout(token_columns=(COLUMN, "spelling", "spelling_words", "tags"))

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.spans = parse_tags(self.labels)

    @property
    def criterion(self) -> str:  # type: ignore[override]
        return "accuracy" if self.spans is None else "f1"

    def model_arguments(self, setting: Setting) -> dict[str, Any]:
        return {
            **super().model_arguments(setting),
            "classes": len(self.labels),
            "spelling_features": self.config.model.spelling_features,
        }

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return encode_words(
            [" ".join(row["text"].split()) for row in rows],
            self.tokenizer,
            self.config.data.spelling_bytes,
        )

    def counts(self, outputs: Any, batch: Batch) -> dict[str, Array]:
        valid = self.find_counted(batch)
        return self._count(batch["tags"], outputs.logits.argmax(axis=-1), valid)

    def metrics(self, counts: Mapping[str, np.ndarray]) -> dict[str, float]:
        found = {"accuracy": float(counts["right"] / counts["words"])}
        if self.spans is not None:
            names = ("true_spans", "predicted_spans", "right_spans")
            found |= span_metrics(*(int(counts[name]) for name in names))
        return found

    def baseline(self, train_table: Any, table: Any) -> dict[str, float]:
        """Return the metrics of predicting the most frequent tag of each word in the training set.

        All words outside the vocabulary share one token. If a token does not occur in the training
        set, the most frequent tag of all words is predicted.
        """
        words, tags = (train_table.columns[name].values for name in (COLUMN, "tags"))
        counts = np.zeros((self.tokenizer.get_vocab_size(), len(self.labels)), np.int64)
        np.add.at(counts, (words, tags), 1)
        counts[counts.sum(axis=1) == 0] = counts.sum(axis=0)
        taken = table.take(np.arange(len(table)), int(table.lengths((COLUMN,)).max()))
        batch = {name: jnp.asarray(column) for name, column in taken.items()}
        predicted = jnp.asarray(counts.argmax(axis=1))[batch[COLUMN]]
        found = jax.jit(self._count)(batch["tags"], predicted, length_mask(batch, "tags"))
        return self.metrics({name: np.asarray(count) for name, count in found.items()})

    def make_predictions(self, rows: Sequence[Mapping[str, Any]], outputs: Any) -> list[Prediction]:
        """Return the tags. Each word has a line with two columns, the word and its tag.

        An empty line ends the sentence.
        """
        predictions = []
        for row, best in zip(rows, np.asarray(outputs.logits.argmax(axis=-1)), strict=False):
            words = row["text"].split()
            tags = [self.labels[i] for i in best[: len(words)]]
            lines = (f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True))
            values = {**row, "words": words, "tags": tags}
            predictions.append(Prediction(values, " ".join(tags), "".join(lines)))
        return predictions

    def _count(
        self, true: Int[Array, "B T"], predicted: Int[Array, "B T"], valid: Bool[Array, "B T"]
    ) -> dict[str, Array]:
        """Count the words and the correct tags. If the tags mark spans, also count the spans.

        `valid` is True for the words to count, and False for padding.
        """
        right = valid & (true == predicted)
        counts = {
            "words": jnp.sum(valid, dtype=jnp.int32),
            "right": jnp.sum(right, dtype=jnp.int32),
        }
        spans = self.spans
        return counts if spans is None else counts | count_spans(true, predicted, valid, spans)

    @classmethod
    def make_tokenizer(cls, config: Any, dataset: TextBuilder) -> Tokenizer:
        return train_word_level(
            iterate_training_texts(dataset, cls.fields),
            min_count=config.min_count,
            max_size=config.vocabulary,
            split_punctuation=False,
        )

    @classmethod
    def list_labels(cls, dataset: TextBuilder) -> tuple[str, ...]:
        return read_labels(dataset)

    @classmethod
    def describe_examples(
        cls, config: Any, dataset: TextBuilder, tables: Mapping[str, Table]
    ) -> list[str]:
        long_examples = describe_long_examples(
            dataset, tables, (COLUMN,), config.longest, name="sentences", unit="words"
        )
        return [*long_examples, *describe_words(config, tables, read_labels(dataset))]

    @classmethod
    def read_table(
        cls, config: Any, dataset: TextBuilder, split: str, tokenizer: Tokenizer
    ) -> Table:
        """Return the examples of a split: the token id, the spelling and the tag of each word.

        Training sentences with more than `longest` words are left out.
        """
        rows = read_examples(dataset, split)
        if split == "train":
            longest = config.data.longest
            short = [row for row in rows if len(row["label"]) <= longest]
            if not short:
                raise DataError(
                    f"--data.longest ({longest}) must be at least the number of words of some "
                    f"training sentence; all {len(rows):,} sentences are longer."
                )
            rows = short
        columns = encode_words([row["text"] for row in rows], tokenizer, config.data.spelling_bytes)
        tags = np.asarray([tag for row in rows for tag in row["label"]], np.int32)
        words = columns[COLUMN]
        assert isinstance(words, Ragged)
        return Table({**columns, "tags": Ragged(tags, words.offsets)})


def encode_words(
    texts: Sequence[str], tokenizer: Tokenizer, width: int
) -> dict[str, Ragged | Nested]:
    """Return a dict with the columns `words` and `spelling`.

    The column `words` contains the token id of every word. The column `spelling` contains the UTF-8
    bytes of every word. 1 is added to each byte, because 0 is padding.

    Args:
      texts: Sentences. Words must be separated by single spaces.
      tokenizer: Tokenizer with one token for each word.
      width: Largest number of bytes of a word. Further bytes are cut.
    """
    words = [text.split(" ") if text else [] for text in texts]
    tokens = encode(tokenizer, texts)
    counts = [len(row) for row in words]
    assert tokens.lengths.tolist() == counts  # one token for each word
    spelling = [np.frombuffer(word.encode(), np.uint8) for row in words for word in row]
    values = np.concatenate([np.zeros(0, np.int32), *spelling]).astype(np.int32) + 1
    offsets = np.cumsum([0, *map(len, spelling)], dtype=np.int64)
    return {COLUMN: tokens, "spelling": Nested.from_counts(Ragged(values, offsets), counts, width)}


def describe_words(
    config: TaggingData, tables: Mapping[str, Table], labels: Sequence[str]
) -> list[str]:
    """Return messages about the words and tags of all splits, and about truncated spellings."""
    counts = (f"{table.lengths((COLUMN,)).sum():,} of {split}" for split, table in tables.items())
    spans = parse_tags(labels)
    kind = "" if spans is None else f", which mark spans of {spans.types.max()} types"
    lines = [f"words: {', '.join(counts)}; {len(labels)} tags{kind}"]
    trained = np.unique(tables["train"].columns["tags"].values)  # type: ignore[union-attr]
    for split in SPLITS[1:]:
        found = np.unique(tables[split].columns["tags"].values)  # type: ignore[union-attr]
        unseen = [labels[i] for i in np.setdiff1d(found, trained)]
        if unseen:
            lines.append(f"tags of {split} that train lacks: {', '.join(unseen)}")
    spelling = tables["train"].columns["spelling"]
    if spelling.truncated:  # type: ignore[union-attr]
        lines.append(
            f"{spelling.truncated:,} words of train have more than "  # type: ignore[union-attr]
            f"{config.spelling_bytes} bytes (--data.spelling-bytes); their spelling is cut"
        )
    return lines
