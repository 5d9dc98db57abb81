"""Texts into numbers: three kinds of vocabulary, each learned from the texts it is given.

The same texts give the same ids, always: a checkpoint depends on it. Id 0 is padding, id 1 a word
that is unknown, and no text can spell either.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from distattn_jax.data.table import Ragged

AnyPath = str | Path | epath.Path  # a folder or a bucket
PADDING_TOKEN, UNKNOWN_TOKEN = "[PAD]", "[UNK]"  # ids 0 and 1
SPECIAL = [PADDING_TOKEN, UNKNOWN_TOKEN]
CHUNK = 10_000  # texts encoded at a time: their encodings are far larger than their ids


def train_word_level(
    texts: Iterable[str], *, min_count: int = 1, max_size: int | None = None
) -> Tokenizer:
    r"""Lower-cased words and runs of punctuation (`\w+|[^\w\s]+`), the most frequent first.

    Args:
      texts: the training texts.
      min_count: rarer words are unknown.
      max_size: at most so many ids, padding and unknown among them; ties go by the alphabet.
    """
    tokenizer = _lower_cased(Tokenizer(models.WordLevel(unk_token=UNKNOWN_TOKEN)))
    trainer = trainers.WordLevelTrainer(
        vocab_size=2**31 if max_size is None else max_size,
        min_frequency=min_count,
        special_tokens=SPECIAL,
        show_progress=False,
    )
    return _trained(tokenizer, trainer, texts)


def train_word_piece(texts: Iterable[str], *, size: int) -> Tokenizer:
    """Lower-cased words cut into their longest known pieces; `##` marks one inside a word.

    Args:
      texts: the training texts.
      size: the number of ids; fewer when the texts have no more pieces.
    """
    tokenizer = _lower_cased(Tokenizer(models.WordPiece(unk_token=UNKNOWN_TOKEN)))
    tokenizer.decoder = decoders.WordPiece()
    texts = list(texts)
    seen = sorted(set().union(*map(tokenizer.normalizer.normalize_str, texts)))
    characters = [c for c in seen if tokenizer.pre_tokenizer.pre_tokenize_str(c)]  # no spaces
    _check_size(size, 2 + 2 * len(characters), "both forms of every character of the texts")
    # The library numbers `##` characters in the order of a hash, unless they are given.
    inside = [f"##{character}" for character in characters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=SPECIAL + inside, show_progress=False
    )
    return _trained(tokenizer, trainer, texts)


def train_byte_level_bpe(texts: Iterable[str], *, size: int) -> Tokenizer:
    """Pieces of UTF-8, case and spaces kept: no text is unknown, and every text can be restored.

    Args:
      texts: the training texts.
      size: the number of ids; fewer when the texts have no more pieces.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _check_size(size, 2 + len(alphabet), "every byte")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    return _trained(tokenizer, trainer, texts)


TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "word_level": train_word_level,
    "word_piece": train_word_piece,
    "byte_level_bpe": train_byte_level_bpe,
}


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Ragged:
    """The ids of every text."""
    lengths: list[int] = []
    values = [np.zeros(0, np.int32)]
    for start in range(0, len(texts), CHUNK):
        ids = [e.ids for e in tokenizer.encode_batch_fast(list(texts[start : start + CHUNK]))]
        lengths += map(len, ids)
        values.append(np.fromiter(itertools.chain.from_iterable(ids), np.int32))
    return Ragged(np.concatenate(values), np.cumsum([0, *lengths], dtype=np.int64))


def save_tokenizer(tokenizer: Tokenizer, path: AnyPath) -> None:
    """Write `tokenizer.json`, which every library of this family reads."""
    epath.Path(path).parent.mkdir(parents=True, exist_ok=True)
    epath.Path(path).write_text(tokenizer.to_str(pretty=True))


def load_tokenizer(path: AnyPath) -> Tokenizer:
    """Read `tokenizer.json`."""
    if not epath.Path(path).is_file():
        raise FileNotFoundError(f"path must be a tokenizer.json; {path} is not there.")
    return Tokenizer.from_str(epath.Path(path).read_text())


def _lower_cased(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def _trained(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> Tokenizer:
    """Its special tokens are ids only: a text that says [PAD] is words like any other."""
    if isinstance(texts, str):
        raise ValueError(f"texts must be a collection of texts; got the one text {texts[:40]!r}.")
    tokenizer.train_from_iterator(texts, trainer)
    description = json.loads(tokenizer.to_str())
    return Tokenizer.from_str(json.dumps({**description, "added_tokens": []}))


def _check_size(size: int, least: int, reason: str) -> None:
    if size < least:
        raise ValueError(f"size must be at least {least}, for {reason}; got {size}.")
