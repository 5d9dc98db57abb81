"""Interactive page of attention heads: one HTML file that needs neither a network nor a server.

A map is the matrix of the attention weights of one head. The page shows the text with the attention
that each token receives, a grid with the maps of all layers and heads, one map in full size, and
the position parameters of each head (see `head_positions`). It can show a second model beside the
first. Style and scripts are in the folder `page`.
"""

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath
from jaxtyping import Array

from distattn_jax.attention import Variant
from distattn_jax.plot.head_positions import HeadPositions, describe_heads
from distattn_jax.plot.page_arrays import LEVELS, pack, quantise
from distattn_jax.plot.style import check_array

FOLDER = Path(__file__).parent / "page"
SCRIPTS = (
    *("data", "colours", "heat_map", "lines", "charts", "tokens", "grid", "words", "model"),
    "main",
)
MAX_BYTES = 3_000_000
FRAME_HEIGHT = 860  # of the page in a notebook, in pixels


class AttentionPart(NamedTuple):
    """Attention maps of one part of a model, such as its encoder, with tokens and variants.

    Attributes:
      maps: Attention weights of one text, shape (L, N, T, S) for L layers of N heads.
      tokens: The S key tokens.
      query_tokens: The T query tokens. None means that queries and keys are the same tokens.
      variants: Attention variant of each layer. If None, the page shows no parameters of the heads.
      segments: For a pair of texts, 0 for tokens of the first text and 1 for tokens of the second,
        shape (S,). A reader of the page can then hide the attention inside of each text. None means
        one text.
      axis_names: Names of the query axis and of the key axis.
    """

    maps: np.ndarray | Array
    tokens: Sequence[str]
    query_tokens: Sequence[str] | None = None
    variants: Sequence[Variant] | None = None
    segments: Sequence[int] | np.ndarray | None = None
    axis_names: tuple[str, str] = ("query", "key")


class _CheckedPart(NamedTuple):
    """Part of a model, validated and restricted to the selected layers.

    Attributes:
      maps: Attention weights of the selected layers, shape (L, N, T, S).
      content: JSON object of the part, without the weights. `_write_part` adds the weights later,
        when their number of bits is known.
    """

    maps: np.ndarray
    content: dict[str, Any]


class _Model(NamedTuple):
    """Model on a page, with its title, a caption below the title, and its parts."""

    title: str
    caption: str
    parts: list[_CheckedPart]


class AttentionPage:
    """Interactive page of one or two models, made by `explore`.

    A notebook displays the page if it is the last value of a cell.
    """

    def __init__(self, models: Sequence[_Model], max_bytes: int):
        self._models, self._max_bytes = tuple(models), max_bytes

    @functools.cached_property
    def html(self) -> str:
        """HTML document of the page.

        Weights have 8 bits, or fewer if the page would otherwise be larger than the argument
        `max_bytes` of `explore`.
        """
        for levels in LEVELS:
            page = _write_page(self._models, levels)
            if len(page.encode()) <= self._max_bytes:
                return page
        weights = sum(part.maps.size for model in self._models for part in model.parts)
        raise ValueError(
            f"maps must fit into a page of {self._max_bytes:,} bytes; {weights:,} weights "
            f"need {len(page.encode()):,} bytes. Shorten the text, select some layers "
            "(`layers`, --layers) or raise max_bytes."
        )

    def save(self, path: str | Path | epath.Path) -> None:
        """Write the page to a file that ends in .html. Missing folders are created."""
        path = epath.Path(path)
        if path.suffix != ".html":
            raise ValueError(f"path must end in .html; got {path}.")
        page = self.html
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page.encode())

    def _repr_html_(self) -> str:
        """Return the page in an iframe, which separates its style and scripts from the notebook."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts" '
            f'style="width:100%;height:{FRAME_HEIGHT}px;border:0" title="attention maps"></iframe>'
        )

    def __repr__(self) -> str:
        titles = " and ".join(repr(model.title) for model in self._models)
        return f"<AttentionPage of {titles}; save(path) writes it>"


def explore(
    maps: np.ndarray | Array | Mapping[str, AttentionPart],
    tokens: Sequence[str] | None = None,
    *,
    query_tokens: Sequence[str] | None = None,
    variants: Sequence[Variant] | None = None,
    segments: Sequence[int] | np.ndarray | None = None,
    axis_names: tuple[str, str] | None = None,
    layers: Sequence[int] | None = None,
    title: str = "attention",
    caption: str = "",
    against: AttentionPage | None = None,
    max_bytes: int = MAX_BYTES,
) -> AttentionPage:
    """Make an interactive page of attention maps, one HTML document that needs no network.

    Weights are stored in 8 bits: a shown weight differs from the exact one by at most 0.4 % of the
    largest weight of its head. If the page would be larger than `max_bytes`, weights have fewer
    bits, and the page says so. The received attention (the weights of each key, summed over the
    queries) and the parameters of the heads are exact.

    Args:
      maps: Attention weights of one text, shape (L, N, T, S) for L layers of N heads. For a model
        with several parts, such as encoder and decoder, pass a dict from the name of each part to
        an `AttentionPart`. Then omit the next five arguments, which are fields of `AttentionPart`.
      tokens: The S key tokens. The page shows the space of a subword, such as "Ġservice", as "␣".
      query_tokens: The T query tokens. None means that queries and keys are the same tokens.
      variants: Attention variant of each layer, e.g. `[layer.attention.variant() for layer in
        model.encoder.layers]`. The page then shows w, v and the curve of distance-aware heads, the
        curves of both sides of `TwoSided`, the curve of a bias, or the tables of relative
        positions. None shows none of these.
      segments: For a pair of texts, 0 for tokens of the first text and 1 for tokens of the second,
        shape (S,). None means one text.
      axis_names: Names of the query axis and of the key axis. None means "query" and "key".
      layers: Indices of the layers to show. None shows all. As in all arrays, the first layer has
        index 0; the page calls it layer 1.
      title: Name of the model.
      caption: Line of text below the title, such as the prediction of the model.
      against: Page of another model. The new page shows both models side by side.
      max_bytes: Largest size of the page in bytes.
    """
    if isinstance(maps, Mapping):
        fields: dict[str, Any] = {"tokens": tokens, "query_tokens": query_tokens}
        fields |= {"variants": variants, "segments": segments, "axis_names": axis_names}
        given = [name for name, value in fields.items() if value is not None]
        if given:
            raise ValueError(
                f"{', '.join(given)} must be fields of each AttentionPart if maps is a dict; "
                "got them as arguments."
            )
        parts = dict(maps)
    elif tokens is None:
        raise ValueError("tokens must be the key tokens; got None.")
    else:
        names = axis_names or ("query", "key")
        parts = {"": AttentionPart(maps, tokens, query_tokens, variants, segments, names)}
    if not parts:
        raise ValueError("maps must have at least one part; got an empty dict.")
    checked = [_check_part(name, part, layers) for name, part in parts.items()]
    models = [_Model(title, caption, checked)]
    if against is not None:
        if len(against._models) > 1:
            raise ValueError("against must be a page of one model; got a page of two.")
        models.extend(against._models)
    return AttentionPage(models, max_bytes)


def _check_part(name: str, part: AttentionPart, layers: Sequence[int] | None) -> _CheckedPart:
    """Validate a part of a model, and select layers. Raise a ValueError for a wrong argument.

    Args:
      name: Name of the part, such as "encoder", or "" if the model has one part only.
      part: Maps, tokens and variants of the part.
      layers: Indices of the layers to show. None shows all.
    """
    place = f" of the part {name!r}" if name else ""
    queries = part.tokens if part.query_tokens is None else part.query_tokens
    for argument, names in (("tokens", part.tokens), ("query_tokens", queries)):
        if isinstance(names, str) or not all(isinstance(token, str) for token in names):
            raise ValueError(f"{argument}{place} must be a list of strings; got {names!r:.60}.")
    if np.ndim(part.maps) == 5:
        raise ValueError(
            f"maps{place} must have shape (L, N, T, S), without a batch axis; got "
            f"{np.shape(part.maps)}. Select one text, e.g. `outputs.weights[0]`."
        )
    maps = check_array(f"maps{place}", part.maps, ("L", "N", len(queries), len(part.tokens)))
    if not np.isfinite(maps).all() or maps.min() < 0:
        raise ValueError(
            f"maps{place} must be finite weights of at least 0; the lowest is {maps.min():g}."
        )
    indices = list(range(len(maps))) if layers is None else list(layers)
    if not indices or not all(0 <= index < len(maps) for index in indices):
        raise ValueError(
            f"layers must be indices of the {len(maps)} layers{place}, from 0 to "
            f"{len(maps) - 1}; got {indices}."
        )
    causal = len(queries) == len(part.tokens) > 1 and not np.triu(maps, 1).any()
    content = {
        "name": name,
        "received": pack(maps[indices].sum(axis=-2)),
        "tokens": _show_spaces(part.tokens),
        "queryTokens": None if part.query_tokens is None else _show_spaces(queries),
        "segments": _check_segments(part, place),
        "axisNames": part.axis_names,
        "layers": [index + 1 for index in indices],
        "causal": causal,
        "positions": _describe_layers(part, maps, indices, place, causal=causal),
    }
    return _CheckedPart(maps[indices], content)


def _show_spaces(tokens: Sequence[str]) -> list[str]:
    """Replace the letters that subword tokenizers write for white space with white space.

    SentencePiece writes a space as "▁". Byte-level tokenizers, such as that of RoBERTa, write a
    space as "Ġ" and a line break as "Ċ".
    """
    shown = [token.replace("▁", " ") for token in tokens]
    # Maltese words have the letter Ġ too, but Maltese texts also have its small form, which no
    # byte-level tokenizer writes for a printable character.
    is_byte_level = any(token.startswith("Ġ") for token in shown) and "ġ" not in "".join(shown)
    if not is_byte_level:
        return shown
    return [token.replace("Ġ", " ").replace("Ċ", "\n") for token in shown]


def _check_segments(part: AttentionPart, place: str) -> list[int] | None:
    """Validate the segments of a part. Return them as a list, or None if there is only one text.

    `place` is the end of the argument's name in error messages, such as " of the part 'encoder'".
    """
    if part.segments is None:
        return None
    segments = np.asarray(part.segments)
    if segments.shape != (len(part.tokens),) or not np.isin(segments, (0, 1)).all():
        raise ValueError(
            f"segments{place} must be 0 or 1 for each of the {len(part.tokens)} tokens; "
            f"got {segments.tolist()}."
        )
    if part.query_tokens is not None:
        raise ValueError(f"segments{place} must be None if there are query_tokens.")
    return segments.astype(int).tolist() if segments.any() else None


def _describe_layers(
    part: AttentionPart, maps: np.ndarray, indices: Sequence[int], place: str, *, causal: bool
) -> list[dict[str, Any]] | None:
    """Return the position parameters of each selected layer as a JSON object.

    Return None if the part has no variants.

    Args:
      part: Part of a model.
      maps: Attention weights of all layers, shape (L, N, T, S).
      indices: Indices of the selected layers.
      place: End of the argument's name in error messages, such as " of the part 'encoder'".
      causal: True if no query attends to a later key.
    """
    variants = part.variants
    if variants is None:
        return None
    if len(variants) != len(maps):
        raise ValueError(
            f"variants{place} must have one entry for each of the {len(maps)} layers; "
            f"got {len(variants)}."
        )
    _, heads, queries, keys = maps.shape
    return [
        _write_positions(describe_heads(variants[i], heads, queries, keys, causal=causal))
        for i in indices
    ]


def _write_page(models: Sequence[_Model], levels: int) -> str:
    """Return the HTML document, with weights stored as integers from 0 to `levels`."""
    content = {
        "levels": levels,
        "models": [
            {**model._asdict(), "parts": [_write_part(part, levels) for part in model.parts]}
            for model in models
        ],
    }
    script = "\n".join((FOLDER / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    style = (FOLDER / "page.css").read_text("utf-8")
    title = html.escape(" and ".join(model.title for model in models))
    parts = {
        # Character references can also stand for half of a surrogate pair, which UTF-8 cannot.
        "title": title.encode("ascii", "xmlcharrefreplace").decode("ascii"),
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}",
        "style": style,
        # A "<" inside the data could end the script element that contains it.
        "data": json.dumps(content).replace("<", "\\u003c"),
        "script": script,
    }
    template = (FOLDER / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _write_part(part: _CheckedPart, levels: int) -> dict[str, Any]:
    """Return a part of a model as a JSON object, with weights stored as integers up to `levels`."""
    integers, largest = quantise(part.maps, levels)
    return {**part.content, "maps": pack(integers), "largest": pack(largest)}


def _write_positions(layer: HeadPositions) -> dict[str, Any]:
    """Return the position parameters of one layer as a JSON object."""
    return {
        "numbers": {name: pack(values) for name, values in layer.numbers.items()},
        "curves": [
            {**curves._asdict(), "x": pack(curves.x), "y": pack(curves.y)}
            for curves in layer.curves
        ],
        "tables": [
            {
                "title": table.title,
                "positions": table.positions.tolist(),
                # Cosines from -1 to 1 become integers from 0 to 254; 127 is exactly 0.
                "cosines": pack(np.rint(127 * (table.cosines + 1)).clip(0, 254).astype(np.uint8)),
            }
            for table in layer.tables
        ],
    }


def _digest(text: str) -> str:
    """Return the SHA-256 digest of a script or style, for the page's content security policy.

    A browser ignores scripts and styles whose digest is not in the policy.
    """
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
