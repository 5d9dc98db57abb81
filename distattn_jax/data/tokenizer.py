"""Split texts into sentences, and into tokens: words, word pieces, or byte pairs.

Training is deterministic, because checkpoints depend on the token ids: the same texts always result
in the same ids. Id 0 is padding, and id 1 is an unknown word. Tokenizers for models that generate
text also have id 2, which ends a text. If a text contains "[PAD]", "[UNK]" or "[END]", these
characters are encoded like any other text.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from etils import epath
from jaxtyping import Int
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from distattn_jax.data.files import AnyPath, DataError, read_text
from distattn_jax.data.table import Ragged
from distattn_jax.token_ids import END_ID

PADDING_TOKEN, UNKNOWN_TOKEN = "[PAD]", "[UNK]"
SPECIAL_TOKENS = [PADDING_TOKEN, UNKNOWN_TOKEN]  # in the order of their ids
END_TOKEN = "[END]"  # only in tokenizers that are trained with `end=True`
TokenIds = Sequence[int] | Int[np.ndarray, " T"]
CHUNK_SIZE = 10_000  # texts encoded at a time, because encodings need much more memory than ids
# A sentence ends at one of these:
# - marks and closing quotes or brackets, before white space or the end of the text;
# - marks between a lower-case letter or digit and a capital ("fine.But"), common in reviews;
# - a line break.
LONGEST_WORD = 1000  # characters of a word that the training of a tokenizer sees
LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")
SENTENCE_END = re.compile(
    r"""
      [.!?](?:\ *[.!?])*["')\]”’]*(?=\s|$)
    | (?<=[a-z0-9])[.!?]+(?=[A-Z])
    | [\r\n]+
    """,
    re.VERBOSE,
)


def train_word_level(
    texts: Iterable[str],
    *,
    min_count: int = 1,
    max_size: int | None = None,
    split_punctuation: bool = True,
) -> Tokenizer:
    r"""Train a tokenizer whose tokens are lower-cased words and runs of punctuation.

    The tokens of a text are the matches of `\w+|[^\w\s]+`. The most frequent token gets the lowest
    id.

    Args:
      texts: Training texts.
      min_count: Minimum number of occurrences of a word. Rarer words become the unknown token.
      max_size: Maximum size of the vocabulary, including the padding token and the unknown token.
        Among equally frequent words, the first in alphabetical order are kept. None sets no limit.
      split_punctuation: If False, texts are split only at spaces, and the tokens are lower-cased
        words. Use this for texts whose words are already separated by spaces.
    """
    tokenizer = _lower_case(Tokenizer(models.WordLevel(unk_token=UNKNOWN_TOKEN)))
    if not split_punctuation:
        tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = trainers.WordLevelTrainer(
        vocab_size=2**31 if max_size is None else max_size,
        min_frequency=min_count,
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    return _train(tokenizer, trainer, texts)


def train_word_piece(texts: Iterable[str], *, size: int) -> Tokenizer:
    """Train a WordPiece tokenizer on lower-cased texts.

    A word is encoded from left to right, each time by the longest piece that the vocabulary
    contains. `##` marks a piece that does not begin a word.

    Args:
      texts: Training texts.
      size: Size of the vocabulary. The vocabulary is smaller if the texts contain fewer pieces.
    """
    tokenizer = _lower_case(Tokenizer(models.WordPiece(unk_token=UNKNOWN_TOKEN)))
    tokenizer.decoder = decoders.WordPiece()
    texts = list(texts)
    found = sorted(set().union(*map(tokenizer.normalizer.normalize_str, texts)))
    characters = [c for c in found if tokenizer.pre_tokenizer.pre_tokenize_str(c)]  # no spaces
    _check_size(size, 2 + 2 * len(characters), "both forms of every character of the texts")
    # Passed as special tokens, the `##` characters have fixed ids. Otherwise the library numbers
    # them in the order of a hash table, which varies between runs.
    inner_characters = [f"##{character}" for character in characters]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=SPECIAL_TOKENS + inner_characters, show_progress=False
    )
    return _train(tokenizer, trainer, texts)


def train_byte_level_bpe(texts: Iterable[str], *, size: int, end: bool = False) -> Tokenizer:
    """Train a byte-level BPE (byte pair encoding) tokenizer.

    Every text can be encoded without unknown tokens and decoded to exactly the same text, including
    case and spaces.

    Args:
      texts: Training texts.
      size: Size of the vocabulary. The vocabulary is smaller if the texts contain fewer pieces.
      end: If True, the tokenizer appends the token "[END]", with id 2, to every text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special_tokens = [*SPECIAL_TOKENS, *([END_TOKEN] if end else [])]
    _check_size(size, len(special_tokens) + len(alphabet), "every byte")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    trained = _train(tokenizer, trainer, texts)
    if end:
        trained.post_processor = processors.TemplateProcessing(
            single=f"$A {END_TOKEN}", special_tokens=[(END_TOKEN, END_ID)]
        )
    return trained


TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "word_level": train_word_level,
    "word_piece": train_word_piece,
    "byte_level_bpe": train_byte_level_bpe,
}


def split_sentences(text: str) -> list[str]:
    """Return the nonempty sentences of a text in order, without surrounding white space.

    A sentence ends after one or more of the marks `.`, `!` and `?`, or at a line break. Marks
    inside a word or a number (example.com, 3.5) are ignored. An abbreviation such as `Mr.` wrongly
    ends a sentence.

    >>> split_sentences("I paid 3.5 dollars... Worth it!!! (Really.)")
    ['I paid 3.5 dollars...', 'Worth it!!!', '(Really.)']
    """
    cuts = [0, *(end.end() for end in SENTENCE_END.finditer(text)), len(text)]
    pieces = (text[start:stop].strip() for start, stop in itertools.pairwise(cuts))
    return [piece for piece in pieces if piece]


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Ragged:
    """Return the token ids of every text, with the end token if the tokenizer has one."""
    lengths: list[int] = []
    values = [np.zeros(0, np.int32)]
    remaining = iter(texts)
    while chunk := list(itertools.islice(remaining, CHUNK_SIZE)):
        ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(chunk)]
        lengths += map(len, ids)
        values.append(np.fromiter(itertools.chain.from_iterable(ids), np.int32))
    return Ragged(np.concatenate(values), np.cumsum([0, *lengths], dtype=np.int64))


def decode(tokenizer: Tokenizer, sequences: Iterable[TokenIds]) -> list[str]:
    """Return the text of every sequence of token ids.

    Padding and everything after the first end token is left out. The tokenizer must be trained
    with `end=True`.
    """
    texts = []
    for sequence in sequences:
        ids = itertools.takewhile(lambda token: token != END_ID, map(int, sequence))
        texts.append(tokenizer.decode([token for token in ids if token > END_ID]))
    return texts


def save_tokenizer(tokenizer: Tokenizer, path: AnyPath) -> None:
    """Write a tokenizer to a JSON file in the format of the Hugging Face tokenizers library."""
    epath.Path(path).parent.mkdir(parents=True, exist_ok=True)
    epath.Path(path).write_text(tokenizer.to_str(pretty=True))


def load_tokenizer(path: AnyPath) -> Tokenizer:
    """Read a tokenizer from a JSON file in the format of the Hugging Face tokenizers library.

    Raise `DataError` if its V token ids are not 0 to V - 1.
    """
    if not epath.Path(path).is_file():
        raise FileNotFoundError(f"path must be a tokenizer.json; {path} does not exist.")
    tokenizer = parse_tokenizer(path)
    ids = tokenizer.get_vocab().values()
    if sorted(ids) != list(range(len(ids))):
        raise DataError(f"{path}: the ids of its tokens must be 0 to {len(ids) - 1}.")
    return tokenizer


def parse_tokenizer(path: AnyPath) -> Tokenizer:
    """Read a tokenizer from a JSON file, without the check of token ids in `load_tokenizer`."""
    text = read_text(path)
    try:
        tokenizer = Tokenizer.from_str(text)
        tokenizer.encode("☃ ꙮ")  # Raise an error now if the token of unknown words is missing.
    except Exception as error:  # The library raises no narrower class.
        raise DataError(f"{path}: not a tokenizer, {error}.") from None
    return tokenizer


def _lower_case(tokenizer: Tokenizer) -> Tokenizer:
    """Configure a tokenizer to lower-case texts and split them into words and punctuation."""
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer. It encodes "[PAD]", "[UNK]" and "[END]" in a text like any other text.

    Training sees only the first `LONGEST_WORD` characters of a word, because its time grows with
    the square of the length of a word. The trained tokenizer encodes words of any length.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts must be a collection of texts; got the one text {texts[:40]!r}.")
    limited = (LONG_WORD.sub(lambda word: word[0][:LONGEST_WORD], text) for text in texts)
    tokenizer.train_from_iterator(limited, trainer)
    description = json.loads(tokenizer.to_str())
    return Tokenizer.from_str(json.dumps({**description, "added_tokens": []}))


def _check_size(size: int, minimum: int, reason: str) -> None:
    """Raise `ValueError` if the vocabulary size is below `minimum`. The message has the reason."""
    if size < minimum:
        raise ValueError(
            f"size (--data.vocabulary) must be at least {minimum}, for {reason}; got {size}."
        )
