"""Data for fine-tuning: token ids, columns for guides, and the pre-trained model.

A guide is a set of auxiliary losses on the attention.
"""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
    round_length,
)
from distattn_jax.models import PretrainedConfig
from distattn_jax.models import pretrained as models
from distattn_jax.tasks.configs import FineTuningConfig, FineTuningData
from distattn_jax.tasks.guides import GUIDES
from distattn_jax.tasks.preparation import (
    SPLITS,
    PreparedData,
    TextLengths,
    describe_prepared,
    open_dataset,
)

COLUMNS = ("tokens", "types")


class EncoderTexts(NamedTuple):
    """Texts of a split for a pre-trained encoder.

    Attributes:
      first: First text of every pair, or all texts if there are no pairs.
      second: Second text of every pair. None if there are no pairs.
      counts: Number of consecutive texts or pairs that form each example. None if every text or
        pair is a separate example.
      answers: Dict from name to column, for the columns that the model predicts, such as `label`,
        and the columns that the baseline needs.
    """

    first: Sequence[str]
    second: Sequence[str] | None
    counts: Sequence[int] | None
    answers: Mapping[str, np.ndarray | Ragged]


ReadTexts = Callable[[TextBuilder, str, FineTuningData], EncoderTexts]


def check(config: FineTuningConfig) -> None:
    """Raise an error if a required path is missing, or the config does not fit the model.

    The pre-trained model limits three options: the length of a text, the indices of guided layers,
    and the number of devices that share the heads.
    """
    source = config.model.pretrained
    if not source:
        raise DataError(
            f"the task {config.task} needs --model.pretrained, the folder or hub name of a "
            "pre-trained model."
        )
    for method, name in (("dependency", "parses"), ("word_similarity", "vectors")):
        if method in config.methods and not getattr(config.data, name):
            raise DataError(f"the guide {method} needs --data.{name}; got none.")
    sizes = read_sizes(source)
    if config.data.longest > sizes.max_length:
        raise ValueError(
            f"--data.longest must be at most {sizes.max_length}, the positions of {source}; "
            f"got {config.data.longest}."
        )
    for name in ("layers", "layer"):
        layers = getattr(config.guiding, name)
        if any(layer > sizes.layers for layer in layers):
            raise ValueError(
                f"--guiding.{name} must be from 1 to {sizes.layers}, the layers of {source}; "
                f"got {layers}."
            )
    if sizes.heads % config.mesh.model:
        raise ValueError(
            f"--mesh.model must divide {sizes.heads}, the heads of {source}; "
            f"got {config.mesh.model}."
        )


def prepare_fine_tuning(
    config: FineTuningConfig,
    read_texts: ReadTexts,
    list_labels: Callable[[TextBuilder], tuple[str, ...]],
) -> PreparedData:
    """Prepare a data set and load the parameters of a pre-trained model.

    Args:
      config: Config of the experiment.
      read_texts: Function that returns the texts of one split.
      list_labels: Function that returns the names of the classes.
    """
    check(config)
    dataset = open_dataset(config.data)
    folder = models.resolve_folder(config.model.pretrained)
    tokenizer = load_pretrained_tokenizer(folder)
    sizes = read_sizes(config.model.pretrained)
    if tokenizer.get_vocab_size() > sizes.vocabulary:
        raise DataError(
            f"{folder}: the tokenizer must have at most the {sizes.vocabulary} tokens of the "
            f"model; got {tokenizer.get_vocab_size()}."
        )
    texts = {split: read_texts(dataset, split, config.data) for split in SPLITS}
    tables, truncated = {}, {}
    for split in SPLITS:
        tables[split], truncated[split] = make_table(texts[split], tokenizer, config.data.longest)
    lengths = _list_texts(tables["train"]).lengths
    mean_length, longest = float(lengths.mean()), int(lengths.max(initial=1))
    tables["train"], constants = _add_guide_columns(
        config, texts["train"], tokenizer, tables["train"]
    )
    source = describe_source(config.model.pretrained, sizes)
    layers = "1 layer" if sizes.layers == 1 else f"{sizes.layers} layers"
    parameters = models.read_parameters(folder, sizes).items()
    return describe_prepared(
        config,
        dataset,
        tokenizer,
        tables,
        lengths=TextLengths(mean_length, {"text": mean_length}, {"text": longest}),
        messages=(
            f"{truncated['train']} of the texts of train are cut to {config.data.longest} tokens",
            f"{source['name']}: {sizes.family}, {layers} of {sizes.heads} heads, "
            f"stored as {' and '.join(source['stored'])}",
        ),
        pretrained=source,
        labels=list_labels(dataset),
        initial_parameters={("encoder", *path): array for path, array in parameters},
        constants=constants,
    )


def make_table(texts: EncoderTexts, tokenizer: Tokenizer, longest: int) -> tuple[Table, int]:
    """Tokenize texts, and return a table of the token ids, token types and `texts.answers`.

    Args:
      texts: Texts of one split.
      tokenizer: Tokenizer of the pre-trained model.
      longest: Maximum number of tokens of a text or pair.

    Returns:
      The table, and the number of texts or pairs that were truncated.
    """
    encoded = encode_pairs(tokenizer, texts.first, texts.second, longest)
    columns = {name: _group(encoded.columns[name], texts, longest) for name in COLUMNS}
    return Table({**columns, **texts.answers}), encoded.truncated


def sample_rows(count: int, split: str, config: FineTuningData) -> Sequence[int]:
    """Return the indices of the rows of a split that are used.

    In the split `train`, the fraction `config.share` of the rows is drawn at random. The rows of a
    small fraction are a part of the rows of a larger fraction with the same seed. In other splits,
    all rows are used.

    Args:
      count: Number of rows of the split.
      split: Name of the split.
      config: Options of the data, with the fraction and the seed.
    """
    if split != "train" or config.share == 1:
        return range(count)
    order = random.Random(f"share {config.seed}").sample(range(count), count)
    return sorted(order[: max(round(config.share * count), 1)])


def _add_guide_columns(
    config: FineTuningConfig, texts: EncoderTexts, tokenizer: Tokenizer, table: Table
) -> tuple[Table, dict[str, np.ndarray]]:
    """Add the columns that the auxiliary attention losses (guides) of a config need.

    Pointwise mutual information is computed from the tokenized texts or pairs. In claim ranking,
    the tokens of a claim are therefore counted once for each candidate of the claim.

    Returns:
      The table with the added columns, and a dict of arrays that the losses need and that are the
      same for all batches.
    """
    constants: dict[str, np.ndarray] = {}
    if "pmi" in config.methods:
        found = count_pmi(
            _list_texts(table), tokenizer.get_vocab_size(), size=config.guiding.pmi_tokens
        )
        constants |= {"pmi_row_of_token": found.row_of_token, "pmi_values": found.values}
    names = [name for method in config.methods for name in GUIDES[method].columns]
    if not names:
        return table, constants
    rows = None
    if "vectors" in names:
        words = list_words(tokenizer, [*texts.first, *(texts.second or ())])
        rows, constants["word_vectors"] = load_word_vectors(config.data.vectors, words)
    encoded = encode_pairs(
        tokenizer,
        texts.first,
        texts.second,
        config.data.longest,
        parses=ParsedTexts(config.data.parses) if "heads" in names else None,
        vectors=rows,
    )
    longest = config.data.longest
    columns = {name: _group(encoded.columns[name], texts, longest) for name in names}
    return dataclasses.replace(table, columns={**table.columns, **columns}), constants


def _group(column: Ragged, texts: EncoderTexts, longest: int) -> Ragged | Nested:
    """Convert a column with one row per text or pair to a column with one row per example."""
    if texts.counts is None:
        return column
    width = round_length(int(column.lengths.max(initial=1)), longest)
    return Nested.from_counts(column, texts.counts, width)


def _list_texts(table: Table) -> Ragged:
    """Return the token ids of a table, with one row per text or pair.

    An example of the table may consist of several texts or pairs.
    """
    column = table.columns["tokens"]
    inner = column.inner if isinstance(column, Nested) else column
    assert isinstance(inner, Ragged)
    return inner


def read_sizes(name: str) -> PretrainedConfig:
    """Read the sizes of a pre-trained model from its config.json.

    The result has `pooler=False`, because fine-tuning needs no pooler.

    Args:
      name: Folder or hub name of the model.
    """
    return dataclasses.replace(models.read_config(models.resolve_folder(name)), pooler=False)


def describe_source(name: str, sizes: PretrainedConfig) -> dict[str, Any]:
    """Return the name, digest, dtypes and sizes of a pre-trained model, for data.json of a run."""
    folder = models.resolve_folder(name)
    return {
        "name": Path(name).name,
        "digest": _digest_weights(folder),
        "stored": models.stored_dtypes(folder),
        "config": dataclasses.asdict(sizes),
    }


def _digest_weights(folder: Path) -> str:
    """Return a short SHA-256 digest of the weight files."""
    digest = hashlib.sha256()
    for path in models.weight_files(folder):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]
