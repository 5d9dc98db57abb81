"""Turn text into batches: readers, tokenizers, word vectors, tables and batches.

Files are read into examples (`read_rows`, `load_split`), texts into token ids (`TOKENIZERS`,
`encode`, or `encode_pairs` for a pre-trained model), token ids into a `Table`, and its rows into
`Batches` of similar length. The data sets themselves are in `distattn_jax.datasets`.

Importing this package imports neither JAX nor TensorFlow Datasets. `TextBuilder` and `load_split`
import TensorFlow Datasets on first access.
"""

from typing import TYPE_CHECKING, Any

from distattn_jax.data.batches import Batches, bucket_lengths
from distattn_jax.data.conllu import Parse, Parses
from distattn_jax.data.pmi import TokenPmi, count_pmi
from distattn_jax.data.pretrained_tokenizer import (
    Encoded,
    encode_pairs,
    load_tokenizer,
    words_of,
)
from distattn_jax.data.rows import DataError, find_file, read_rows
from distattn_jax.data.sentences import sentences
from distattn_jax.data.table import FILLER, Nested, Ragged, Table
from distattn_jax.data.tokenizer import (
    PADDING,
    TOKENIZERS,
    UNKNOWN,
    byte_level_bpe,
    encode,
    load,
    save,
    word_level,
    word_piece,
)
from distattn_jax.data.vectors import WordVectors, find_vectors, load_vectors

if TYPE_CHECKING:
    from distattn_jax.data.builder import TextBuilder, load_split
else:

    def __getattr__(name: str) -> Any:
        """Import the names that need TensorFlow Datasets on first access (PEP 562)."""
        if name in ("TextBuilder", "load_split"):
            from distattn_jax.data import builder

            return getattr(builder, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "FILLER",
    "PADDING",
    "TOKENIZERS",
    "UNKNOWN",
    "Batches",
    "DataError",
    "Encoded",
    "Nested",
    "Parse",
    "Parses",
    "Ragged",
    "Table",
    "TextBuilder",
    "TokenPmi",
    "WordVectors",
    "bucket_lengths",
    "byte_level_bpe",
    "count_pmi",
    "encode",
    "encode_pairs",
    "find_file",
    "find_vectors",
    "load",
    "load_split",
    "load_tokenizer",
    "load_vectors",
    "read_rows",
    "save",
    "sentences",
    "word_level",
    "word_piece",
    "words_of",
]
