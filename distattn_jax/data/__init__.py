"""Text in, batches out: readers, TFDS builders, tokenizers, tables, Grain batches, word vectors.

NumPy alone, no JAX: files are read into examples (`TextFiles`, `load_split`), texts into ids
(`TOKENIZERS`, `encode`; for a pre-trained model `load_tokenizer`, `encode_pairs`), ids into a
`Table`, and its rows into `Batches` of like length.
"""

from distattn_jax.data.ag_news import AgNews
from distattn_jax.data.amazon import Amazon
from distattn_jax.data.batches import Batches, bucket_lengths
from distattn_jax.data.builder import TextBuilder, load_split
from distattn_jax.data.conllu import Parse, Parses
from distattn_jax.data.covid_fact import CovidFact
from distattn_jax.data.cross_genre import Candidates, ClaimBuilder, CrossGenre, load_candidates
from distattn_jax.data.mednli import MedNli
from distattn_jax.data.mind import Impression, Mind, MindLarge
from distattn_jax.data.multinli import MultiNli
from distattn_jax.data.nearest import Nearest
from distattn_jax.data.nearness import Nearness
from distattn_jax.data.pmi import TokenPmi, count_pmi
from distattn_jax.data.pretrained_tokenizer import (
    Encoded,
    encode_pairs,
    load_tokenizer,
    words_of,
)
from distattn_jax.data.rows import DataError, find_file, read_rows
from distattn_jax.data.sentences import sentences
from distattn_jax.data.snli import Snli
from distattn_jax.data.sst import Sst
from distattn_jax.data.stored import Stored
from distattn_jax.data.table import FILLER, Nested, Ragged, Table
from distattn_jax.data.text_files import TextFiles
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

__all__ = [
    "FILLER",
    "PADDING",
    "TOKENIZERS",
    "UNKNOWN",
    "AgNews",
    "Amazon",
    "Batches",
    "Candidates",
    "ClaimBuilder",
    "CovidFact",
    "CrossGenre",
    "DataError",
    "Encoded",
    "Impression",
    "MedNli",
    "Mind",
    "MindLarge",
    "MultiNli",
    "Nearest",
    "Nearness",
    "Nested",
    "Parse",
    "Parses",
    "Ragged",
    "Snli",
    "Sst",
    "Stored",
    "Table",
    "TextBuilder",
    "TextFiles",
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
    "load_candidates",
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
