"""What all tasks on pre-trained models share, whose attention may be guided.

What is read is `tokens` (B, T) as the model's own tokenizer writes them, with `types`; a guide may
need further columns, of the training set only. A method is the name of a guide, of `GUIDES`.
"""

import abc
import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx
from tokenizers import Tokenizer

from distattn_jax.data import (
    DataError,
    Nested,
    ParsedTexts,
    Ragged,
    Table,
    TextBuilder,
    count_pmi,
    encode_pairs,
    list_words,
    load_pretrained_tokenizer,
    load_word_vectors,
)
from distattn_jax.models import PretrainedClassifier, PretrainedConfig
from distattn_jax.models import pretrained as models
from distattn_jax.train import pretrained_source
from distattn_jax.train.config import ANY_LAYER, Config, DataConfig, ModelConfig
from distattn_jax.train.guides import GUIDES, Aim
from distattn_jax.train.losses import Loss, WeightedLoss
from distattn_jax.train.members import Setting
from distattn_jax.train.task import Batch
from distattn_jax.train.text_task import Own, TextTask

PERIODS = (".", "Ġ.", "▁.")  # as the families write it, after a space and not
DELIMITERS = ("[SEP]", "</s>")


class Texts(NamedTuple):
    """The pairs of a split.

    Attributes:
      firsts, seconds: their texts; seconds None: each text stands alone.
      counts: how many pairs make an example.
      answers: the columns that are to be found, and what a baseline says of them.
    """

    firsts: Sequence[str]
    seconds: Sequence[str] | None
    counts: Sequence[int]
    answers: Mapping[str, np.ndarray | Ragged]


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs(Table):
    """A table of pairs, `cut` of which had more than `longest` tokens."""

    cut: int = 0
    longest: int = 0


class FineTuning(TextTask):
    """What tasks on pre-trained models share.

    Args:
      method: name of the guide.
      config: which model, and how it is computed.
      labels: names of the classes; none where there are no classes.
      tokenizer: that of the model.
      tables: the examples of each split; none to predict.
      pretrained: what the model is made of.
      parameters: of its encoder, by their paths; none where they come from a checkpoint.
      aim: what the guides are told.
      constants: arrays that guides need; those of other guides are left out.
    """

    methods = GUIDES
    by = ("tokens",)
    read: ClassVar[tuple[str, ...]] = ("tokens", "types")
    unread = (
        *("data.sentences", "data.tokenizer", "data.vocabulary", "data.min_count"),
        *("model.pooling_features", "model.max_distance"),
        *("model.initial_weight", "model.initial_shape", "optimizer.distance_rate"),
    )

    def __init__(
        self,
        method: str,
        config: ModelConfig,
        *,
        labels: tuple[str, ...],
        tokenizer: Tokenizer,
        tables: Mapping[str, Any],
        pretrained: PretrainedConfig,
        parameters: Mapping[tuple[str | int, ...], np.ndarray] | None = None,
        aim: Aim = Aim(),
        constants: Mapping[str, np.ndarray] | None = None,
    ):
        super().__init__(method, config, labels=labels, tokenizer=tokenizer, tables=tables)
        self.pretrained, self.parameters = pretrained, parameters or {}
        guiding = self.guiding = GUIDES[method]
        self.one_layer = aim.one_layer
        self.losses = {name: self.of_examples(loss) for name, loss in guiding.of(aim).items()}
        self.guides = {name: WeightedLoss(loss, 1.0) for name, loss in self.losses.items()}
        self.constants = {name: (constants or {})[name] for name in guiding.constants if constants}
        if tables:
            unused = {name for other in GUIDES.values() for name in other.columns}
            unused -= set(guiding.columns)
            self.tables = {**tables, "train": _without(tables["train"], unused)}

    @classmethod
    def check(cls, config: Config) -> None:
        cls.check_methods(config)
        cls.check_unread(config)
        if not config.model.pretrained:
            raise DataError(
                f"the task {config.task} needs --model.pretrained, the folder or hub name of a "
                "pre-trained model."
            )
        for method, given in (("dependency", "parses"), ("word_similarity", "vectors")):
            if method in config.methods and not getattr(config.data, given):
                raise DataError(f"the guide {method} needs --data.{given}; got none.")
        pretrained_source.check(config)

    @classmethod
    def tokenizer_of(cls, builder: TextBuilder, config: Config) -> Tokenizer:
        return load_pretrained_tokenizer(models.resolve_folder(config.model.pretrained))

    @classmethod
    @abc.abstractmethod
    def pairs(cls, builder: TextBuilder, split: str, config: DataConfig) -> Texts:
        """The texts of a split; of the training set, the share that is asked for."""

    @classmethod
    def laid(cls, column: Ragged, texts: Texts, config: DataConfig) -> Ragged | Nested:
        """A column of pairs as a column of examples."""
        return column

    @classmethod
    def table(
        cls, builder: TextBuilder, split: str, tokenizer: Tokenizer, config: DataConfig
    ) -> Pairs:
        texts = cls.pairs(builder, split, config)
        if not texts.counts:
            raise DataError(f"the split {split!r} of {builder.name} has no examples.")
        encoded = encode_pairs(tokenizer, texts.firsts, texts.seconds, config.longest)
        columns = {name: cls.laid(encoded.columns[name], texts, config) for name in cls.read}
        return Pairs({**columns, **texts.answers}, encoded.truncated, config.longest)

    @classmethod
    def average_length(cls, table: Any) -> float:
        column = table.columns["tokens"]
        inner = column.inner if isinstance(column, Nested) else column
        return float(inner.lengths.mean())

    @classmethod
    def sequence_lengths(cls, table: Any) -> dict[str, float]:
        return {"text": cls.average_length(table)}

    @classmethod
    def about_the_table(cls, table: Any) -> list[str]:
        return [f"{table.cut} of the texts of train are cut to {table.longest} tokens"]

    @classmethod
    def own(
        cls,
        config: Config,
        builder: TextBuilder,
        tokenizer: Tokenizer,
        tables: Mapping[str, Any],
        *,
        folder: epath.Path,
    ) -> Own:
        """The pre-trained parameters, and what the guides need of the training set."""
        source = models.resolve_folder(config.model.pretrained)
        sizes = dataclasses.replace(models.read_config(source), pooler=False)
        if tokenizer.get_vocab_size() > sizes.vocabulary:
            raise DataError(
                f"{source}: the tokenizer must have at most the {sizes.vocabulary} tokens of the "
                f"model; got {tokenizer.get_vocab_size()}."
            )
        aim = Aim(
            layers=config.guiding.layers or None,
            one_layer=config.guiding.layer != (ANY_LAYER,),
            scaling=config.guiding.scaling,
            temperature=config.guiding.temperature,
            periods=_ids(tokenizer, PERIODS),
            delimiters=_ids(tokenizer, DELIMITERS),
        )
        table, constants = cls._guided(config, builder, tokenizer, tables["train"])
        arguments = {
            "pretrained": sizes,
            "parameters": models.read_parameters(source, sizes),
            "aim": aim,
            "constants": constants,
        }
        about = pretrained_source.about(source, config.model.pretrained, sizes)
        said = (
            f"{about['name']}: {sizes.family}, {sizes.layers} layers of {sizes.heads} heads, "
            f"stored as {' and '.join(about['stored'])}"
        )
        model = pretrained_source.sized(config.model, sizes)
        config = dataclasses.replace(config, model=model)
        tables = {**tables, "train": table}
        return Own(config, arguments, tables, {"pretrained": about}, (said,))

    @classmethod
    def _guided(
        cls, config: Config, builder: TextBuilder, tokenizer: Tokenizer, table: Pairs
    ) -> tuple[Pairs, dict[str, np.ndarray]]:
        """The training set with the columns that guides need; and the arrays that they need.

        PMI is counted on pairs as the model reads them: a claim counts with each of its candidates.
        """
        constants: dict[str, np.ndarray] = {}
        if "pmi" in config.methods:
            tokens = table.columns["tokens"]
            every = tokens.inner if isinstance(tokens, Nested) else tokens
            assert isinstance(every, Ragged)
            found = count_pmi(every, tokenizer.get_vocab_size(), size=config.guiding.pmi_tokens)
            constants |= {"pmi_row_of_token": found.row_of_token, "pmi_values": found.values}
        names = [name for method in config.methods for name in GUIDES[method].columns]
        if not names:
            return table, constants
        texts = cls.pairs(builder, "train", config.data)
        rows = None
        if "vectors" in names:
            words = list_words(tokenizer, [*texts.firsts, *(texts.seconds or ())])
            rows, constants["word_vectors"] = load_word_vectors(config.data.vectors, words)
        encoded = encode_pairs(
            tokenizer,
            texts.firsts,
            texts.seconds,
            config.data.longest,
            parses=ParsedTexts(config.data.parses) if "heads" in names else None,
            vectors=rows,
        )
        columns = {name: cls.laid(encoded.columns[name], texts, config.data) for name in names}
        return dataclasses.replace(table, columns={**table.columns, **columns}), constants

    @classmethod
    def arguments_of(cls, about: Mapping[str, Any]) -> dict[str, Any]:
        return {"pretrained": PretrainedConfig(**about["pretrained"]["config"])}

    def initial(self) -> Mapping[tuple[str | int, ...], np.ndarray]:
        """The encoder's parameters; the layer of the classes is drawn."""
        return {("encoder", *path): array for path, array in self.parameters.items()}

    def guides_of(self, setting: Setting) -> Mapping[str, WeightedLoss]:
        return self.guiding.weighted(self.losses, setting, one_layer=self.one_layer)

    def of_examples(self, loss: Loss) -> Loss:
        """The loss of a guide, which is one of texts, as one of examples."""
        return loss

    def classifier(self, classes: int, rngs: nnx.Rngs) -> PretrainedClassifier:
        """With its first parameters, all of them drawn."""
        return PretrainedClassifier(
            self.pretrained,
            classes,
            implementation=self.config.implementation or None,
            dtype=jnp.dtype(self.config.dtype),
            remat=self.config.remat,
            rngs=rngs,
        )

    def outputs_to_learn(self, model: Any, batch: Batch, **dropout: Any) -> Any:
        looked_at: Any = {"received": self.guiding.received, "weights": self.guiding.maps}
        return self.outputs(model, batch, **looked_at, **dropout)


def share_of(rows: int, split: str, config: DataConfig) -> Sequence[int]:
    """The rows of a split to be learned from; a smaller share is a part of every larger one."""
    if split != "train" or config.share == 1:
        return range(rows)
    drawn = random.Random(f"share {config.seed}").sample(range(rows), rows)
    return sorted(drawn[: max(round(config.share * rows), 1)])


def _without(table: Pairs, names: set[str]) -> Pairs:
    kept = {name: column for name, column in table.columns.items() if name not in names}
    return dataclasses.replace(table, columns=kept)


def _ids(tokenizer: Tokenizer, tokens: Sequence[str]) -> tuple[int, ...]:
    ids = (tokenizer.token_to_id(token) for token in tokens)
    return tuple(i for i in ids if i is not None)
