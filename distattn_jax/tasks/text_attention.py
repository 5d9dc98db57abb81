"""Attention maps of any trained or pre-trained model on texts that a user enters."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Encoding, Tokenizer

from distattn_jax.attention import Variant
from distattn_jax.data import END_ID, END_TOKEN, UNKNOWN_TOKEN, Ragged, Table, split_sentences
from distattn_jax.models import (
    DocumentClassifier,
    DocumentRegressor,
    LanguageModel,
    NewsRecommender,
    PairClassifier,
    PretrainedClassifier,
    PretrainedEncoder,
    SequenceEncoder,
    Tagger,
    TextClassifier,
    TextEncoder,
    Translator,
    shift_right,
)
from distattn_jax.tasks.decoding import translate_tokens
from distattn_jax.tasks.load import LoadedModel
from distattn_jax.tasks.tagging import Tagging
from distattn_jax.tasks.text_classification import PairClassification

UNKNOWN_TOKENS = (UNKNOWN_TOKEN, "<unk>")  # of BERT and our own tokenizers, of RoBERTa and ALBERT
LINE_BREAK = "↵"  # shown for a line break, which has no visible letter
SPACE_LETTERS = ("Ġ", "▁")  # a space, as written by byte-level tokenizers and SentencePiece


class PartAttention(NamedTuple):
    """Attention maps of one part of a model, such as its encoder, with the tokens.

    Attributes:
      maps: Attention weights, shape (L, N, T, S) for L layers of N heads.
      tokens: The S key tokens.
      query_tokens: The T query tokens; None if they are the same as `tokens`.
      variants: Attention variant of each layer; None for dot-product attention.
      segments: For a pair of texts, the index of the text that each token belongs to, 0 or 1. None
        if there is no pair.
      axis_names: Axis labels for the queries and for the keys.
    """

    maps: np.ndarray
    tokens: list[str]
    query_tokens: list[str] | None = None
    variants: list[Variant] | None = None
    segments: list[int] | None = None
    axis_names: tuple[str, str] = ("query", "key")


def attend_to_texts(loaded: LoadedModel, texts: Sequence[str]) -> dict[str, PartAttention]:
    """Compute the attention maps of a trained model on texts.

    Args:
      loaded: Trained model.
      texts: Input of the model. A translator reads a source sentence and optionally its
        translation. If the translation is missing, the model translates the sentence. A news
        recommender reads at least one title that a reader clicked. A pre-trained model reads one
        text or a pair of texts. Other classifiers of pairs read two texts, and all other models
        read one text.

    Returns:
      Dict from the name of a part of the model, e.g. "encoder", to its attention maps.
    """
    model, tokenizer, task = loaded.model, loaded.tokenizer, loaded.task
    match model:
        case PretrainedClassifier():
            return attend_with_encoder(
                model.encoder, tokenizer, texts, longest=task.config.data.longest
            )
        case Translator():
            return _attend_with_translator(model, tokenizer, texts)
        case LanguageModel():
            _check_count(texts, (1,), "a language model")
            return {"text": _attend_with_language_model(model, tokenizer, texts[0])}
        case Tagger():
            _check_count(texts, (1,), "a tagger")
            return {"text": _attend_with_tagger(loaded, texts[0])}
        case TextClassifier():
            _check_count(texts, (1,), "a classifier of texts")
            return {"text": _attend_with_text_encoder(model.text, tokenizer, texts)[0][0]}
        case PairClassifier():
            _check_count(texts, (2,), "a classifier of pairs")
            parts, _ = _attend_with_text_encoder(model.text, tokenizer, texts)
            return dict(zip(PairClassification.fields, parts, strict=True))
        case DocumentClassifier() | DocumentRegressor():
            _check_count(texts, (1,), "a model of documents")
            sentences = split_sentences(texts[0])[: task.config.data.sentences]
            encoders = model.document.words, model.document.sentences
            return _attend_in_two_levels(*encoders, tokenizer, sentences, ("sentence", "document"))
        case NewsRecommender():
            encoders = model.titles, model.user
            return _attend_in_two_levels(*encoders, tokenizer, texts, ("title", "reader"))
    raise ValueError(f"RUN must have a model with attention to text; got {type(model).__name__}.")


def attend_with_encoder(
    encoder: PretrainedEncoder, tokenizer: Tokenizer, texts: Sequence[str], *, longest: int
) -> dict[str, PartAttention]:
    """Return the attention maps of a pre-trained encoder, in a dict with the only key "text".

    Args:
      encoder: BERT, RoBERTa or ALBERT encoder.
      tokenizer: Tokenizer of the encoder.
      texts: One or two texts.
      longest: Largest number of tokens, with special tokens.
    """
    _check_count(texts, (1, 2), "a pre-trained encoder")
    encoding = tokenizer.encode(texts[0], texts[1] if len(texts) == 2 else None)
    longest = min(longest, encoder.config.max_length)
    if len(encoding) > longest:
        raise ValueError(f"texts (--text) must have at most {longest} tokens; got {len(encoding)}.")
    outputs = _call(encoder, [encoding.ids], [len(encoding)], [encoding.type_ids])
    config = encoder.config
    layers = [encoder.layers[i * config.groups // config.layers] for i in range(config.layers)]
    part = _make_part(outputs.weights[0], _name_tokens(encoding, texts), layers)
    return {"text": part._replace(segments=_find_segments(encoding) if len(texts) == 2 else None)}


def _attend_with_text_encoder(
    encoder: TextEncoder, tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[list[PartAttention], jax.Array]:
    """Return the attention maps of each text, and the vectors of the texts, shape (B, D)."""
    encodings = [_encode(tokenizer, text) for text in texts]
    rows = Ragged(
        np.concatenate([np.asarray(encoding.ids, np.int32) for encoding in encodings]),
        np.cumsum([0, *map(len, encodings)], dtype=np.int64),
    )
    tokens, lengths = rows.pad(np.arange(len(texts)), int(rows.lengths.max()))
    outputs = _call(encoder, tokens, lengths)
    layers = encoder.sequence.encoder.layers
    parts = [
        _make_part(maps[..., :length, :length], _name_tokens(encoding, [text]), layers)
        for maps, length, encoding, text in zip(
            outputs.weights, lengths, encodings, texts, strict=True
        )
    ]
    return parts, outputs.vector


def _attend_in_two_levels(
    encoder: TextEncoder,
    sequence: SequenceEncoder,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    names: tuple[str, str],
) -> dict[str, PartAttention]:
    """Return the attention of a model that encodes texts, and then the sequence of these texts.

    The result has the attention maps between the tokens of each text, and the attention maps
    between the texts. `names` are two nouns: one for a text, such as "sentence", and one for the
    sequence of all texts, such as "document".
    """
    if not texts:
        raise ValueError("texts (--text) must contain at least one word; got none.")
    parts, vectors = _attend_with_text_encoder(encoder, tokenizer, texts)
    outputs = _call(sequence, vectors[None], [len(texts)])
    inside = {f"{names[0]} {i}": part for i, part in enumerate(parts, start=1)}
    numbered = [f"{i}. {text}" for i, text in enumerate(texts, start=1)]
    between = _make_part(outputs.weights[0], numbered, sequence.encoder.layers)
    return {**inside, names[1]: between}


def _attend_with_tagger(loaded: LoadedModel, text: str) -> PartAttention:
    """Return the attention maps of a sentence. Its words must be separated by white space."""
    task, words = loaded.task, text.split()
    if not words:
        raise ValueError(f"texts (--text) must contain at least one word; got {text!r}.")
    assert isinstance(task, Tagging)
    batch = Table(task.encode([{"text": text}])).take(np.arange(1), len(words))
    outputs = jax.jit(functools.partial(task.call_model, weights=True))(loaded.model, batch)
    layers = loaded.model.encoder.layers  # type: ignore[attr-defined]
    return _make_part(outputs.weights[0], words, layers)


def _attend_with_language_model(
    model: LanguageModel, tokenizer: Tokenizer, text: str
) -> PartAttention:
    """Return the attention maps of a text. As in training, the end token precedes the text."""
    encoding = tokenizer.encode(text)  # The end token is the last one.
    ids = np.roll(encoding.ids, 1)
    outputs = _call(model, [ids], [len(ids)])
    names = _name_tokens(encoding, [text])
    return _make_part(outputs.weights[0], [names[-1], *names[:-1]], model.decoder.layers)


def _attend_with_translator(
    model: Translator, tokenizer: Tokenizer, texts: Sequence[str]
) -> dict[str, PartAttention]:
    """Return the attention of the encoder and of the decoder, and the cross-attention.

    In the attention of the decoder, the tokens are the inputs of the decoder, which begin with the
    end token. In the cross-attention, the query tokens are the tokens that the decoder predicts.
    """
    _check_count(texts, (1, 2), "a translator")
    source = _encode(tokenizer, texts[0])
    ids = np.asarray(source.ids, np.int32)
    if len(texts) == 2:
        target = tokenizer.encode(texts[1]).ids
    else:
        sources = Ragged(ids, np.asarray([0, len(ids)], np.int64))
        target = [*translate_tokens(model, sources)[0], END_ID]
    names = [*_name_ids(tokenizer, target[:-1]), END_TOKEN]
    inputs = shift_right(jnp.asarray([target], jnp.int32))
    outputs = _call(model, ids[None], [len(ids)], inputs, [len(target)])
    source_names = _name_tokens(source, [texts[0]])
    return {
        "encoder": _make_part(outputs.encoder_weights[0], source_names, model.encoder.layers),
        "decoder": _make_part(
            outputs.decoder_weights[0], [END_TOKEN, *names[:-1]], model.decoder.decoder.layers
        ),
        "cross-attention": PartAttention(
            np.asarray(outputs.cross_weights[0]),
            source_names,
            names,
            axis_names=("predicted token", "source token"),
        ),
    }


def _call(model: Any, *inputs: Any) -> Any:
    """Return the outputs of a model, with its attention weights."""
    return jax.jit(functools.partial(model, weights=True))(*map(jnp.asarray, inputs))


def _make_part(maps: jax.Array, tokens: list[str], layers: Sequence[Any]) -> PartAttention:
    """Return the attention maps of layers, together with the attention variant of each layer."""
    modules: list[Any] = [layer.attention.variant for layer in layers]
    variants = None if None in modules else [module() for module in modules]
    return PartAttention(np.asarray(maps), tokens, variants=variants)


def _encode(tokenizer: Tokenizer, text: str) -> Encoding:
    """Return the encoding of a text, or raise a ValueError if the text has no tokens."""
    if not tokenizer.encode(text, add_special_tokens=False).ids:
        raise ValueError(f"texts (--text) must contain at least one token; got {text!r}.")
    return tokenizer.encode(text)


def _name_tokens(encoding: Encoding, texts: Sequence[str]) -> list[str]:
    """Return each token as it is written in the text, or its name if it is special or unknown.

    A subword whose tokenizer counts the space before a word as a part of it begins with a space. A
    line break is written as an arrow.
    """
    names = []
    for token, text, (start, end) in zip(
        encoding.tokens, encoding.sequence_ids, encoding.offsets, strict=True
    ):
        if text is None or token in UNKNOWN_TOKENS:
            names.append(token)
            continue
        # Some tokenizers count the space before a word in the offsets of its first token.
        written, character_before = texts[text][start:end], texts[text][max(start - 1, 0) : start]
        follows_space = written[:1].isspace() or character_before.isspace()
        space = " " if follows_space and token.startswith(SPACE_LETTERS) else ""
        names.append(space + written.replace("\n", LINE_BREAK).strip() or token)
    return names


def _name_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token id, or the name of the token if it has no text of its own.

    A token has no text of its own if it is only a part of a character.
    """
    names: list[str] = []
    before = ""
    for count, token in enumerate(ids, start=1):
        text = tokenizer.decode(list(ids[:count]))
        name = text[len(before) :]
        is_text = name and "\N{REPLACEMENT CHARACTER}" not in name
        names.append(name if is_text else str(tokenizer.id_to_token(token)))
        before = text
    return names


def _find_segments(encoding: Encoding) -> list[int]:
    """Return the index of the text that each token belongs to, 0 or 1.

    A special token belongs to the text before it.
    """
    segments, now = [], 0
    for text in encoding.sequence_ids:
        now = now if text is None else text
        segments.append(now)
    return segments


def _check_count(texts: Sequence[str], counts: Sequence[int], reader: str) -> None:
    """Raise a ValueError if the number of texts is not in `counts`.

    `reader` is the kind of model, for the error message.
    """
    if len(texts) not in counts:
        expected = " or ".join(map(str, counts))
        raise ValueError(f"texts (--text) of {reader} must be {expected}; got {len(texts)}.")
