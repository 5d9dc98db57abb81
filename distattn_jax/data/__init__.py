"""Turn text into batches: readers, tokenizers, word vectors, tables and batches.

`read_rows` and `load_split` read examples from files. The functions in `TOKENIZERS` train a
tokenizer, and `encode` converts texts to token ids. For a pre-trained model, use `encode_pairs`
instead. A `Table` stores the token ids. `Batches` groups the rows of a table by length. The data
sets themselves are in `distattn_jax.datasets`.

Importing this package imports neither JAX nor TensorFlow Datasets. `TextBuilder`, `load_split` and
`iterate_split` import TensorFlow Datasets on first access.
"""

from etils import epy

from distattn_jax.data.batches import Batches, Location, choose_buckets, round_length
from distattn_jax.data.conllu import DependencyParse, ParsedTexts
from distattn_jax.data.files import DataError
from distattn_jax.data.pmi import TokenPmi, count_pmi
from distattn_jax.data.pretrained_tokenizer import (
    EncodedPairs,
    encode_pairs,
    list_words,
    load_pretrained_tokenizer,
)
from distattn_jax.data.rows import find_file, read_rows
from distattn_jax.data.table import PADDING_ROW, Nested, Ragged, Table
from distattn_jax.data.tokenizer import (
    END_TOKEN,
    PADDING_TOKEN,
    TOKENIZERS,
    UNKNOWN_TOKEN,
    decode,
    encode,
    load_tokenizer,
    save_tokenizer,
    split_sentences,
    train_byte_level_bpe,
    train_word_level,
    train_word_piece,
)
from distattn_jax.data.vectors import WordVectors, load_embeddings, load_word_vectors
from distattn_jax.token_ids import END_ID

with epy.lazy_api_imports(globals()):
    from distattn_jax.data.builder import TextBuilder, iterate_split, load_split

__all__ = [
    "END_ID",
    "END_TOKEN",
    "PADDING_ROW",
    "PADDING_TOKEN",
    "TOKENIZERS",
    "UNKNOWN_TOKEN",
    "Batches",
    "DataError",
    "DependencyParse",
    "EncodedPairs",
    "Location",
    "Nested",
    "ParsedTexts",
    "Ragged",
    "Table",
    "TextBuilder",
    "TokenPmi",
    "WordVectors",
    "choose_buckets",
    "count_pmi",
    "decode",
    "encode",
    "encode_pairs",
    "find_file",
    "iterate_split",
    "list_words",
    "load_embeddings",
    "load_pretrained_tokenizer",
    "load_split",
    "load_tokenizer",
    "load_word_vectors",
    "read_rows",
    "round_length",
    "save_tokenizer",
    "split_sentences",
    "train_byte_level_bpe",
    "train_word_level",
    "train_word_piece",
]
