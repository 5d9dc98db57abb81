"""Pairs of texts as a pre-trained model reads them: its own tokenizer, special tokens and types.

BERT       [CLS] first [SEP] second [SEP]
RoBERTa    <s> first </s></s> second </s>
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from etils import epath
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, processors

from distattn_jax.data.conllu import ParsedTexts
from distattn_jax.data.rows import DataError
from distattn_jax.data.table import Ragged
from distattn_jax.data.tokenizer import AnyPath

CHUNK = 10_000  # texts encoded at a time
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # of a vocab.txt


class EncodedPairs(NamedTuple):
    """Pairs as columns of a table, and how many of them were cut to fit."""

    columns: dict[str, Ragged]
    truncated: int


def load_pretrained_tokenizer(folder: AnyPath) -> Tokenizer:
    """The tokenizer in a folder of a pre-trained model, without its truncation and padding.

    It is tokenizer.json, or else BERT's vocab.txt, with what tokenizer_config.json says of it:
    do_lower_case (not said: if no word of the vocabulary has a capital letter), strip_accents (not
    said: as lower-casing) and tokenize_chinese_chars.
    """
    whole, vocabulary = epath.Path(folder) / "tokenizer.json", epath.Path(folder) / "vocab.txt"
    if whole.is_file():
        try:
            tokenizer = Tokenizer.from_str(whole.read_text())
        except Exception as error:  # the library has no narrower one
            raise DataError(f"{whole}: is not a tokenizer, {error}.") from None
    elif vocabulary.is_file():
        tokenizer = _bert(vocabulary, epath.Path(folder) / "tokenizer_config.json")
    else:
        raise DataError(f"{folder}: looked for tokenizer.json, or vocab.txt; found neither.")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def encode_pairs(
    tokenizer: Tokenizer,
    firsts: Sequence[str],
    seconds: Sequence[str] | None,
    longest: int,
    *,
    parses: ParsedTexts | None = None,
    vectors: Mapping[str, int] | None = None,
) -> EncodedPairs:
    """The columns tokens, types and words of every pair, and what is asked for besides.

    - `tokens`: ids, special tokens among them.
    - `types`: 0 and 1 for first and second text, where the model tells them apart.
    - `words`: the number of the word that a token belongs to, counted from 1 through both texts;
      0: a special token. The words are the tokenizer's; with `parses`, the parser's: a token
      belongs to the one in which it begins.
    - `heads`, with `parses`: the number of the head of that word; 0: it has none, or none that is
      in the tokens.
    - `vectors`, with `vectors`: the row of the tokenizer's word that a token belongs to; 0: none.

    Args:
      tokenizer: from `load_pretrained_tokenizer`.
      firsts: texts.
      seconds: as many; `None`: each text stands alone.
      longest: tokens of a pair. One that has more loses the last token of its longer text (of two
        as long, the second) until it fits.
      parses: of all texts.
      vectors: the row of every word that has a vector, from 1. A word is looked for as it is
        written, then in lower case.
    """
    if seconds is not None and len(firsts) != len(seconds):
        raise ValueError(f"seconds must be {len(firsts)} texts, as firsts; got {len(seconds)}.")
    special = tokenizer.num_special_tokens_to_add(seconds is not None)
    if longest <= special:
        raise ValueError(f"longest must be above {special}, the special tokens; got {longest}.")
    names = ["tokens", "types", "words"]
    names += [] if parses is None else ["heads"]
    names += [] if vectors is None else ["vectors"]
    columns: dict[str, list[np.ndarray]] = {name: [] for name in names}
    cut = 0
    pairs = ((first,) for first in firsts) if seconds is None else zip(firsts, seconds, strict=True)
    for texts, sides in _encodings(tokenizer, pairs):
        cut += _fit(sides, longest - special)
        whole = tokenizer.post_process(sides[0], None if seconds is None else sides[1])
        columns["tokens"].append(np.asarray(whole.ids, np.int32))
        columns["types"].append(np.asarray(whole.type_ids, np.int32))
        inside = np.asarray(whole.special_tokens_mask) == 0
        for name, values in _words(texts, sides, parses, vectors).items():
            column = np.zeros(len(inside), np.int32)
            column[inside] = values
            columns[name].append(column)
    return EncodedPairs({name: _ragged(rows) for name, rows in columns.items()}, cut)


def list_words(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """The tokenizer's words of the texts, as written and in lower case, each once and sorted."""
    found: set[str] = set()
    for (text,), (side,) in _encodings(tokenizer, ((text,) for text in texts)):
        found.update(_written(text, side).values())
    return sorted(found | {word.lower() for word in found})


def _encodings(
    tokenizer: Tokenizer, rows: Iterable[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], list[Encoding]]]:
    """The texts of every row, and these encoded without special tokens."""
    rows = iter(rows)
    while chunk := [row for _, row in zip(range(CHUNK), rows, strict=False)]:
        sides = [
            tokenizer.encode_batch(list(texts), add_special_tokens=False)
            for texts in zip(*chunk, strict=True)
        ]
        for texts, *encodings in zip(chunk, *sides, strict=True):
            yield texts, encodings


def _fit(sides: list[Encoding], room: int) -> bool:
    """Cuts the longer of them until both fit. True: something was cut."""
    lengths = [len(side) for side in sides]
    if sum(lengths) <= room:
        return False
    if len(sides) == 1:
        kept = [room]
    else:
        # The shorter text is whole if it has no more than half of the room.
        first = min(lengths[0], max(room - lengths[1], room - room // 2))
        kept = [first, room - first]
    for side, length in zip(sides, kept, strict=True):
        side.truncate(length)
    return True


def _words(
    texts: tuple[str, ...],
    sides: list[Encoding],
    parses: ParsedTexts | None,
    vectors: Mapping[str, int] | None,
) -> dict[str, np.ndarray]:
    """The columns that tell of words, without the special tokens."""
    columns: dict[str, list[np.ndarray]] = {"words": []}
    before = 0  # words of the texts so far
    for text, side in zip(texts, sides, strict=True):
        own = np.asarray([-1 if i is None else i for i in side.word_ids], np.int64) + 1
        if vectors is not None:
            rows = {i: _row(word, vectors) for i, word in _written(text, side).items()}
            columns.setdefault("vectors", []).append(np.asarray([rows.get(i, 0) for i in own]))
        count = own.max(initial=0)
        if parses is not None:
            parse = parses[text]
            own, count = parse.words(text, side.offsets), len(parse)
            heads = np.concatenate([[0], parse.heads])[own]
            heads = np.where(np.isin(heads, own) & (heads > 0), heads + before, 0)
            columns.setdefault("heads", []).append(heads)
        columns["words"].append(np.where(own > 0, own + before, 0))
        before += count
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _written(text: str, side: Encoding) -> dict[int, str]:
    """The tokenizer's words as the text has them, by their numbers from 1."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, stop) in zip(side.word_ids, side.offsets, strict=True):
        if word is not None:
            spans[word + 1] = (spans.get(word + 1, (start, stop))[0], stop)
    return {word: text[start:stop].strip() for word, (start, stop) in spans.items()}


def _row(word: str, vectors: Mapping[str, int]) -> int:
    return vectors.get(word) or vectors.get(word.lower(), 0)


def _ragged(rows: list[np.ndarray]) -> Ragged:
    values = np.concatenate([np.zeros(0, np.int32), *rows])
    return Ragged(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))


def _bert(path: epath.Path, about: epath.Path) -> Tokenizer:
    """BERT's word pieces from a list of them, one a line."""
    pieces = [line.rstrip("\r") for line in path.read_text().rstrip("\r\n").split("\n")]
    ids = {piece: i for i, piece in enumerate(pieces)}
    missing = [token for token in SPECIAL if token not in ids]
    if missing:
        raise DataError(f"{path}: must hold a token a line, {SPECIAL} among them; lacks {missing}.")
    try:
        settings = json.loads(about.read_text()) if about.is_file() else {}
    except json.JSONDecodeError as error:
        raise DataError(f"{about}: broken JSON, {error}.") from None
    if not isinstance(settings, dict):
        raise DataError(f"{about}: must hold an object; got {type(settings).__name__}.")
    capitals = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", not capitals),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"])
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer
