"""Encode texts and pairs of texts for a pre-trained model, with its tokenizer and special tokens.

BERT       [CLS] first [SEP] second [SEP]
RoBERTa    <s> first </s></s> second </s>
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, processors

from distattn_jax.data.conllu import ParsedTexts
from distattn_jax.data.files import AnyPath, DataError, read_json, read_text
from distattn_jax.data.table import Ragged
from distattn_jax.data.tokenizer import parse_tokenizer

CHUNK_SIZE = 10_000  # texts encoded at a time
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # special tokens of a vocab.txt
BERT_OPTIONS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")


class EncodedPairs(NamedTuple):
    """Encoded pairs of texts.

    Attributes:
      columns: Dict from name, e.g. `tokens`, to a column of integer sequences. Row i has the same
        length in all columns.
      truncated: Number of pairs that were truncated to the maximum length.
    """

    columns: dict[str, Ragged]
    truncated: int


def load_pretrained_tokenizer(folder: AnyPath) -> Tokenizer:
    """Load the tokenizer of a pre-trained model, with truncation and padding disabled.

    The folder must contain tokenizer.json or BERT's vocab.txt. If only vocab.txt exists, three
    options of the optional file tokenizer_config.json are used: do_lower_case (by default True if
    the vocabulary has no capital letters), strip_accents (by default equal to do_lower_case) and
    tokenize_chinese_chars (by default True).
    """
    complete, vocabulary = epath.Path(folder) / "tokenizer.json", epath.Path(folder) / "vocab.txt"
    if complete.is_file():
        tokenizer = parse_tokenizer(complete)
    elif vocabulary.is_file():
        tokenizer = _load_bert(vocabulary, epath.Path(folder) / "tokenizer_config.json")
    else:
        raise DataError(f"{folder}: must contain tokenizer.json or vocab.txt; found neither.")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_pairs(
    tokenizer: Tokenizer,
    first: Sequence[str],
    second: Sequence[str] | None,
    longest: int,
    *,
    parses: ParsedTexts | None = None,
    vectors: Mapping[str, int] | None = None,
) -> EncodedPairs:
    """Encode pairs of texts, or single texts, as columns with one integer per token.

    The columns are:

    - `tokens`: Token ids, including special tokens.
    - `types`: Token type. If the model has two types, tokens of the first text have type 0 and
      tokens of the second text have type 1.
    - `words`: Index of the word that contains the token. The first word of the first text has index
      1, and the second text continues the numbering. Special tokens have index 0. The pre-tokenizer
      splits a text into words. If `parses` is given, the words are those of the parse instead, and
      a token belongs to the word in which the token begins.
    - `heads`, if `parses` is given: Index of the syntactic head of the word that contains the
      token. Index 0 marks a root, or a word whose head was truncated.
    - `vectors`, if `vectors` is given: Row of the vector of the word that contains the token. Row 0
      marks a word without a vector. The words are those of the pre-tokenizer, even if `parses` is
      given.

    Args:
      tokenizer: Tokenizer that `load_pretrained_tokenizer` returned.
      first: First text of every pair.
      second: Second text of every pair. None encodes the first texts alone.
      longest: Maximum number of tokens of a pair. From a longer pair, tokens are removed one by
        one, each from the end of the text that is longer at that point. If both texts are equally
        long, the token is removed from the second text.
      parses: Dependency parses of all texts.
      vectors: Dict from each word that has a vector to the row of this vector. Rows start at 1. A
        word is looked up as written, then in lower case.
    """
    if second is not None and len(first) != len(second):
        raise ValueError(f"second must contain {len(first)} texts, as first; got {len(second)}.")
    special = tokenizer.num_special_tokens_to_add(second is not None)
    if longest <= special:
        raise ValueError(
            f"longest (--data.longest) must be more than the {special} special tokens; "
            f"got {longest}."
        )
    names = ["tokens", "types", "words"]
    names += [] if parses is None else ["heads"]
    names += [] if vectors is None else ["vectors"]
    columns: dict[str, list[np.ndarray]] = {name: [] for name in names}
    truncated = 0
    pairs = ((text,) for text in first) if second is None else zip(first, second, strict=True)
    for texts, encodings in _encode_texts(tokenizer, pairs):
        truncated += _truncate(encodings, longest - special)
        pair = tokenizer.post_process(encodings[0], None if second is None else encodings[1])
        columns["tokens"].append(np.asarray(pair.ids, np.int32))
        columns["types"].append(np.asarray(pair.type_ids, np.int32))
        not_special = np.asarray(pair.special_tokens_mask) == 0
        for name, values in _make_word_columns(texts, encodings, parses, vectors).items():
            column = np.zeros(len(not_special), np.int32)
            column[not_special] = values
            columns[name].append(column)
    return EncodedPairs({name: Ragged.from_rows(x) for name, x in columns.items()}, truncated)


def list_words(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return a sorted list of the distinct words of the texts.

    Each word is listed as written and also in lower case. The pre-tokenizer of `tokenizer` splits
    the texts into words.
    """
    found: set[str] = set()
    for (text,), (encoding,) in _encode_texts(tokenizer, ((text,) for text in texts)):
        found.update(_get_words(text, encoding).values())
    return sorted(found | {word.lower() for word in found})


def _encode_texts(
    tokenizer: Tokenizer, rows: Iterable[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[Encoding]]]:
    """Yield (texts, encodings without special tokens) for every row of one or two texts."""
    rows = iter(rows)
    while chunk := [row for _, row in zip(range(CHUNK_SIZE), rows, strict=False)]:
        columns = [
            tokenizer.encode_batch(list(texts), add_special_tokens=False)
            for texts in zip(*chunk, strict=True)
        ]
        for texts, *encodings in zip(chunk, *columns, strict=True):
            yield texts, encodings


def _truncate(encodings: list[Encoding], limit: int) -> bool:
    """Truncate one or two encodings in place, to at most `limit` tokens in total.

    If there are two encodings, the longer one is truncated until both have the same length. If this
    is not enough, both are truncated equally.

    Returns:
      True if a token was removed.
    """
    lengths = [len(encoding) for encoding in encodings]
    if sum(lengths) <= limit:
        return False
    if len(encodings) == 1:
        kept = [limit]
    else:
        # A text that is at most half of the limit is kept whole.
        first = min(lengths[0], max(limit - lengths[1], limit - limit // 2))
        kept = [first, limit - first]
    for encoding, length in zip(encodings, kept, strict=True):
        encoding.truncate(length)
    return True


def _make_word_columns(
    texts: tuple[str, ...],
    encodings: list[Encoding],
    parses: ParsedTexts | None,
    vectors: Mapping[str, int] | None,
) -> dict[str, np.ndarray]:
    """Make the columns `words`, `heads` and `vectors` of a text or a pair of texts.

    The columns contain no entries for special tokens.
    """
    columns: dict[str, list[np.ndarray]] = {"words": []}
    before = 0  # words of the previous texts
    for text, encoding in zip(texts, encodings, strict=True):
        words = np.asarray([-1 if i is None else i for i in encoding.word_ids], np.int64) + 1
        if vectors is not None:
            # A word is looked up as written, then in lower case.
            rows = {
                i: vectors.get(word) or vectors.get(word.lower(), 0)
                for i, word in _get_words(text, encoding).items()
            }
            columns.setdefault("vectors", []).append(np.asarray([rows.get(i, 0) for i in words]))
        count = words.max(initial=0)
        if parses is not None:
            parse = parses[text]
            words, count = parse.find_words(text, encoding.offsets), len(parse)
            heads = np.concatenate([[0], parse.heads])[words]
            heads = np.where(np.isin(heads, words) & (heads > 0), heads + before, 0)
            columns.setdefault("heads", []).append(heads)
        columns["words"].append(np.where(words > 0, words + before, 0))
        before += count
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _get_words(text: str, encoding: Encoding) -> dict[int, str]:
    """Return a dict from the index of each word, counted from 1, to the word as written."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, stop) in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word is not None:
            spans[word + 1] = (spans.get(word + 1, (start, stop))[0], stop)
    return {word: text[start:stop].strip() for word, (start, stop) in spans.items()}


def _load_bert(path: epath.Path, config_path: epath.Path) -> Tokenizer:
    """Build BERT's WordPiece tokenizer from a vocabulary file with one token per line.

    The file tokenizer_config.json may be missing.
    """
    pieces = [line.rstrip("\r") for line in read_text(path).rstrip("\r\n").split("\n")]
    ids = {piece: i for i, piece in enumerate(pieces)}
    missing = [token for token in BERT_TOKENS if token not in ids]
    if missing:
        raise DataError(
            f"{path}: must contain one token per line, including {BERT_TOKENS}; lacks {missing}."
        )
    config = read_json(config_path) if config_path.is_file() else {}
    if not isinstance(config, dict):
        raise DataError(f"{config_path}: must contain an object; got {type(config).__name__}.")
    config = {name: config[name] for name in BERT_OPTIONS if config.get(name) is not None}
    for name, value in config.items():
        if not isinstance(value, bool):
            raise DataError(f"{config_path}: {name} must be true or false; got {value!r}.")
    has_capitals = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", not has_capitals),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.add_special_tokens(list(BERT_TOKENS))
    return tokenizer
