"""What tasks on documents share: texts are cut into sentences, and these into words."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from distattn_jax.data import Nested, encode, split_sentences
from distattn_jax.train.config import DataConfig
from distattn_jax.train.task import Batch
from distattn_jax.train.text_task import FOR_PRETRAINED, TextTask


class Documents(TextTask):
    """A task whose model reads documents."""

    by = ("text",)
    unit = "sentences"
    unread = FOR_PRETRAINED
    embedding = ("document", "words", "embedding", "embedding")

    def longest(self, config: DataConfig) -> int | None:
        return config.sentences

    @classmethod
    def encoded(
        cls, rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, config: DataConfig
    ) -> dict[str, Any]:
        documents = [split_sentences(row["text"]) for row in rows]
        every = encode(tokenizer, [sentence for document in documents for sentence in document])
        longest = int(every.lengths.max(initial=1))
        width = min(config.longest, -(-longest // 8) * 8)  # few shapes, where texts come in parts
        return {"text": Nested.from_counts(every, [len(document) for document in documents], width)}

    @classmethod
    def average_length(cls, table: Any) -> float:
        return float(len(table.columns["text"].inner.values) / len(table))

    @classmethod
    def sequence_lengths(cls, table: Any) -> dict[str, float]:
        column = table.columns["text"]
        words, sentences = column.inner.lengths.mean(), column.lengths.mean()
        return {"words": float(words), "sentences": float(sentences)}

    @classmethod
    def about_the_table(cls, table: Any) -> list[str]:
        column = table.columns["text"]
        counted = f"{column.truncated} of {len(column.inner)} sentences of train"
        return [f"{counted} are cut to {column.width} tokens"]

    def outputs(self, model: Any, batch: Batch, **dropout: Any) -> Any:
        return model(batch["text"], batch["text_words"], batch["text_length"], **dropout)
